"""What `worldsize run` prints: the answer, why, what next, and one table; the rest with --details."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from worldsize.answer.evidence import Evidence
from worldsize.answer.facets import Facet, facets
from worldsize.errors import visible
from worldsize.report.blocks import Block, Findings, FindingText, Prose, Table
from worldsize.report.pages import tables
from worldsize.report.sections.opening import cautions, other_findings
from worldsize.report.sections.steps import queue_words
from worldsize.report.words.findings import is_bad
from worldsize.report.words.headline import headline

MAIN_TABLES: dict[Facet, tuple[str, ...]] = {
    "workers": ("scaling",),
    "largest-batch": ("batch", "scaling"),
    "batch": ("batch", "scaling"),
    "strategy": ("scaling",),
    "precision": ("scaling",),
    "optimizer": ("optimizers", "trained", "scaling"),
    "weights": ("optimizers", "trained", "scaling"),
}
"""The table that shows what the answer rests on: the first of these that the study has."""
MOST_ROWS = 12
SAID = ("next-count-not-worth-it", "close-call", "largest-count-measured", "one-repeat")
"""Findings that the headline has said already, or that the table shows."""


def answer_blocks(evidence: Evidence, *, details: bool) -> Iterator[Block]:
    results = evidence.results
    yield from headline(results, evidence.outlook)
    yield from (Prose(role="caution", text=finding["text"]) for finding in cautions(results))
    others = [finding for finding in other_findings(results) if finding["code"] not in SAID]
    findings = tuple(
        FindingText(code=finding["code"], text=finding["text"], is_bad=is_bad(finding["code"])) for finding in others
    )
    shown = findings if details else tuple(finding for finding in findings if finding.is_bad)
    if shown:
        yield Findings(findings=shown)
    every = tables(evidence)
    asked = facets(results.spec)
    wanted = MAIN_TABLES[asked[0]] if asked else ("scaling",)
    main = next((table for key in wanted for table in every if table.key == key), None)
    if main is not None:
        yield main if details else _short(main)
    if details:
        yield from (table for table in every if table is not main)
    yield from (Prose(role="note", text=words) for words in queue_words(evidence))
    more = "" if details else "    More tables: add --details"
    yield Prose(role="note", text=f"Report: {visible(str(results.folder.path / 'report' / 'index.html'))}{more}")


def _short(table: Table) -> Table:
    """The first rows; the page has them all."""
    hidden = len(table.rows) - MOST_ROWS
    if hidden <= 0:
        return table
    note = f"{hidden} more rows on the page and with --details."
    return replace(table, rows=table.rows[:MOST_ROWS], note=f"{table.note} {note}".strip())
