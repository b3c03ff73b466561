"""Write the report of a study: the page, report.json, figures and tables.

While a study runs, a separate process with low priority updates the page as trials end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsize.answer.comparison import StudyComparison
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, as_results
from worldsize.errors import OutputError, ReportError, visible
from worldsize.folder.files import write_atomic
from worldsize.folder.record import TrialRecord
from worldsize.launch.target import Progress
from worldsize.plan.grid import Site
from worldsize.plan.plan import Plan
from worldsize.report.blocks import Report, Table
from worldsize.report.document import Document, document
from worldsize.report.figures.model import Figure
from worldsize.report.pages import study_report
from worldsize.report.sections.comparison import comparison_report
from worldsize.report.write.page import to_page
from worldsize.report.write.tables import to_csv, to_latex, to_markdown
from worldsize.report.write.written import write_files
from worldsize.spec.study import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a report consists of."""

    page: Path
    figures: tuple[str, ...]
    """Keys of all figures."""
    tables: tuple[str, ...]
    """Keys of all tables, which are also their file names."""
    size_bytes: int
    """Size of the page."""
    missing: str = ""
    """What could not be written, and how to fix that."""


def publish(results: Results, folder: Path | None = None, *, printed: bool = True, live: bool = False) -> Published:
    """Write the report into `folder` (default: `report` in the study folder).

    Only files that an earlier report wrote are replaced or removed. `printed`: also write figures for print, which take
    most of the time. `live`: the study is still running.
    """
    return publish_evidence(Evidence(results), folder or results.folder.path / "report", printed=printed, live=live)


def write_report(study: Results | Path | str, folder: Path | str | None = None, *, print_figures: bool = True) -> Path:
    """Write the report of a study and return the path of its page.

    `study`: results, or a study folder. `folder`: where to write (default: `report` in the study folder).
    `print_figures`: also write figures for print, which take most of the time.
    """
    return publish(as_results(study), None if folder is None else Path(folder), printed=print_figures).page


def publish_evidence(evidence: Evidence, folder: Path, *, printed: bool = True, live: bool = False) -> Published:
    """Write the report of a study from evidence that is already there."""
    return write_pages(study_report(evidence, live=live), document(evidence), folder, printed=printed, live=live)


def write_pages(
    report: Report, numbers: Document, folder: Path, *, printed: bool = True, live: bool = False
) -> Published:
    """Write the page of a report, `numbers` as report.json, and its figures and tables as files."""
    figures, tables = report.all(Figure), report.all(Table)
    render, missing = _figure_renderer() if printed else (None, "")
    page = to_page(report, print_files=render is not None, live=live).encode()
    files = {"report.json": to_json(numbers).encode(), "index.html": page}
    if render is not None:
        for figure in figures:
            files |= {f"figures/{name}": image for name, image in render(figure).items()}
    for table in tables:
        for ending, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
            files[f"tables/{table.key}.{ending}"] = write(table).encode()
    write_files(folder, files, last="index.html")  # when all files that the page links to exist
    return Published(
        page=folder / "index.html",
        figures=tuple(figure.key for figure in figures),
        tables=tuple(table.key for table in tables),
        size_bytes=len(page),
        missing=missing,
    )


def write_comparison(comparison: StudyComparison, path: Path) -> None:
    """Write a comparison as a page. Raise OutputError if the path exists and is not such a page."""
    if path.is_symlink() or (path.exists() and not _is_comparison(path)):
        raise OutputError(f"{path} exists and is not a page written by `worldsize compare`; give another --page")
    write_atomic(path, to_page(comparison_report(comparison), print_files=False, live=False).encode())


def _is_comparison(path: Path) -> bool:
    """Whether a file is a page of an earlier comparison, which may be replaced."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'<meta name="generator" content="worldsize compare">' in file.read(2_000)


def _figure_renderer() -> tuple[Callable[[Figure], dict[str, bytes]] | None, str]:
    """Return the function that draws figures for print, or None and the reason.

    It imports matplotlib, which takes a second, only when it is needed.
    """
    try:
        from worldsize.report.figures.matplotlib import rendered
    except ImportError:
        return None, "no figures for print, because matplotlib is not installed (pip install matplotlib)"
    return rendered, ""


def report_json(results: Results) -> str:
    """Return the document as JSON: the output of `run --json` and `report --json`, and the content of report.json."""
    return to_json(document(results))


def to_json(numbers: Document) -> str:
    """Format a document as JSON."""
    return json.dumps(numbers, indent=1, allow_nan=False) + "\n"


EVERY_S = 20.0
"""Minimum time between updates of the page."""
PAGE_SHARE = 0.05
"""Maximum share of the time that updates take. The page of a large study takes seconds to make."""


def last_page(results: Results) -> str:
    """Write the page of a finished study and return a sentence that says where. An error does not fail the run."""
    try:
        published = publish(results, printed=False)
    except (ReportError, OutputError, OSError) as error:
        return f"The report could not be written: {visible(str(error))}. All measurements are kept."
    return f"The report is {visible(str(published.page))}; `worldsize report` adds figures for print"


class LivePage(Progress):
    """Wraps the progress display and updates the page as trials end.

    Making a page would disturb a measurement on the same machine. If all workers of the launch leave a core free, the
    page is made beside them. Otherwise it is made between launches, and the next launch waits for it.
    """

    def __init__(
        self,
        inner: Progress,
        folder: Path,
        sites: Mapping[str, Site],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._folder, self._clock = inner, folder, clock
        self._sites = sites
        self._process: subprocess.Popen[bytes] | None = None
        self._next_at = -EVERY_S
        self._leaves_core_free: dict[str, bool] = {}
        """By trial: whether its launch leaves a core free."""
        self.ended = 0
        """Number of trials that have ended so far."""

    def launch_comes(self, trials: Sequence[TrialSpec]) -> None:
        beside = self._can_run_beside(trials)
        self._leaves_core_free |= {trial.id: beside for trial in trials}
        if self.ended:
            self._write()
        if self._process is not None and not beside:
            self._wait()
        self._inner.launch_comes(trials)

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None:
        self._inner.launch_started(launch_id, trials)

    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None:
        self._inner.trial_event(trial, event)

    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None:
        self._inner.trial_ended(trial, record)
        self.ended += 1
        if self._leaves_core_free.get(trial.id, False):
            self._write()

    def plan_grew(self, plan: Plan) -> None:
        self._inner.plan_grew(plan)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def close(self) -> None:
        """Stop an update of the page that still runs, so that it cannot overwrite the last page."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _can_run_beside(self, trials: Sequence[TrialSpec]) -> bool:
        site = self._sites[trials[0].place]
        cores = max(trial.workers * trial.threads_per_worker for trial in trials)
        return site.spec.slurm is not None or cores < site.machine.cores

    def _wait(self) -> None:
        assert self._process is not None
        began = self._clock()
        self._process.wait()
        self._next_at = max(self._next_at, self._clock() + (self._clock() - began) / PAGE_SHARE)

    def _write(self) -> None:
        """Start an update of the page in another process, unless one still runs or was started recently."""
        busy = self._process is not None and self._process.poll() is None
        if busy or self._clock() < self._next_at:
            return
        self._next_at = self._clock() + EVERY_S
        self._process = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "worldsize.cli.main", "report", str(self._folder), "--live"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
