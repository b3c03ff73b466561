"""The command line. Commands import what they need when they run, so that --help is fast."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from worldsize import __version__
from worldsize.cli.arguments import DataOption, JsonOption
from worldsize.cli.read import compare, export, predict, report, serve, status
from worldsize.cli.run import by_hand, plan, run
from worldsize.errors import WorldsizeError, visible

app = typer.Typer(
    name="worldsize",
    help="Find out how many GPUs should train a model, with which batch and learning rate, how long it takes, and what "
    "limits scaling.\n\nExample: worldsize run (measures a small built-in study on this machine)",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

data_app = typer.Typer(
    help="List or download data sets.\n\nExample: worldsize data list", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")


def studies(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the built-in studies.

    This shows whether each study can run on this machine, and how long it would take.

    Example: worldsize studies
    """
    from dataclasses import asdict

    from worldsize.data.sets import data_root
    from worldsize.machine import this_machine
    from worldsize.report.views.studies import studies_view
    from worldsize.report.write.console import console
    from worldsize.study.builtin import builtin_on

    listed = builtin_on(this_machine(), data_root(data))
    if as_json:
        print(json.dumps([asdict(study) for study in listed], indent=1))
    else:
        console().print(studies_view(listed))


def new(name: Annotated[str, typer.Argument(metavar="STUDY", help="Name of the built-in study to copy.")]) -> None:
    """Copy a built-in study into the current folder for editing.

    Example: worldsize new mnist-scaling
    """
    from worldsize.errors import OutputError
    from worldsize.spec.file import find_study

    source, target = find_study(name), Path(f"{Path(name).stem}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise OutputError(f"{target} already exists; rename or remove it first") from None
    print(f"Created {target}. Edit it, then run `worldsize run {target}`.")


@data_app.command("list")
def data_list(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the available data sets and which are on this machine.

    Example: worldsize data list
    """
    from dataclasses import asdict

    from worldsize.data.sets import data_root, status
    from worldsize.report.views.status import data_view
    from worldsize.report.write.console import console

    root = data_root(data)
    if as_json:
        print(json.dumps({"folder": str(root), "data_sets": [asdict(row) for row in status(root)]}, indent=1))
    else:
        console().print(data_view(status(root), root), soft_wrap=True)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set: mnist, fashion-mnist or cifar10.")],
    data: DataOption = None,
) -> None:
    """Download a data set and verify its checksums.

    An interrupted download continues where it stopped.

    Example: worldsize data fetch mnist
    """
    from worldsize.data.fetch import fetch
    from worldsize.data.sets import data_root, dataset_named
    from worldsize.report.views.progress import DownloadProgress
    from worldsize.report.write.console import console

    root = data_root(data)
    with DownloadProgress(console()) as progress:
        fetch(dataset_named(name), root, progress)
    console().print(f"{name} is in {root}", soft_wrap=True)


for command in (run, plan, status, by_hand, studies, new, predict, report, compare, export, serve):
    app.command()(command)
app.command("project", hidden=True)(predict)  # the same under another name


def _version(requested: bool) -> None:
    if requested:
        print(f"worldsize {__version__}")
        raise typer.Exit


@app.callback()
def _callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


RENAMED = {"worker-command": "by-hand", "--target": "--until"}
"""Former names of commands and options."""


def main() -> None:
    """Run the command line. Errors that users can fix become one message and an exit code; SIGTERM acts like Ctrl-C."""
    # Not the current handler of SIGINT: a driver in the background ignores SIGINT, but must not ignore SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except SystemExit as leaving:
        is_usage_error = leaving.code == WorldsizeError.exit_code
        words = {word.partition("=")[0] for word in sys.argv[1:]} if is_usage_error else set()
        for word in sorted(words & RENAMED.keys()):
            print(f"error: {word} is now called {RENAMED[word]}", file=sys.stderr)
        raise
    except WorldsizeError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:  # such as a full disk, or a folder without write permission; finished trials are kept
            print(f"error: {visible(str(error))}; fix that, then run the same command to continue", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
