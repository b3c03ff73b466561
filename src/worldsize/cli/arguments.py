"""Arguments and options of the command line: worker counts, durations, networks. Errors state the rule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from worldsize.errors import InputError

if TYPE_CHECKING:
    from worldsize.analysis.speed.network import Network
    from worldsize.machine import Machine
    from worldsize.study.study import Study

Parsed = TypeVar("Parsed")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")


def option_type(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Make a parser for `typer.Option(parser=...)` whose errors name the option."""

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


def worker_counts(text: str) -> tuple[int, ...]:
    """Parse worker counts such as `8,16,1024`."""
    from worldsize.answer.predict.table import MOST_WORKERS

    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,8}\s*", part) or not 0 < int(part) <= MOST_WORKERS:
            raise InputError(f"{part.strip()!r} is not a number of workers; write --workers 8,16,1024")
    return tuple(map(int, text.split(",")))


def counts_or_auto(text: str) -> tuple[int, ...] | str:
    return text if text == "auto" else worker_counts(text)


def seconds(text: str) -> float:
    """Parse a duration such as `90 min`, `1h30min` or `2d`."""
    parts = DURATION_PART.findall(text.strip())
    if not parts or DURATION_PART.sub("", text).strip() or not sum(float(number) for number, _ in parts):
        raise InputError(f"{text!r} is not a duration; write 45s, 90min, 1h30min or 2d")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a finite number; write one, like 2.5")
    return value


def amount(text: str) -> float:
    """Parse an amount of money."""
    if (value := number(text)) < 0:
        raise InputError(f"{text!r} is negative; write 0 or more")
    return value


def network(text: str) -> Network:
    from worldsize.answer.predict.question import parse_network

    return parse_network(text)


def formats(text: str) -> tuple[str, ...]:
    """Parse export formats such as `csv,mlflow`."""
    from worldsize.exports.study import check_formats

    return check_formats(text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="A study folder.")]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of a built-in study.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change one field: --set train.epochs=2.")
]
WorkersOption = Annotated[
    Any,
    typer.Option(
        parser=option_type(counts_or_auto),
        metavar="1,2,4",
        help="Short for --set axes.workers=[1,2,4]; or auto.",
        show_default=False,
    ),
]
DirOption = Annotated[
    Path | None, typer.Option("--dir", metavar="FOLDER", help="The study folder. Default: runs/NAME.")
]
SmallOption = Annotated[bool, typer.Option("--small", help="The study's small version: seconds instead of minutes.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where the data sets are. Default: WORLDSIZE_DATA, or the cache."),
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="local|slurm|mpi", help="Where it runs, or one of the study's places."),
]


def study_of(
    study: str,
    assignments: list[str] | None,
    workers: tuple[int, ...] | str | None,
    *,
    folder: Path | None,
    small: bool,
    data: Path | None,
    on: str | None,
    machine: Machine | None = None,
) -> Study:
    """Build the study from the options. Errors about a value name the option it came from."""
    from worldsize.spec.file import StudyFile, find_study
    from worldsize.study.study import Study

    file = StudyFile.read(find_study(study))
    if small:
        file.apply_small()
    if on is not None:
        file.move_to(on, f"--on {on}")
    for assignment in assignments or ():
        file.override_text(assignment)
    if workers is not None:
        typed = workers if isinstance(workers, str) else ",".join(map(str, workers))
        file.override("axes.workers", workers, f"--workers {typed}")
    return Study(file, folder=folder, data=data, machine=machine)


def refuse_for_tables(given: Mapping[str, object]) -> None:
    """Refuse options that need a study folder: a table has neither parts of a step nor training costs."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} needs a study folder: a table has only throughput or times; leave it out")
