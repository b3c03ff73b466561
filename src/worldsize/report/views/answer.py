"""What `worldsize run` prints: the answer, why, what to do next, and one table. `--details` adds the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from worldsize.answer.evidence import Evidence
from worldsize.answer.facets import Facet, facets
from worldsize.errors import visible
from worldsize.report.blocks import Block, Findings, FindingText, Prose, Table
from worldsize.report.pages import tables
from worldsize.report.sections.opening import cautions_below, other_findings
from worldsize.report.sections.steps import queue_words
from worldsize.report.words.findings import is_bad
from worldsize.report.words.headline import headline
from worldsize.report.words.numbers import counted

MAIN_TABLES: dict[Facet, tuple[str, ...]] = {
    "workers": ("scaling",),
    "largest-batch": ("batch", "scaling"),
    "batch": ("batch", "scaling"),
    "strategy": ("scaling",),
    "precision": ("scaling",),
    "optimizer": ("optimizers", "trained", "scaling"),
    "weights": ("optimizers", "trained", "scaling"),
}
"""Tables that can support the answer, by what a study varies. The first one that the study has is shown."""
MAX_ROWS = 12
"""Maximum number of table rows without `--details`."""
ALREADY_SHOWN = ("largest-count-measured", "one-repeat")
"""Codes of findings that the headline or the table already shows."""


def answer_blocks(evidence: Evidence, *, details: bool) -> Iterator[Block]:
    """Yield the blocks that answer a study in the terminal."""
    results = evidence.results
    yield from headline(results, evidence.outlook)
    yield from (Prose(role="caution", text=finding["text"]) for finding in cautions_below(results))
    others = [finding for finding in other_findings(results) if finding["code"] not in ALREADY_SHOWN]
    findings = tuple(
        FindingText(code=finding["code"], text=finding["text"], is_bad=is_bad(finding["code"])) for finding in others
    )
    shown = findings if details else tuple(_once(finding for finding in findings if finding.is_bad))
    if shown:
        yield Findings(findings=shown)
    all_tables = tables(evidence)
    asked = facets(results.spec)
    keys = MAIN_TABLES[asked[0]] if asked else ("scaling",)
    main = next((table for key in keys for table in all_tables if table.key == key), None)
    if main is not None:
        yield main if details else _short(main)
    if details:
        yield from (table for table in all_tables if table is not main)
    yield from (Prose(role="note", text=words) for words in queue_words(evidence))
    more = "" if details else "    More tables: add --details"
    yield Prose(role="note", text=f"Report: {visible(str(results.folder.path / 'report' / 'index.html'))}{more}")


def _once(findings: Iterable[FindingText]) -> Iterator[FindingText]:
    """Yield the first finding of each code, with the number of others that have it."""
    by_code: dict[str, list[FindingText]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    for first, *others in by_code.values():
        more = f" {len(others)} more like this: add --details." if others else ""
        yield replace(first, text=first.text + more)


def _short(table: Table) -> Table:
    """Return a table with only its first rows."""
    hidden = len(table.rows) - MAX_ROWS
    if hidden <= 0:
        return table
    note = f"{counted(hidden, 'more row')} in the report and with --details."
    return replace(table, rows=table.rows[:MAX_ROWS], note=f"{table.note} {note}".strip())
