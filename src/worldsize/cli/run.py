"""Commands that plan and run studies. They import what they need when they run, so that --help is fast."""

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
    command_that_fits,
    seconds,
    study_of,
)
from worldsize.errors import InputError, Problem


def run(
    study: StudyArgument = "quickstart",
    set_: SetOption = None,
    workers: WorkersOption = None,
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
    details: Annotated[bool, typer.Option("--details", help="Print all tables and findings.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take over a study whose lock is held by a process that is gone.")
    ] = False,
    more_s: Annotated[
        float | None,
        typer.Option(
            "--time",
            metavar="40s",
            parser=seconds,
            help="Afterwards, measure for about this long to decide a close call.",
        ),
    ] = None,
    on: OnOption = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Slurm: submit a test job of one minute first.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Slurm: submit the jobs and exit.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Slurm: also cancel the jobs on Ctrl-C.")] = False,
) -> None:
    """Run a study and print its answer. The same command continues a study that was stopped.

    Without STUDY, run the built-in quickstart.

    Example: worldsize run study.yaml --set train.epochs=2
    """
    from worldsize.answer.evidence import Evidence
    from worldsize.report.views.answer import answer_blocks
    from worldsize.report.views.plan import left_out_words
    from worldsize.report.views.progress import watch
    from worldsize.report.write.console import console
    from worldsize.report.write.publish import last_page, report_json
    from worldsize.report.write.terminal import to_terminal
    from worldsize.study.checks import JobOptions

    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on)
    if the_study.lacks:
        command = command_that_fits(the_study, study, set_, folder=folder, small=small, data=data, on=on)
        hint = [Problem(f"this would run here: {command}")] if command else []
        raise InputError([*the_study.lacks, *hint])
    jobs = JobOptions(smoke=smoke, detach=detach, cancel=cancel)
    progress_console = console(stderr=as_json)
    if note := left_out_words(the_study):
        progress_console.print(note, style="dim")
    try:
        with watch(the_study, progress_console, retry_failed=retry_failed) as progress:
            results = the_study.run(
                progress=progress, retry_failed=retry_failed, take_over=take_over, jobs=jobs, more_s=more_s
            )
    except KeyboardInterrupt:
        progress_console.print("Stopped. Finished trials are kept; the same command continues the study.")
        raise typer.Exit(130) from None
    if detach and results.left():
        status = f"`worldsize status {the_study.folder}`"
        print(f"Submitted. {status} shows the progress; the same command without --detach follows the jobs.")
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
    """Show what a study would run and cost, without running anything.

    The output lists the trials, the launches and their exact commands, and the estimated time.

    Example: worldsize plan study.yaml --workers 1,2,4
    """
    from dataclasses import asdict

    from worldsize.report.views.plan import plan_view
    from worldsize.report.write.console import console

    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on)
    command = command_that_fits(the_study, study, set_, folder=folder, small=small, data=data, on=on)
    cost = the_study.estimate()
    if as_json:
        extra = {
            "estimate": asdict(cost),
            "missing_data": the_study.missing_data(),
            "lacks": [str(problem) for problem in the_study.lacks],
            "command_that_fits": command,
            "left_out_workers": the_study.left_out,
        }
        print(json.dumps({**the_study.plan.model_dump(mode="json"), **extra}, indent=1))
    else:
        console().print(plan_view(the_study, cost, everything, command), soft_wrap=True)


def by_hand(
    study: StudyArgument,
    nodes: Annotated[int, typer.Option(min=1, help="Number of hosts that share the workers.")] = 2,
    hosts: Annotated[
        str, typer.Option(metavar="HOST1,HOST2", help="Addresses of the hosts. Default: placeholders to fill in.")
    ] = "",
    port: Annotated[
        int, typer.Option(min=1024, max=65535, help="Port on the first host where the workers connect.")
    ] = 29_400,
    set_: SetOption = None,
    workers: WorkersOption = None,
    folder: DirOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    on: OnOption = None,
) -> None:
    """Print the commands that start a study by hand on each host.

    This writes the launches into the study folder, which the hosts must share, and starts nothing.

    Example: worldsize by-hand study.yaml --nodes 2 --hosts 10.0.0.1,10.0.0.2
    """
    from worldsize.machine import this_machine
    from worldsize.study.by_hand import commands_by_hand, nodes_like

    machine = nodes_like(this_machine(), nodes)
    the_study = study_of(study, set_, workers, folder=folder, small=small, data=data, on=on, machine=machine)
    for line in commands_by_hand(the_study, nodes=nodes, hosts=hosts, port=port):
        print(line)
