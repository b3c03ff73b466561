"""Training results: best variants, optimizers, large batches and epochs until stable; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import TargetSummary, VariantSummary
from worldsize.answer.curves import Trained
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results
from worldsize.report.blocks import Cell, Column, Table, if_it_varies, setting_columns, table
from worldsize.report.figures.model import Figure, Line, Panel, axis_for, colors_of_series, line, worker_axis
from worldsize.report.sections.curves import MAX_CURVES
from worldsize.report.sections.optimizers import STEPS_TO_TARGET
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    counted,
    duration,
    integer,
    metric_difference,
    metric_value,
    whole,
)
from worldsize.report.words.quantities import LEARNING_RATE, RUNS, VARIANT, Quantity, test_metric
from worldsize.report.words.settings import lines_over_workers, more_words
from worldsize.spec.setting import Setting

MAX_ROWS = 40
"""A search may have hundreds of rows; --json has the rest."""


def _matters(gap: Estimate, metric: Estimate) -> bool:
    """Return whether a gap is large enough to show: a thousandth of the metric is visible in four digits."""
    return abs(gap.value) >= 1e-3 * abs(metric.value)


TEST_LOSS = Quantity(key="test_loss", title="test loss", short="test\nloss", digits=metric_value)
TRAINING_TIME = Quantity(key="train_s", title="training time", short="training\ntime", digits=duration)
EPOCHS_TO_TARGET = Quantity(key="epochs_to_target", title="epochs to target", short="epochs to\ntarget", digits=whole)
TIME_TO_TARGET = Quantity(key="target_s", title="time to target", short="time to\ntarget", digits=duration)
SAMPLES_TO_TARGET = Quantity(key="samples_to_target", title="samples to target", short="samples", digits=whole)
REACHED = Quantity(
    key="reached", title="reached target", short="reached", digits=integer, about="Runs that reached the target."
)
EPOCHS_UNTIL_STABLE = Quantity(
    key="epochs_until_stable",
    title="epochs until stable",
    short="epochs until\nstable",
    digits=whole,
    about="First epoch from which the test metric stays at its final level, apart from noise.",
)
GAP = Quantity(
    key="gap",
    title="train − test",
    short="train\n− test",
    digits=metric_difference,
    about="How much better the metric is on training samples than on test samples; positive means overfitting.",
)
DIVERGED = Quantity(
    key="diverged", title="diverged", digits=integer, about="Runs whose loss exploded or was not a number."
)
STOPPED = Quantity(
    key="stopped", title="stopped", digits=integer, about="Runs stopped because other variants were much better."
)
PLATEAUED = Quantity(
    key="plateaued", title="plateaued", digits=integer, about="Runs that ended because the metric no longer improved."
)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Training results of one variant at one setting."""

    setting: Setting
    summary: VariantSummary
    trained: Trained

    @property
    def variant(self) -> str:
        return self.summary.variant

    @property
    def target(self) -> TargetSummary | None:
        return self.summary.target

    @property
    def epochs_until_stable(self) -> Estimate | None:
        return self.summary.stable.epoch if self.summary.stable else None


def learned(evidence: Evidence) -> list[Learned]:
    """Return the results of every variant of every setting, the best variant of each setting first."""
    trained = {(row.setting, row.variant): row for row in evidence.training}
    return [
        Learned(setting=ranking.setting, summary=summary, trained=trained[ranking.setting, summary.variant])
        for ranking in evidence.results.variant_rankings
        for summary in ranking.variants
    ]


def best_of_settings(evidence: Evidence) -> list[Learned]:
    """Return the results of the best variant of each setting."""
    best: dict[Setting, Learned] = {}
    for row in learned(evidence):
        best.setdefault(row.setting, row)
    return list(best.values())


