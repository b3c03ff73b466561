"""The command line: parse, call study.py, print. Whatever a command needs is imported inside it, so --help is quick."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from worldsize import __version__
from worldsize.cli_results import FolderArgument, JsonOption, add_commands
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


@app.command()
def run(
    study: StudyArgument = "quickstart",
    set_: SetOption = None,
    workers: WorkersOption = "",
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run trials again that failed before.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Ignore the lock of another driver that is known to be gone.")
    ] = False,
    on: OnOption = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Slurm: a job of a minute first, to see that it works.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Slurm: submit the jobs and return.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Slurm: Ctrl-C cancels the jobs too.")] = False,
) -> None:
    """Run a study, or continue it: the same command picks up where it stopped. Alone: the built-in quickstart."""
    from worldsize.report.live import LivePage, last_page
    from worldsize.report.progress import StudyProgress
    from worldsize.report.terminal import answer_view, console
    from worldsize.results import load
    from worldsize.study import Study

    _use_data(data)
    the_study = Study.from_file(study, _assignments(set_, workers), small=small, on=on)
    home = folder or the_study.default_folder
    before = load(home) if (home / "study.yaml").exists() else None
    records = before.records.values() if before else ()
    finished = {record.trial for record in records if not (retry_failed and record.outcome == "failed")}
    progress_console = console(stderr=as_json)
    try:
        known = before.step_s() if before else {}
        plan = before.plan if before else the_study.plan()  # a search may have added to it
        with StudyProgress(progress_console, plan, the_study.facts, finished, known) as shown:
            progress = LivePage(shown, home, the_study.machines, the_study.elsewhere)
            try:
                results = the_study.run(
                    home,
                    progress=progress,
                    retry_failed=retry_failed,
                    take_over=take_over,
                    smoke=smoke,
                    detach=detach,
                    cancel=cancel,
                )
            finally:
                progress.close()
    except KeyboardInterrupt:
        progress_console.print("stopped; finished trials are kept, the same command continues")
        raise typer.Exit(130) from None
    if detach and results.left():
        print(
            f"submitted; look with `worldsize status {home}`, the same command without --detach follows and continues"
        )
        raise typer.Exit(0)
    if as_json:
        print(json.dumps(results.to_dict(), indent=1, allow_nan=False))
    else:
        console().print(answer_view(results))
    if len(finished) < len(results.records) or not (home / "report" / "index.html").exists():
        progress_console.print(last_page(results), style="dim", soft_wrap=True)
    raise typer.Exit(1 if results.failed() else 0)


@app.command()
def plan(
    study: StudyArgument,
    set_: SetOption = None,
    workers: WorkersOption = "",
    small: SmallOption = False,
    data: DataOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Name every trial.")] = False,
    as_json: JsonOption = False,
    on: OnOption = None,
) -> None:
    """Show trials, launches, cost and the exact commands of a study. Runs nothing, writes nothing."""
    from dataclasses import asdict

    from worldsize.report.terminal import console, plan_view
    from worldsize.study import Study

    _use_data(data)
    the_study = Study.from_file(study, _assignments(set_, workers), small=small, on=on)
    cost = the_study.estimate()
    if as_json:
        told = {"estimate": asdict(cost), "missing_data": the_study.missing_data()}
        print(json.dumps({**the_study.plan().to_dict(), **told}, indent=1))
    else:
        console().print(plan_view(the_study, cost, everything), soft_wrap=True)


@app.command()
def status(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show what a study has done, what runs now, what failed and why."""
    from worldsize.launch.slurm_status import job_statuses
    from worldsize.lock import lock_holder
    from worldsize.report.jobs import job_dicts, job_lines
    from worldsize.report.terminal import console, status_view
    from worldsize.results import load

    results = load(folder)
    holder = lock_holder(folder)
    running = _running_trial(results) if holder else None
    jobs = job_statuses(results.folder)
    if as_json:
        told = {"trials": results.to_dict()["trials"], "running": running, "run_by": holder, "jobs": job_dicts(jobs)}
        print(json.dumps(told, indent=1))
    else:
        console().print(status_view(results, running, holder))
        for line in job_lines(jobs):
            console().print(line, soft_wrap=True)


