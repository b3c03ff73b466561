"""Commands that plan and run a study. Each command imports what it needs, so --help is fast."""

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
    study_of,
)


def run(
    study: StudyArgument = "quickstart",
    set_: SetOption = None,
    workers: WorkersOption = None,
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
    details: Annotated[bool, typer.Option("--details", help="Print all tables and findings.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run trials again that failed before.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take over from a driver that no longer runs.")
    ] = False,
    on: OnOption = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Slurm: submit a one-minute test job first.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Slurm: submit the jobs and return.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Slurm: Ctrl-C cancels the jobs too.")] = False,
) -> None:
    """Run a study, or continue it: the same command picks up where it stopped. Alone: the built-in quickstart."""
    from worldsize.answer.evidence import Evidence
    from worldsize.report.views.answer import answer_blocks
    from worldsize.report.views.progress import watch
    from worldsize.report.write.console import console
    from worldsize.report.write.publish import last_page, report_json
    from worldsize.report.write.terminal import to_terminal
    from worldsize.study.checks import JobOptions

    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on)
    jobs = JobOptions(smoke=smoke, detach=detach, cancel=cancel)
    progress_console = console(stderr=as_json)
    try:
        with watch(the_study, progress_console, retry_failed=retry_failed) as progress:
            results = the_study.run(progress=progress, retry_failed=retry_failed, take_over=take_over, jobs=jobs)
    except KeyboardInterrupt:
        progress_console.print("stopped; finished trials are kept, the same command continues")
        raise typer.Exit(130) from None
    if detach and results.left():
        status = f"`worldsize status {the_study.folder}`"
        print(f"submitted; look with {status}, the same command without --detach follows and continues")
        raise typer.Exit(0)
    if as_json:
        print(report_json(results), end="")
    else:
        console().print(to_terminal(answer_blocks(Evidence(results), details=details)))
    if progress.ended or not (the_study.folder / "report" / "index.html").exists():
        progress_console.print(last_page(results), style="dim", soft_wrap=True)
    raise typer.Exit(1 if results.failed() else 0)


def plan(
    study: StudyArgument,
    set_: SetOption = None,
    workers: WorkersOption = None,
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    everything: Annotated[bool, typer.Option("--all", help="List every trial.")] = False,
    as_json: JsonOption = False,
    on: OnOption = None,
) -> None:
    """Show trials, launches, cost and the exact commands of a study. Runs nothing, writes nothing."""
    from dataclasses import asdict

    from worldsize.report.views.plan import plan_view
    from worldsize.report.write.console import console

    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on)
    cost = the_study.estimate()
    if as_json:
        extra = {"estimate": asdict(cost), "missing_data": the_study.missing_data()}
        print(json.dumps({**the_study.plan.model_dump(mode="json"), **extra}, indent=1))
    else:
        console().print(plan_view(the_study, cost, everything), soft_wrap=True)


def by_hand(
    study: StudyArgument,
    nodes: Annotated[int, typer.Option(min=1, help="How many hosts share the workers.")] = 2,
    hosts: Annotated[
        str, typer.Option(metavar="HOST1,HOST2", help="Their addresses; default: placeholders to fill in.")
    ] = "",
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Where they meet, on the first host.")] = 29_400,
    set_: SetOption = None,
    workers: WorkersOption = None,
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    on: OnOption = None,
) -> None:
    """Write the launches of a study and print the command for each host.

    Starts nothing. The launches are written into the study folder, which the hosts must share.
    """
    from worldsize.machine import this_machine
    from worldsize.study.by_hand import commands_by_hand, nodes_like

    machine = nodes_like(this_machine(), nodes)
    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on, machine=machine)
    for line in commands_by_hand(the_study, nodes=nodes, hosts=hosts, port=port):
        print(line)
