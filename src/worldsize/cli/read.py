"""Commands that read studies and run nothing: status, predict, report, compare, export, serve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from worldsize.cli.arguments import (
    DataOption,
    FailOnOption,
    FolderArgument,
    JsonOption,
    SetOption,
    SmallOption,
    amount,
    formats,
    network,
    number,
    option_type,
    refuse_for_tables,
    seconds,
    study_of,
    worker_counts,
)
from worldsize.errors import InputError, visible

RUNS = Path("runs")
"""Where `worldsize run` creates study folders."""
EXIT_SLOWER = 3
"""Exit code of `compare --fail-on` when it finds a slowdown."""


def status(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="A study folder. Default: list all studies in runs/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the progress, answer and failures of a study.

    Without a folder, list all studies in runs/ with their states and answers.

    Example: worldsize status runs/quickstart
    """
    if folder is None:
        _list_studies(as_json)
    else:
        _show_study(folder, as_json)


def _list_studies(as_json: bool) -> None:
    from worldsize.report.views.overview import overview_view, studies_in
    from worldsize.report.write.console import console

    listed = studies_in(RUNS)
    if as_json:
        print(json.dumps([{**asdict(study), "state": study.state} for study in listed], indent=1))
    else:
        console().print(overview_view(listed, RUNS))


def _show_study(folder: Path, as_json: bool) -> None:
    from worldsize.answer.results import load
    from worldsize.folder.lock import lock_holder
    from worldsize.launch.slurm.status import job_statuses
    from worldsize.report.views.status import job_dicts, job_lines, status_view
    from worldsize.report.write.console import console

    results = load(folder)
    holder = lock_holder(folder)
    running = _running_trial(results) if holder else None
    jobs = job_statuses(results.folder)
    if as_json:
        run_by = holder.model_dump(mode="json") if holder else None
        document = {
            "trials": results.to_dict()["trials"],
            "running": running,
            "run_by": run_by,
            "jobs": job_dicts(jobs),
        }
        print(json.dumps(document, indent=1))
    else:
        console().print(status_view(results, running, holder))
        for line in job_lines(jobs):
            console().print(line, soft_wrap=True)


def _running_trial(results: Any) -> str | None:
    """Return the last trial that has started and has no record yet."""
    started = [trial_id for trial_id in results.left() if any(results.folder.events(trial_id))]
    return started[-1] if started else None


