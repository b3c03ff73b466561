"""Commands that read a study folder without running anything: status, predict, report, compare, export, serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from worldsize.cli.arguments import (
    FolderArgument,
    JsonOption,
    amount,
    formats,
    network,
    number,
    option_type,
    refuse_for_tables,
    seconds,
    worker_counts,
)
from worldsize.errors import visible


def status(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show what a study has done, what runs now, what failed and why."""
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
    """The last trial that has begun and has no record yet."""
    begun = [trial_id for trial_id in results.left() if any(results.folder.events(trial_id))]
    return begun[-1] if begun else None


def predict(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER|TABLE.csv", help="A study folder, or a table of workers and times.")
    ],
    workers: Annotated[
        Any,
        typer.Option(
            parser=option_type(worker_counts),
            metavar="8,16,1024",
            help="Counts to ask about. Default: 2, 4 and 8 times more.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(
            parser=option_type(number),
            metavar="VALUE",
            help="Time until the test metric is this good. Default: the study's own.",
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
            help="Find the cheapest worker count that finishes in this time, e.g. 90min.",
        ),
    ] = None,
    declared_network: Annotated[
        Any,
        typer.Option(
            "--network",
            parser=option_type(network),
            metavar="NETWORK",
            help="Another network: '8 x 450GB/s 2us, 50GB/s 5us', or a preset: dgx-h100.",
        ),
    ] = None,
    workers_per_node: Annotated[
        int | None, typer.Option(min=1, help="Workers per node (default: as measured).")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch per worker (default: the recommended one).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Project to worker counts never run: throughput, time, cost, with intervals. Runs nothing.

    A table takes --workers, --workers-per-node and --json; the other options need a study folder.
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
                console().print(f"\nOn {prediction.place}", style="bold")
            goal = goal_words(results.by_place[prediction.place], prediction.question)
            console().print(to_terminal(prediction_blocks(prediction, results.facts, goal)))
        return
    from worldsize.answer.predict.table import read_table
    from worldsize.answer.predict.table_projection import further, project_table
    from worldsize.report.sections.projection import table_projection_blocks

    for_studies = {"until": until, "price": price, "budget": budget, "deadline": deadline}
    refuse_for_tables({**for_studies, "network": declared_network, "batch": batch})
    table = read_table(source, workers_per_node=workers_per_node)
    projected = project_table(table, sorted(set(workers or ())) or further(table), measured_too=not as_json)
    if as_json:
        from worldsize.answer.as_dict import plain

        print(json.dumps([plain(projection) for projection in projected], indent=1, allow_nan=False))
    else:
        console().print(to_terminal(table_projection_blocks(projected)))


def report(
    folder: FolderArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to write. Default: report in the study folder."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", hidden=True, help="Refresh the page while the study runs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a study: a page for any browser, figures and tables for papers. --json writes nothing."""
    from worldsize.answer.results import load
    from worldsize.report.write.console import console
    from worldsize.report.write.publish import publish, report_json

    results = load(folder)
    if as_json:
        print(report_json(results), end="")
        return
    made = publish(results, out, printed=not live, live=live)
    console().print(
        f"{visible(str(made.page))}: {made.size_bytes / 1e6:.1f} MB, {len(made.figures)} figures, "
        f"{len(made.tables)} tables beside it" + (f"; {made.missing}" if made.missing else ""),
        soft_wrap=True,
    )


def compare(
    baseline: Annotated[Path, typer.Argument(metavar="FOLDER", help="Baseline study folder.")],
    others: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Study folders to compare with it.")],
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write it as a page too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show by what studies differ at equal settings, and which differences are more than noise."""
    from worldsize.answer.comparison import compare_studies, to_dict
    from worldsize.report.sections.comparison import comparison_view
    from worldsize.report.write.console import console

    comparison = compare_studies(baseline, *others)
    if page is not None:
        from worldsize.report.write.publish import write_comparison

        write_comparison(comparison, page)
    if as_json:
        print(json.dumps(to_dict(comparison), indent=1, allow_nan=False))
    else:
        console().print(comparison_view(comparison))


def export(
    folder: FolderArgument,
    to: Annotated[
        Any,
        typer.Option(parser=option_type(formats), metavar="FORMATS", help="Any of csv, parquet, tensorboard, mlflow."),
    ] = "csv",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write. Default: export in the study folder.")
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Every step of every rank too, not only medians.")] = False,
) -> None:
    """Write what a study measured for the tools people already use."""
    from worldsize.answer.results import load
    from worldsize.exports.study import export_study

    for written in export_study(load(folder), to, out or folder / "export", steps=steps):
        print(visible(str(written)))


def serve(
    folder: FolderArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0 picks a free one).")] = 0,
) -> None:
    """Serve a study's report on 127.0.0.1."""
    from worldsize.report.write.serve import report_server

    with report_server(folder, port) as server:
        print(f"{server.address} shows {visible(str(server.root))}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
