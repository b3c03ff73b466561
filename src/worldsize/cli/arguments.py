"""Arguments and options of the command line, and parsers for their values."""

from __future__ import annotations

import json
import math
import re
import shlex
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
    """Return a parser for `typer.Option(parser=...)` whose errors name the option."""

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
    """Parse worker counts, or the word `auto`."""
    return text if text == "auto" else worker_counts(text)


def seconds(text: str) -> float:
    """Parse a duration such as `90 min`, `1h30min` or `2d`."""
    parts = DURATION_PART.findall(text.strip())
    if not parts or DURATION_PART.sub("", text).strip() or not sum(float(number) for number, _ in parts):
        raise InputError(f"{text!r} is not a duration; write something like 45s, 90min, 1h30min or 2d")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def number(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a finite number; write something like 2.5")
    return value


def amount(text: str) -> float:
    """Parse an amount of money."""
    if (value := number(text)) < 0:
        raise InputError(f"{text!r} is negative; write 0 or more")
    return value


def slowdown(text: str) -> float:
    """Parse `slower` or `slower:5%`, and return the slowdown that is allowed as a share."""
    parsed = re.fullmatch(r"slower(?::([0-9]{1,6}(?:\.[0-9]{1,6})?) ?%)?", text.strip())
    if parsed is None:
        raise InputError(f"{text!r} is not a rule; write slower, or slower:5% to allow 5 % more time per step")
    return float(parsed[1] or 0) / 100


def network(text: str) -> Network:
    """Parse the description of a network, or the name of a preset."""
    from worldsize.answer.predict.question import parse_network

    return parse_network(text)


def formats(text: str) -> tuple[str, ...]:
    """Parse export formats such as `csv,mlflow`."""
    from worldsize.exports.study import check_formats

    return check_formats(text)


FailOnOption = Annotated[
    Any,
    typer.Option(
        "--fail-on",
        parser=option_type(slowdown),
        metavar="slower[:5%]",
        help="Exit with code 3 if any setting is slower than in BASELINE, or slower by more than this.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="A study folder.")]
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A study file, or the name of a built-in study.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Change a field of the study, e.g. --set train.epochs=2. Repeatable."
    ),
]
WorkersOption = Annotated[
    Any,
    typer.Option(
        parser=option_type(counts_or_auto),
        metavar="1,2,4",
        help="Worker counts to measure, or auto: 1, 2, 4, ... up to the size of the machine.",
        show_default=False,
    ),
]
DirOption = Annotated[
    Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder for the results. Default: runs/NAME.")
]
SmallOption = Annotated[
    bool, typer.Option("--small", help="Run the small version of the study, in seconds instead of minutes.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Folder with the data sets. Default: the environment variable WORLDSIZE_DATA, or the user's cache.",
    ),
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="local|slurm|mpi", help="Where to run: one of these, or a place named in the study."),
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
    """Build the study from the options. Errors name the option that a value came from."""
    from worldsize.spec.file import StudyFile, find_study, is_study_folder
    from worldsize.study.study import Study

    if folder is None and is_study_folder(study):
        folder = Path(study)

    file = StudyFile.read(find_study(study))
    if small:
        file.apply_small()
    if on is not None:
        file.move_to(on, f"--on {on}")
    for assignment in assignments or ():
        file.override_text(assignment)
    if workers is not None:
        argument = workers if isinstance(workers, str) else ",".join(map(str, workers))
        file.override("axes.workers", workers, f"--workers {argument}")
    return Study(file, folder=folder, data=data, machine=machine)


def command_that_fits(
    the_study: Study,
    study: str,
    assignments: list[str] | None,
    *,
    folder: Path | None,
    small: bool,
    data: Path | None,
    on: str | None,
) -> str:
    """Return the command that runs the study on a machine that lacks something for it; empty if none is known."""
    if not the_study.runs_here_with:
        return ""
    words = ["worldsize", "run", study, *(["--small"] if small else []), *(["--on", on] if on else [])]
    for assignment in assignments or ():
        if assignment.partition("=")[0].strip() not in the_study.runs_here_with:
            words += ["--set", assignment]
    for key, value in the_study.runs_here_with.items():
        if key == "axes.workers":
            words += ["--workers", ",".join(map(str, value))]
        else:
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    words += ["--dir", str(folder)] if folder else []
    words += ["--data", str(data)] if data else []
    return shlex.join(words)


def refuse_for_tables(given: Mapping[str, object]) -> None:
    """Raise InputError for options that need a study folder. A table has neither parts of a step nor training costs."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} needs a study folder; a table has only throughput or times, so leave it out")