@app.command("worker-command")
def worker_command(
    study: StudyArgument,
    nodes: Annotated[int, typer.Option(min=1, help="How many hosts share the workers.")] = 2,
    hosts: Annotated[str, typer.Option(metavar="A,B", help="Their addresses; default: placeholders to fill in.")] = "",
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Where they meet, on the first host.")] = 29_400,
    set_: SetOption = None,
    workers: WorkersOption = "",
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    on: OnOption = None,
) -> None:
    """Prepare launches to be started by hand, and print the command for each host. Runs nothing."""
    from worldsize.by_hand import commands_by_hand, nodes_like
    from worldsize.machine import this_machine
    from worldsize.study import Study

    _use_data(data)
    machine = nodes_like(this_machine(), nodes)
    the_study = Study.from_file(study, _assignments(set_, workers), machine, small=small, on=on)
    home = folder or the_study.default_folder
    for line in commands_by_hand(the_study, home, nodes=nodes, hosts=hosts, port=port):
        print(line)


@app.command()
def studies() -> None:
    """List the built-in studies."""
    from worldsize.report.terminal import console
    from worldsize.studyfile import builtin_studies

    for name, path in builtin_studies().items():
        about = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        console().print(f"{name:20} {about}", soft_wrap=True)


@app.command()
def new(name: Annotated[str, typer.Argument(help="A built-in study to copy.")]) -> None:
    """Copy a built-in study into this folder, to edit."""
    from worldsize.errors import OutputError
    from worldsize.studyfile import find_study

    source, target = find_study(name), Path(f"{Path(name).stem}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise OutputError(f"{target} already exists; rename or remove it first") from None
    print(f"{target}: edit it, then `worldsize run {target}`")


@data_app.command("list")
def data_list(data: DataOption = None) -> None:
    """List the data sets that can be fetched, and which are here."""
    from worldsize.data.sets import data_root, status
    from worldsize.report.terminal import console, data_view

    console().print(data_view(status(data_root(data)), data_root(data)), soft_wrap=True)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10")], data: DataOption = None
) -> None:
    """Download a data set once, with its checksums; a broken download continues where it stopped."""
    from worldsize.data.fetch import fetch
    from worldsize.data.sets import data_root, dataset_named
    from worldsize.report.progress import DownloadProgress
    from worldsize.report.terminal import console

    root = data_root(data)
    with DownloadProgress(console()) as progress:
        fetch(dataset_named(name), root, progress)
    console().print(f"{name} is in {root}", soft_wrap=True)


add_commands(app)


def _use_data(folder: Path | None) -> None:
    """For this process and the workers it starts."""
    if folder is not None:
        os.environ["WORLDSIZE_DATA"] = str(folder.absolute())


def _assignments(set_: list[str] | None, workers: str) -> list[str]:
    if workers == "auto":
        return [*(set_ or ()), "axes.workers=auto"]
    return [*(set_ or ()), *([f"axes.workers=[{workers}]"] if workers else [])]


def _running_trial(results: Any) -> str | None:
    """The last trial that has begun and has no record."""
    begun = [trial_id for trial_id in results.left() if any(results.folder.events(trial_id))]
    return begun[-1] if begun else None


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


def main() -> None:
    """Errors that a user can mend are one line and an exit code; a terminated driver stops as on Ctrl-C."""
    # Not what SIGINT does: a driver started in the background ignores that, and must not ignore this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except WorldsizeError as error:
        print(f"worldsize: {visible(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        else:  # a full disk, a folder that may not be written to: what is finished is kept
            print(f"worldsize: {visible(str(error))}; mend that, then the same command continues", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
