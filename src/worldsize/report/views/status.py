"""Status in the terminal: of one study, of all studies in a folder, of data sets, and of Slurm jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.answer.results import Results
from worldsize.data.sets import DataSetStatus
from worldsize.errors import visible
from worldsize.folder.lock import LockFile
from worldsize.folder.record import Outcome, TrialRecord
from worldsize.launch.slurm.status import JobStatus
from worldsize.report.sections.opening import cautions
from worldsize.report.words.headline import headline
from worldsize.report.words.numbers import byte_size, counted, duration
from worldsize.report.write.console import plain_table


def status_view(results: Results, running: str | None, holder: LockFile | None) -> Group:
    """Show how many trials have ended and how, which one is running, the answer so far, and why trials failed."""
    outcomes = Counter(record.outcome for record in results.records.values())
    left = len(results.left()) - (1 if running else 0) - len(results.damaged)
    counts = [f"{outcomes['finished']} finished"]
    kinds: tuple[Outcome, ...] = ("plateaued", "stopped", "diverged", "out_of_memory", "failed")
    counts += [f"{outcomes[kind]} {kind.replace('_', ' ')}" for kind in kinds if outcomes[kind]]
    counts += [f"{len(results.damaged)} damaged"] if results.damaged else []
    counts += ["1 running"] if running else []
    parts: list[Any] = [
        Text.assemble(
            (results.spec.name, "bold"), f": {', '.join([*counts, f'{left} left'])} of {len(results.trials)}"
        ),
    ]
    if results.rows or results.largest:
        parts += [
            Text(prose.text) for prose in headline(results, None) if prose.role in ("answer", "doubt", "evidence")
        ]
    for place, place_results in results.by_place.items():
        lead = f"On {place}: " if len(results.by_place) > 1 else ""
        parts += [Text(lead + caution["text"], style="yellow") for caution in cautions(place_results)]
    if holder:
        now = f"; now running {running}" if running else ""
        parts.append(Text(f"Run by process {holder.pid} on {holder.host}{now}"))
    seen: set[str] = set()
    for record in results.failed():
        error = record.failure.error if record.failure else ""
        parts.append(failure_view(record, log=error not in seen))
        seen.add(error)
    for trial_id in results.damaged:
        parts.append(Text(f"{trial_id}: the record is damaged; the next run keeps it aside and runs the trial again"))
    return Group(*parts)


def failure_view(record: TrialRecord, *, log: bool = True) -> Text:
    """Show why a trial failed, with the end of its log."""
    assert record.failure is not None
    failure = record.failure
    where = f"rank {failure.rank}" if failure.rank is not None else "rank unknown"
    step = f", after step {failure.step}" if failure.step is not None else ""
    first_line = visible(failure.error).partition("\n")[0]
    text = Text.assemble((f"{record.trial} failed", "bold red"), f" ({where}{step}): {first_line}")
    for line in failure.log[-5:] if log else ():
        text.append(f"\n    {visible(line)}", style="dim")
    return text


def data_view(rows: list[DataSetStatus], root: Path) -> Group:
    """Show which data sets exist and which are on this machine."""
    table = plain_table(gap=2)
    for header in ("name", "status", "size", "contents", "license"):
        table.add_column(header, justify="right" if header == "size" else "left", overflow="fold")
    for row in rows:
        table.add_row(row.name, row.state, byte_size(row.size_bytes), row.title, row.license)
    hint = f"Folder: {visible(str(root))}. `worldsize data fetch NAME` downloads a data set."
    return Group(table, Text(hint, style="dim"))


def job_lines(jobs: list[JobStatus]) -> list[Text]:
    """Return one line per open job and per ended job that had a problem, then the total waiting time."""
    lines = [Text(_job_line(job)) for job in jobs if job.open or job.reason or job.attempts > 1]
    waits = [job.queued_s for job in jobs if job.queued_s is not None]
    if waits:
        total, longest = duration(sum(waits)), duration(max(waits))
        lines.append(Text(f"{counted(len(jobs), 'job')}: {total} in the queue in total, at most {longest} per job"))
    return lines


def _job_line(job: JobStatus) -> str:
    line = f"{visible(job.launch)}: job {job.id or '(no id yet)'} {job.state.lower()}"
    line += f" ({visible(job.why)})" if job.why else ""
    line += f" on {visible(job.nodes)}" if job.nodes and job.open else ""
    line += f", {job.reason}" if job.reason else ""
    line += f", attempt {job.attempts}" if job.attempts > 1 else ""
    return line


def job_dicts(jobs: list[JobStatus]) -> list[dict[str, Any]]:
    """Return jobs as plain dicts, for `--json`."""
    return [asdict(job) for job in jobs]