def _result_columns(evidence: Evidence, rows: Sequence[Learned]) -> list[Column[Learned]]:
    facts = evidence.results.facts
    summaries = [row.summary for row in rows]
    has_gap = any(summary.gap and summary.metric and _matters(summary.gap, summary.metric) for summary in summaries)
    columns: list[Column[Learned]] = [
        Column(quantity=LEARNING_RATE, of=lambda row: row.trained.peak_lr, terminal=False),
        Column(quantity=test_metric(facts), of=lambda row: row.summary.metric),
        Column(quantity=TRAINING_TIME, of=lambda row: row.trained.train_s, terminal=evidence.results.goal is None),
        Column(quantity=STEPS_TO_TARGET, of=_of_target(lambda target: target.steps)),
        Column(quantity=EPOCHS_TO_TARGET, of=_of_target(lambda target: target.epochs)),
        Column(quantity=TIME_TO_TARGET, of=_of_target(lambda target: target.seconds)),
        Column(quantity=SAMPLES_TO_TARGET, of=_of_target(lambda target: target.samples), terminal=False),
        Column(quantity=REACHED, of=_of_target(lambda target: target.reached)),
        Column(quantity=EPOCHS_UNTIL_STABLE, of=lambda row: row.epochs_until_stable),
        Column(quantity=GAP, of=lambda row: row.summary.gap if has_gap else None),
        Column(quantity=DIVERGED, of=lambda row: row.summary.diverged, terminal=_any(rows, "diverged")),
        Column(quantity=STOPPED, of=lambda row: row.summary.stopped if _any(rows, "stopped") else None),
        Column(quantity=PLATEAUED, of=lambda row: row.summary.plateaued if _any(rows, "plateaued") else None),
        Column(quantity=RUNS, of=lambda row: row.summary.repeats),
    ]
    if facts.metric != "loss":
        columns.insert(2, Column(quantity=TEST_LOSS, of=lambda row: row.trained.test_loss, terminal=False))
    return columns


def _of_target(of: Callable[[TargetSummary], Cell]) -> Callable[[Learned], Cell]:
    return lambda row: of(row.target) if row.target else None


def _any(rows: Sequence[Learned], name: str) -> bool:
    return any(getattr(row.summary, name) for row in rows)


def optimizers(evidence: Evidence) -> Table | None:
    """Return the results of all variants; None if there is only one."""
    rows = learned(evidence)
    if len({row.variant for row in rows}) < 2:
        return None
    settings = [if_it_varies(column, rows) for column in setting_columns(rows)]
    columns = [_variant_column(), *settings, *_result_columns(evidence, rows)]
    title = "Optimizers and learning rates, best first"
    return _table(evidence, "optimizers", title, rows, columns)


def large_batch(evidence: Evidence) -> Table | None:
    """Return the results by global batch; None if there is only one."""
    rows = learned(evidence)
    if len({row.setting.global_batch for row in rows}) < 2:
        return None
    if optimizers(evidence) is not None:  # that table has all variants; this one shows the best of each setting
        rows = best_of_settings(evidence)
    rows.sort(key=lambda row: (row.setting.global_batch, row.setting.workers))
    workers, batch, global_batch, *how = setting_columns(rows)
    lead = [global_batch, workers, batch, *how, _variant_column()]
    return _table(
        evidence,
        "large-batch",
        "Training results by global batch",
        rows,
        [*lead, *_result_columns(evidence, rows)],
    )


def trained(evidence: Evidence) -> Table | None:
    """Return the training results of a study that varies neither optimizers nor batches."""
    rows = learned(evidence)
    if optimizers(evidence) or large_batch(evidence):
        return None
    columns = [*setting_columns(rows), *_result_columns(evidence, rows)]
    return _table(evidence, "trained", "Training results", rows, columns)


def _variant_column() -> Column[Learned]:
    return Column(quantity=VARIANT, of=lambda row: row.variant)


def _table(
    evidence: Evidence, key: str, title: str, rows: Sequence[Learned], columns: Sequence[Column[Learned]]
) -> Table | None:
    answer = evidence.results.answer.row
    repeated = any(row.summary.repeats > 1 for row in rows)
    note = f"{LEVEL_WORDS}s over runs." if repeated else "One run each, so there are no intervals."
    if any(row.trained.peak_lr != row.summary.lr for row in rows):
        note += " The learning rate column includes the learning-rate rule, which adjusts it to the global batch."
    if any(row.target and not row.target.always for row in rows):
        note += " Steps, epochs and time to the target are those of the runs that reached it."
    if any(row.summary.stable and row.summary.stable.epoch is None for row in rows):
        note += " No number of epochs until stable: the metric was still changing when the run ended."
    chosen = next((row for row in rows if answer and row.setting == answer.setting), None)
    return table(key, title, rows, columns, note=note, marked=chosen)


