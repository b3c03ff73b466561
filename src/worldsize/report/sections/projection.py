"""Projections to worker counts that were not run, from a study or from a table of measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.choice import Option, speedup_of
from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.answer.evidence import Evidence
from worldsize.answer.predict.predict import Prediction
from worldsize.answer.predict.table import Unit
from worldsize.answer.predict.table_projection import Projection, choose_in_series
from worldsize.data.catalog import WorkloadFacts
from worldsize.report.blocks import Block, Column, Prose, Table, table
from worldsize.report.words.answers import choice_prose, extra_sentences
from worldsize.report.words.findings import sentence
from worldsize.report.words.numbers import counted, duration, integer
from worldsize.report.words.quantities import (
    EFFICIENCY,
    EPOCH_TIME,
    GLOBAL_BATCH,
    SPEEDUP,
    WORKERS,
    Quantity,
    test_metric,
    throughput,
)

BASIS = Quantity(
    key="basis", title="basis", about="Whether this worker count was measured, or is projected from the others."
)
NODES = Quantity(key="nodes", title="nodes", digits=integer)
STEP_DURATION = Quantity(key="step_s", title="step time", digits=duration)
TRAINING_TIME = Quantity(
    key="wall_s",
    title="training time",
    digits=duration,
    about="Estimated time of the whole training: its steps, plus the overhead outside them where it is known.",
)
EPOCHS_STABLE = Quantity(key="epochs_stable", title="epochs until stable", short="epochs\nuntil\nstable")
COST = Quantity(key="cost", title="cost", about="Worker-hours times the price per worker-hour, in its currency.")
ENERGY = Quantity(key="joules", title="energy", unit="kWh", factor=1 / 3.6e6)
IN_UNIT: dict[Unit, Quantity] = {
    "samples_per_s": Quantity(key="samples_per_s", title="throughput", short="samples/s", unit="samples/s"),
    "tokens_per_s": Quantity(key="tokens_per_s", title="throughput", short="tokens/s", unit="tokens/s"),
    "step_s": STEP_DURATION,
    "epoch_s": EPOCH_TIME,
    "train_s": Quantity(key="train_s", title="training time", digits=duration),
}
PROJECTED_NOTE = "80 % intervals."


def projection_table(evidence: Evidence) -> Table | None:
    """Return the projected counts, and the measured ones to compare them with; None without projected counts."""
    prediction, answer = evidence.prediction, evidence.results.answer
    if prediction is None or all(option.measured for option in prediction.options):
        return None
    recommended = answer.row.setting.workers if answer.row and answer.verdict == "use" else None
    return _options(prediction, _columns(prediction, evidence.results.facts), recommended)


def prediction_blocks(prediction: Prediction, facts: WorkloadFacts, goal: str = "") -> list[Block]:
    """Return the answer of `worldsize predict` for one place. `goal` is the goal of the training, in words."""
    cautions, notes = (
        [finding for finding in prediction.findings if (finding.code in CAUTIONS) is is_caution]
        for is_caution in (True, False)
    )
    next_steps = [finding for finding in notes if finding.code.startswith("measure")]
    lines = extra_sentences(prediction, facts.unit, facts.units_per_sample)
    columns = [*_columns(prediction, facts), *_more_columns(prediction, facts)]
    options = _options(prediction, columns, None if prediction.doubt else prediction.choice.knee.workers)
    return [
        *choice_prose(prediction, goal),
        *(Prose(role="caution", text=sentence(finding)) for finding in cautions),
        *(Prose(role="outlook", text=text) for text in lines),
        *(Prose(role="note", text=sentence(finding)) for finding in notes if finding not in next_steps),
        *([Prose(role="why", text=sentence(prediction.choice.limit))] if prediction.choice.limit else []),
        *(Prose(role="next", text=sentence(finding)) for finding in next_steps),
        *([options] if options else []),
    ]


def _columns(prediction: Prediction, facts: WorkloadFacts) -> list[Column[Option]]:
    base = prediction.base
    several_nodes = any(option.nodes > 1 for option in prediction.options)
    return [
        Column(quantity=WORKERS, of=lambda option: option.workers),
        Column(quantity=BASIS, of=_basis, terminal=False),
        Column(quantity=NODES, of=lambda option: option.nodes if several_nodes else None),
        Column(quantity=GLOBAL_BATCH, of=lambda option: option.global_batch, terminal=False),
        Column(quantity=TRAINING_TIME, of=lambda option: option.wall_s),
        Column(quantity=COST, of=lambda option: option.cost),
        Column(quantity=throughput(facts), of=lambda option: option.samples_per_s),
        Column(quantity=SPEEDUP, of=lambda option: speedup_of(option, base)),
        Column(quantity=EFFICIENCY, of=lambda option: speedup_of(option, base).value * base.workers / option.workers),
    ]


def _more_columns(prediction: Prediction, facts: WorkloadFacts) -> list[Column[Option]]:
    metric = test_metric(facts)
    has_training_time = any(option.wall_s for option in prediction.options)
    return [
        Column(quantity=ENERGY, of=lambda option: option.joules),
        Column(quantity=metric, of=lambda option: option.metric),
        Column(
            quantity=Quantity(key=f"{metric.key}_basis", title=f"basis of {metric.title}"),
            of=lambda option: ("measured" if option.metric_measured else "expected") if option.metric else None,
            terminal=False,
        ),
        Column(quantity=EPOCHS_STABLE, of=lambda option: option.epochs_stable),
        Column(quantity=EPOCH_TIME, of=lambda option: option.epoch_s, terminal=not has_training_time),
        Column(quantity=STEP_DURATION, of=lambda option: option.step_s, terminal=False),
    ]


def _options(prediction: Prediction, columns: Sequence[Column[Option]], recommended: int | None) -> Table | None:
    options = prediction.options
    place = f" on {prediction.place}" if prediction.place else ""
    return table(
        "projection",
        f"Measured and projected worker counts{place}, relative to {counted(prediction.base.workers, 'worker')}",
        options,
        columns,
        note=" ".join([PROJECTED_NOTE, *_notes(options)]),
        marked=next((option for option in options if option.workers == recommended), None),
        projected=lambda option: not option.measured,
    )


class Noted(Protocol):
    """A worker count, measured or projected, with notes."""

    @property
    def workers(self) -> int: ...
    @property
    def measured(self) -> bool: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def _basis(row: Noted) -> str:
    return "measured" if row.measured else "projected"


def _notes(rows: Sequence[Noted]) -> Iterator[str]:
    """Yield each note once, with the counts that it applies to: `New node boundary (16, 32 workers).`"""
    counts: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        for note in row.notes:
            counts[note].append(row.workers)
    for note, workers in counts.items():
        listed = f"{', '.join(map(str, workers))} {'worker' if workers == [1] else 'workers'}"
        yield f"{note[:1].upper()}{note[1:]} ({listed})."


def table_projection_blocks(projected: Sequence[Projection]) -> list[Block]:
    """Return the answer of `worldsize predict` for a table of measurements, one answer and table per series."""
    return [
        block for _, rows in groupby(projected, key=lambda row: row.series_id) for block in _series_blocks(list(rows))
    ]


def _series_blocks(rows: Sequence[Projection]) -> Iterator[Block]:
    base = next(row for row in rows if row.measured)
    choice = choose_in_series(rows)
    chosen, following, uncertain = choice.knee, choice.following, choice.unsure
    lead = "Use"
    if base.series_id:
        lead = f"For {base.series_id}, use"
    if sum(row.measured for row in rows) == 1:
        yield Prose(role="doubt", text="Not enough evidence: only one worker count was measured.")
        lead = "Best guess:"
    faster = "" if chosen is base else f": {_faster(chosen, base)}"
    yield Prose(role="answer", text=f"{lead} {counted(chosen.workers, 'worker')}{faster}.")
    if following is None:
        yield Prose(role="evidence", text="It is the largest count asked for; more workers may still pay off.")
    elif uncertain is not None:
        text = f"{uncertain.workers:,} workers: {_faster(uncertain, base)}, too uncertain to rely on."
        yield Prose(role="evidence", text=text)
        first = uncertain if chosen.measured else chosen
        yield Prose(role="next", text=f"Measure {first.workers:,} workers: that would narrow the ranges most.")
    else:
        yield Prose(role="evidence", text=f"{following.workers:,} workers: only {_faster(following, base)}.")
    columns: list[Column[Projection]] = [
        Column(quantity=WORKERS, of=lambda row: row.workers),
        Column(quantity=BASIS, of=_basis, terminal=False),
        Column(quantity=IN_UNIT[base.unit], of=lambda row: row.expected),
        Column(quantity=SPEEDUP, of=lambda row: _speedup(row, base)),
        Column(quantity=EFFICIENCY, of=lambda row: _speedup(row, base).value * base.workers / row.workers),
    ]
    made = table(
        "projection",
        f"{base.series_id or 'Measured and projected worker counts'}, relative to {counted(base.workers, 'worker')}",
        rows,
        columns,
        note=" ".join([PROJECTED_NOTE, *_notes(rows)]),
        marked=chosen,
        projected=lambda row: not row.measured,
    )
    if made is not None:
        yield made


def _speedup(row: Projection, base: Projection) -> Estimate:
    """Return the speedup over the base. The interval of a row already includes the noise of the base."""
    if row is base:
        return Estimate(value=1.0)
    return row.samples_per_s.scaled(1 / base.samples_per_s.value)


def _faster(row: Projection, base: Projection) -> str:
    """`4.10x as fast as 1 (2.80x to 4.70x, projected), 51 % efficient`"""
    speedup = _speedup(row, base)
    low, high = map(SPEEDUP.said, speedup.ends)
    details = [f"{low} to {high}"] if low != high else []
    details += [] if row.measured else ["projected"]
    efficiency = EFFICIENCY.said(speedup.value * base.workers / row.workers)
    shown = f" ({', '.join(details)})" if details else ""
    return f"{SPEEDUP.said(speedup.value)} as fast as {base.workers:,}{shown}, {efficiency} efficient"