def predict(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|TABLE.csv", help="A study folder, or a table with worker counts and throughput or times."
        ),
    ],
    workers: Annotated[
        Any,
        typer.Option(
            parser=option_type(worker_counts),
            metavar="8,16,1024",
            help="Worker counts to predict. Default: 2, 4 and 8 times the largest that was measured.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(
            parser=option_type(number),
            metavar="VALUE",
            help="Predict the time until the test metric reaches VALUE. Default: the study's own target.",
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(parser=option_type(amount), metavar="PRICE", help="Price per worker-hour, in any currency."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            parser=option_type(amount), metavar="COST", help="Find the fastest worker count within this cost."
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            parser=option_type(seconds),
            metavar="TIME",
            help="Find the cheapest worker count that finishes within this time, e.g. 90min.",
        ),
    ] = None,
    declared_network: Annotated[
        Any,
        typer.Option(
            "--network",
            parser=option_type(network),
            metavar="NETWORK",
            help="Predict for another network, e.g. '8 x 450GB/s 2us, 50GB/s 5us', or a preset such as dgx-h100.",
        ),
    ] = None,
    workers_per_node: Annotated[int | None, typer.Option(min=1, help="Workers per node. Default: as measured.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch per worker. Default: the recommended one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict speed, time and cost for worker counts that were not run.

    For a table, only --workers, --workers-per-node and --json are available. `worldsize project` is the same command.

    Example: worldsize predict runs/quickstart --workers 8,16
    """
    from worldsize.report.write.console import console
    from worldsize.report.write.terminal import to_terminal

    if source.is_dir():
        from worldsize.answer.predict.predict import predict_study
        from worldsize.answer.results import load
        from worldsize.report.sections.projection import prediction_blocks
        from worldsize.report.words.answers import goal_words

        results = load(source)
        predictions = predict_study(
            results,
            workers or (),
            batch_per_worker=batch,
            until=until,
            price=price,
            budget=budget,
            deadline_s=deadline,
            network=declared_network,
            workers_per_node=workers_per_node,
        )
        if as_json:
            print(json.dumps([prediction.to_dict() for prediction in predictions], indent=1, allow_nan=False))
            return
        for prediction in predictions:
            if len(predictions) > 1:
                console().print(f"\nOn {visible(prediction.place)}", style="bold")
            goal = goal_words(results.by_place[prediction.place], prediction.question)
            console().print(to_terminal(prediction_blocks(prediction, results.facts, goal)))
        return
    from worldsize.answer.predict.table import read_table
    from worldsize.answer.predict.table_projection import further, project_table
    from worldsize.report.sections.projection import table_projection_blocks

    for_studies = {"until": until, "price": price, "budget": budget, "deadline": deadline}
    refuse_for_tables({**for_studies, "network": declared_network, "batch": batch})
    table = read_table(source, workers_per_node=workers_per_node)
    projections = project_table(table, sorted(set(workers or ())) or further(table), measured_too=not as_json)
    if as_json:
        from worldsize.answer.as_dict import plain

        print(json.dumps([plain(projection) for projection in projections], indent=1, allow_nan=False))
    else:
        console().print(to_terminal(table_projection_blocks(projections)))


def report(
    folder: FolderArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to write. Default: report/ in the study folder."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", hidden=True, help="Refresh the page while the study runs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a web page, figures and tables for a study.

    With --json, print the numbers and sentences of the report and write nothing.

    Example: worldsize report runs/quickstart
    """
    from worldsize.answer.results import load
    from worldsize.report.words.numbers import byte_size, counted
    from worldsize.report.write.console import console
    from worldsize.report.write.publish import publish, report_json

    results = load(folder)
    if as_json:
        print(report_json(results), end="")
        return
    published = publish(results, out, printed=not live, live=live)
    console().print(
        f"Report: {visible(str(published.page))} ({byte_size(published.size_bytes)}, "
        f"{counted(len(published.figures), 'figure')}, {counted(len(published.tables), 'table')})"
        + (f"; {published.missing}" if published.missing else ""),
        soft_wrap=True,
    )


def compare(
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="The study folder to compare with. With --runs: a study file.")
    ],
    others: Annotated[
        list[Path], typer.Argument(metavar="FOLDER", help="The study folders to compare. With --runs: one study file.")
    ],
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the comparison as a web page.")
    ] = None,
    fail_on: FailOnOption = None,
    runs: Annotated[bool, typer.Option("--runs", help="Run two studies first, launch by launch in turn.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder for the results of --runs. Default: runs.")
    ] = None,
    set_: SetOption = None,
    small: SmallOption = False,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare studies, and show which differences are more than noise.

    Studies are compared at the settings that they share. With --runs, BASELINE and FOLDER are two studies, which run
    in turn before they are compared; the same command continues them. --dir, --set, --small and --data need --runs.

    Exit codes: 0 not slower, or --fail-on cannot tell; 1 a trial of --runs failed; 2 wrong input; 3 slower, with
    --fail-on; 130 stopped.

    Example: worldsize compare runs/before runs/after --fail-on slower:5%

    Example: worldsize compare --runs before.yaml after.yaml --fail-on slower
    """
    from worldsize.answer.comparison import compare_studies, to_dict
    from worldsize.report.sections.comparison import comparison_view
    from worldsize.report.words.gate import gate_document
    from worldsize.report.write.console import console

    studies: list[Any] = [baseline, *others]
    command: list[str] = []
    if runs:
        command = ["worldsize", "compare", "--runs", *map(str, studies), *(["--small"] if small else [])]
        command += ["--data", str(data)] if data else []
        command += [] if fail_on is None else ["--fail-on", f"slower:{fail_on * 100:g}%" if fail_on else "slower"]
        command += [word for assignment in set_ or () for word in ("--set", assignment)]
        studies = _run_in_turn(studies, set_, folder or RUNS, small=small, data=data, as_json=as_json)
    else:
        _refuse_without_runs({"--dir": folder, "--set": set_, "--small": small, "--data": data})
    comparison = replace(compare_studies(*studies, allowed_slowdown=fail_on), command=tuple(command))
    if page is not None:
        from worldsize.report.write.publish import write_comparison

        write_comparison(comparison, page)
    if as_json:
        document = to_dict(comparison)
        if comparison.gate is not None:
            document["gate"] |= gate_document(comparison, comparison.gate)
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        console().print(comparison_view(comparison))
    if comparison.gate is not None and comparison.gate.verdict == "slower":
        raise typer.Exit(EXIT_SLOWER)
    raise typer.Exit(1 if runs and any(results.failed() for results in studies) else 0)


def _run_in_turn(
    given: list[Path], set_: list[str] | None, parent: Path, *, small: bool, data: Path | None, as_json: bool
) -> list[Any]:
    """Run two studies side by side, in the folders A-NAME and B-NAME, and return their results."""
    from worldsize.report.views.side_by_side import TurnProgress
    from worldsize.report.write.console import console
    from worldsize.study.side_by_side import run_side_by_side

    if len(given) != 2:
        raise InputError(f"--runs was given {len(given)} studies, but takes turns between two; give two studies")
    studies = []
    for name, source in zip("AB", given, strict=True):
        study = study_of(str(source), set_, None, folder=None, small=small, data=data, on=None)
        study.folder = parent / f"{name}-{study.spec.name}"
        studies.append(study)
    shown = console(stderr=as_json)
    try:
        progress = [TurnProgress(shown, name, study) for name, study in zip("AB", studies, strict=True)]
        return run_side_by_side(studies, progress)
    except KeyboardInterrupt:
        shown.print("Stopped. Finished trials are kept; the same command continues both studies.")
        raise typer.Exit(130) from None


def _refuse_without_runs(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise InputError(f"{name} is for studies that --runs runs; add --runs, or leave {name} out")


def export(
    folder: FolderArgument,
    to: Annotated[
        Any,
        typer.Option(
            parser=option_type(formats),
            metavar="FORMATS",
            help="Any of csv, parquet, tensorboard and mlflow, separated by commas.",
        ),
    ] = "csv",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write. Default: export/ in the study folder.")
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Include every step of every worker, not only medians.")
    ] = False,
) -> None:
    """Export a study to CSV, Parquet, TensorBoard or MLflow.

    Example: worldsize export runs/quickstart --to csv,tensorboard
    """
    from worldsize.answer.results import load
    from worldsize.exports.study import export_study

    for path in export_study(load(folder), to, out or folder / "export", steps=steps):
        print(visible(str(path)))


def serve(
    folder: FolderArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
) -> None:
    """Serve the report of a study to a browser on this machine.

    The server listens only on 127.0.0.1 and can only read the report.

    Example: worldsize serve runs/quickstart --port 8000
    """
    from worldsize.report.write.serve import report_server

    with report_server(folder, port) as server:
        print(f"{server.address} serves {visible(str(server.root))}; press Ctrl-C to stop", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("Stopped")