def outcome(evidence: Evidence) -> Figure | None:
    """Draw training time, final loss and final metric by worker count."""
    results = evidence.results
    rows = [row for row in best_of_settings(evidence) if row.trained.train_s]
    all_groups = lines_over_workers(rows, results.answer.row.setting if results.answer.row else None)
    groups = dict(list(all_groups.items())[:MAX_CURVES])
    if not groups:
        return None
    metric = test_metric(results.facts)
    panels = [
        # Durations are printed with their unit, but an axis has one unit.
        _against_workers(results, groups, TRAINING_TIME, lambda row: row.trained.train_s, "training time, s"),
        _against_workers(results, groups, TEST_LOSS, lambda row: row.trained.test_loss),
    ]
    if results.facts.metric != "loss":
        panels.append(_against_workers(results, groups, metric, lambda row: row.trained.metric))
    name, group = next(iter(groups.items()))
    first, last = group[0], group[-1]
    changes = [
        _change(TRAINING_TIME, first.trained.train_s, last.trained.train_s),
        _change(metric, first.trained.metric, last.trained.metric),
    ]
    where = f" ({name})" if len(groups) > 1 else ""
    return Figure(
        key="outcome",
        title=f"From {first.setting.workers} to {last.setting.workers} workers{where}, "
        + " and ".join(filter(None, changes)),
        panels=tuple(panel for panel in panels if panel.marks),
        note=(
            "More workers pay off if training gets shorter while loss and metric stay within the bands. "
            f"Bands: {LEVEL_WORDS}s over repeats."
            if any(isinstance(mark, Line) and mark.low for panel in panels for mark in panel.marks)
            else "More workers pay off if training gets shorter while loss and metric stay the same. One run each."
        )
        + " Each point is the best variant of its setting."
        + more_words(len(all_groups) - len(groups), "series"),
    )


def _change(quantity: Quantity, first: Estimate | None, last: Estimate | None) -> str:
    if first is None or last is None:
        return ""
    before, after = quantity.text(first.value), quantity.text(last.value)
    return f"{quantity.title} {f'stays at {after}' if before == after else f'goes from {before} to {after}'}"


def _against_workers(
    results: Results,
    groups: Mapping[str, Sequence[Learned]],
    quantity: Quantity,
    of: Callable[[Learned], Estimate | None],
    title: str = "",
    after: Callable[[Learned], str] = lambda row: f"{row.variant}, {counted(row.trained.learned, 'run')}",
) -> Panel:
    hues = colors_of_series(results)
    lines = [
        line(
            name,
            group,
            quantity,
            x=lambda row: row.setting.workers,
            y=of,
            lead=lambda row: f"{counted(row.setting.workers, 'worker')}, global batch {row.setting.global_batch:,}",
            after=after,
            color=hues.get(group[0].setting.series, "blue"),
        )
        for name, group in groups.items()
    ]
    kept = tuple(drawn for drawn in lines if drawn.x)
    from_zero = quantity in (TRAINING_TIME, EPOCHS_UNTIL_STABLE)
    return Panel(
        x=worker_axis([row.setting.workers for group in groups.values() for row in group]),
        y=axis_for(title or quantity.heading, kept, from_zero=from_zero),
        marks=kept,
    )


def stable(evidence: Evidence) -> Figure | None:
    """Draw the epochs until stable by worker count."""
    results = evidence.results
    rows = [row for row in best_of_settings(evidence) if row.epochs_until_stable]
    all_groups = lines_over_workers(rows, results.answer.row.setting if results.answer.row else None)
    groups = dict(list(all_groups.items())[:MAX_CURVES])
    if not groups:
        return None
    group = next(iter(groups.values()))
    ends = [f"{_epochs(row)} epochs with {counted(row.setting.workers, 'worker')}" for row in (group[0], group[-1])]
    panel = _against_workers(
        results, groups, EPOCHS_UNTIL_STABLE, lambda row: row.epochs_until_stable, after=_stable_runs
    )
    return Figure(
        key="stable",
        title=f"Training is stable after {ends[0]} and {ends[1]}",
        panels=(panel,),
        note=f"The first epoch from which test {results.facts.metric} stays at its final level, apart from noise: "
        f"training longer hardly changes it. Bands: {LEVEL_WORDS}s.",
    )


def _epochs(row: Learned) -> str:
    return EPOCHS_UNTIL_STABLE.text(row.epochs_until_stable.value if row.epochs_until_stable else None)


def _stable_runs(row: Learned) -> str:
    plateau = row.summary.stable
    return f"stable in {plateau.reached} of {counted(plateau.repeats, 'run')}" if plateau else ""
