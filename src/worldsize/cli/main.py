"""The command line: parse, call study/study.py, print. Each command imports what it needs, so --help is fast."""

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
    help="How many GPUs should train this model, with which batch and rate, how long will it take, "
    "and why does it not scale further?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

data_app = typer.Typer(help="Data sets: list them, fetch one.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def studies(as_json: JsonOption = False) -> None:
    """List the built-in studies."""
    from worldsize.report.write.console import console
    from worldsize.spec.file import builtin_studies

    about = {
        name: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        for name, path in builtin_studies().items()
    }
    if as_json:
        print(json.dumps([{"name": name, "about": text} for name, text in about.items()], indent=1))
        return
    for name, text in about.items():
        console().print(f"{name:20} {text}", soft_wrap=True)


def new(name: Annotated[str, typer.Argument(help="A built-in study to copy.")]) -> None:
    """Copy a built-in study into this folder, to edit."""
    from worldsize.errors import OutputError
    from worldsize.spec.file import find_study

    source, target = find_study(name), Path(f"{Path(name).stem}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise OutputError(f"{target} already exists; rename or remove it first") from None
    print(f"{target}: edit it, then `worldsize run {target}`")


@data_app.command("list")
def data_list(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the data sets that can be fetched, and which are here."""
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
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10")], data: DataOption = None
) -> None:
    """Download a data set once, with its checksums; a broken download continues where it stopped."""
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


def _version(wanted: bool) -> None:
    if wanted:
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
    """Run the command line. Errors that users can fix become one line and an exit code; SIGTERM acts like Ctrl-C."""
    # Not the current SIGINT handler: a driver started in the background ignores SIGINT, but must not ignore SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except SystemExit as left:
        words = {word.partition("=")[0] for word in sys.argv[1:]} if left.code == WorldsizeError.exit_code else set()
        for word in sorted(words & RENAMED.keys()):
            print(f"worldsize: {word} is now called {RENAMED[word]}", file=sys.stderr)
        raise
    except WorldsizeError as error:
        print(f"worldsize: {visible(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:  # a full disk, or a folder without write permission: finished trials are kept
            print(f"worldsize: {visible(str(error))}; fix that, then the same command continues", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
