"""What people type: arguments and options, worker counts, durations. The rule is in the error."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from worldsize.errors import SpecError

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A study folder.")]


StudyArgument = Annotated[str, typer.Argument(help="A study file, or the name of a built-in study.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change one field: --set train.epochs=2.")
]
WorkersOption = Annotated[str, typer.Option(metavar="1,2,4", help="Short for --set axes.workers=[1,2,4]; or auto.")]
DirOption = Annotated[Path | None, typer.Option("--dir", help="The study folder. Default: runs/NAME.")]
SmallOption = Annotated[bool, typer.Option("--small", help="The study's small version: seconds instead of minutes.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Where the data sets are. Default: WORLDSIZE_DATA, or the cache."),
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="local|slurm|mpi", help="Where it runs, or one of the study's targets."),
]


def use_data(folder: Path | None) -> None:
    """For this process and the workers it starts."""
    if folder is not None:
        os.environ["WORLDSIZE_DATA"] = str(folder.absolute())


def assignments(set_: list[str] | None, workers: str) -> list[str]:
    if workers == "auto":
        return [*(set_ or ()), "axes.workers=auto"]
    return [*(set_ or ()), *([f"axes.workers=[{workers}]"] if workers else [])]


SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")
MOST_WORKERS = 10_000_000


def counts_of(text: str) -> tuple[int, ...]:
    """`8,16,1024`."""
    found = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,8}\s*", part) or not 0 < int(part) <= MOST_WORKERS:
            raise SpecError(f"workers={text!r}: {part.strip()!r} is no count of workers; write --workers 8,16,1024")
        found.append(int(part))
    return tuple(sorted(set(found)))


def seconds_of(text: str) -> float:
    """`90 min`, `1h30min`, `2d`."""
    parts = PART.findall(text.strip())
    if not parts or PART.sub("", text).strip() or not sum(float(number) for number, _ in parts):
        raise SpecError(f"{text!r} is no duration; write 45s, 90min, 1h30min or 2d")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def refuse_infinite(given: Mapping[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and not math.isfinite(value):
            raise SpecError(f"{name}={value} is no finite number; write one, like --{name} 2.5")


def refuse_for_tables(given: Mapping[str, object]) -> None:
    """A table holds neither parts of a step nor what training costs."""
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"--{name} needs a study folder: a table has throughput or times alone; leave it out")
