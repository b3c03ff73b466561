"""The commands that plan and run a study. Whatever a command needs is imported inside it, so --help is quick."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from worldsize.cli.arguments import (
    DataOption,
    DirOption,
    JsonOption,
    OnOption,
    SetOption,
    SmallOption,
    StudyArgument,
    WorkersOption,
    assignments,
    use_data,
)


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
    from worldsize.answer.results import load
    from worldsize.report.views.progress import StudyProgress
    from worldsize.report.write.console import console
    from worldsize.report.write.publish import LivePage, last_page
    from worldsize.report.write.terminal import answer_view
    from worldsize.study.study import Study, runs_again

    use_data(data)
    the_study = Study.from_file(study, assignments(set_, workers), small=small, on=on)
    home = folder or the_study.default_folder
    before = load(home) if (home / "study.yaml").exists() else None
    records = before.records.values() if before else ()
    finished = {record.trial for record in records if not (retry_failed and runs_again(record))}
    progress_console = console(stderr=as_json)
    try:
        known = before.step_s() if before else {}
        plan = before.plan if before else the_study.plan()  # a search may have added to it
        with StudyProgress(progress_console, plan, the_study.facts, finished, known) as shown:
            progress = LivePage(shown, home, the_study.sites)
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


def plan(
    study: StudyArgument,
    set_: SetOption = None,
    workers: WorkersOption = "",
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Name every trial.")] = False,
    as_json: JsonOption = False,
    on: OnOption = None,
) -> None:
    """Show trials, launches, cost and the exact commands of a study. Runs nothing, writes nothing."""
    from dataclasses import asdict

    from worldsize.report.views.plan import plan_view
    from worldsize.report.write.console import console
    from worldsize.study.study import Study

    use_data(data)
    the_study = Study.from_file(study, assignments(set_, workers), small=small, on=on)
    home = folder or the_study.default_folder
    cost = the_study.estimate(home)
    if as_json:
        told = {"estimate": asdict(cost), "missing_data": the_study.missing_data()}
        print(json.dumps({**the_study.plan().model_dump(mode="json"), **told}, indent=1))
    else:
        console().print(plan_view(the_study, home, cost, everything), soft_wrap=True)


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
    from worldsize.machine import this_machine
    from worldsize.study.by_hand import commands_by_hand, nodes_like
    from worldsize.study.study import Study

    use_data(data)
    machine = nodes_like(this_machine(), nodes)
    the_study = Study.from_file(study, assignments(set_, workers), machine, small=small, on=on)
    home = folder or the_study.default_folder
    for line in commands_by_hand(the_study, home, nodes=nodes, hosts=hosts, port=port):
        print(line)
