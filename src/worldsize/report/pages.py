"""Contents of a report: the answer, then the sections that matter most for the study's question, then the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worldsize.answer.evidence import Evidence
from worldsize.answer.facets import Facet, facets
from worldsize.answer.results import Results
from worldsize.report.blocks import Block, Report, Section, Table
from worldsize.report.figures.model import Figure
from worldsize.report.sections.batch import batch, batch_model, batch_sheet
from worldsize.report.sections.communication import bandwidth_figure, bandwidth_sheet, exchange, links
from worldsize.report.sections.curves import curves, noise, noise_scale
from worldsize.report.sections.hardware import devices, hardware_table
from worldsize.report.sections.learning import large_batch, optimizers, outcome, stable, trained
from worldsize.report.sections.opening import findings_block, opening
from worldsize.report.sections.optimizers import convergence, steps_by_rate
from worldsize.report.sections.projection import projection_table
from worldsize.report.sections.scaling import laws, pareto, scaling_table, speedup
from worldsize.report.sections.steps import jobs, step_parts, steps, timeline, wall_time
from worldsize.report.sections.trials import trial_sections
from worldsize.spec.study import StudySpec


@dataclass(frozen=True, kw_only=True)
class SectionPlan:
    """The figures and tables of a section. Those that the study has no data for are omitted, as are empty sections."""

    key: str
    title: str
    figures: tuple[Callable[[Evidence], Figure | None], ...] = ()
    tables: tuple[Callable[[Evidence], Table | None], ...] = ()

    def blocks(self, evidence: Evidence) -> Iterator[Block]:
        yield from (figure for make in self.figures if (figure := make(evidence)) is not None)
        yield from (table for make in self.tables if (table := make(evidence)) is not None and table.rows)


SCALING = SectionPlan(
    key="scaling", title="Scaling", figures=(speedup, pareto, outcome), tables=(scaling_table, projection_table, laws)
)
STEPS = SectionPlan(
    key="step", title="Where the time goes", figures=(step_parts, timeline, wall_time), tables=(steps, jobs)
)
COMMUNICATION = SectionPlan(
    key="communication", title="Communication", figures=(bandwidth_figure,), tables=(exchange, links, bandwidth_sheet)
)
BATCH = SectionPlan(key="batch", title="Batch size", figures=(batch,), tables=(batch_sheet, batch_model))
HARDWARE = SectionPlan(key="hardware", title="Hardware", figures=(devices,), tables=(hardware_table,))
LEARNING = SectionPlan(
    key="learning",
    title="What was learned",
    figures=(curves, steps_by_rate, stable, convergence, noise),
    tables=(optimizers, large_batch, trained, noise_scale),
)
EVERY = (SCALING, STEPS, COMMUNICATION, BATCH, HARDWARE, LEARNING)
FIRST: dict[Facet, tuple[SectionPlan, ...]] = {
    "workers": (SCALING, STEPS, COMMUNICATION),
    "largest-batch": (BATCH, HARDWARE),
    "batch": (BATCH, LEARNING),
    "strategy": (SCALING, STEPS, COMMUNICATION, LEARNING),
    "precision": (SCALING, HARDWARE, LEARNING),
    "optimizer": (LEARNING,),
    "weights": (LEARNING,),
}
"""Sections that come first, by what a study varies. The others follow in the order of EVERY."""


def section_plans(spec: StudySpec) -> list[SectionPlan]:
    """Return all sections, those that matter most for the study's question first."""
    asked = [plan for facet in facets(spec) for plan in FIRST[facet]]
    if not asked and spec.train is not None:
        asked = [LEARNING]
    return list({plan.key: plan for plan in (*asked, *EVERY)}.values())


OPENING = ("answer", "findings")
"""Sections before the failures, which come before all figures."""


def _title(plan: SectionPlan, results: Results) -> str:
    """Return the title of a section. With a single worker count, nothing scales."""
    several = len({row.setting.workers for row in results.rows}) > 1
    return "Speed" if plan is SCALING and not several else plan.title


def study_report(evidence: Evidence, *, live: bool) -> Report:
    """Return the report of a study. `live`: the study is still running."""
    results = evidence.results
    facts, findings = results.facts, findings_block(evidence)
    sections: list[tuple[str, str, list[Block]]] = [
        ("answer", "Answer", opening(evidence)),
        ("findings", "Findings", [findings] if findings else []),
        *((plan.key, _title(plan, results), list(plan.blocks(evidence))) for plan in section_plans(results.spec)),
    ]
    made = [Section(key=key, title=title, blocks=tuple(blocks)) for key, title, blocks in sections if blocks]
    trials = trial_sections(evidence)
    ended, total = len(results.trials) - len(results.left()), len(results.trials)
    return Report(
        title=results.spec.name,
        subtitle=f"{results.spec.workload.name}: {facts.title} · {facts.train_samples:,} training samples",
        sections=(
            *(section for section in made if section.key in OPENING),
            *(section for section in trials if section.key == "failures"),
            *(section for section in made if section.key not in OPENING),
            *(section for section in trials if section.key != "failures"),
        ),
        progress=f"Still running: {ended} of {total} trials are done. This page refreshes itself." if live else "",
    )


def figures(evidence: Evidence) -> list[Figure]:
    """Return all figures, in the order of the page."""
    makers = [make for plan in section_plans(evidence.results.spec) for make in plan.figures]
    return [figure for make in makers if (figure := make(evidence)) is not None]


def tables(evidence: Evidence) -> list[Table]:
    """Return all tables, in the order of the page."""
    makers = [make for plan in section_plans(evidence.results.spec) for make in plan.tables]
    return [table for make in makers if (table := make(evidence)) is not None and table.rows]
