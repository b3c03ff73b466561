"""Settings of a study that differ in workers only: what is known about them, and what follows for any count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from worldsize.analysis.batch_study import BatchStudy
from worldsize.analysis.batch_trend import Trend
from worldsize.analysis.choice import Option
from worldsize.analysis.intervals import narrower, over, plus, product, times
from worldsize.analysis.learning import Target
from worldsize.analysis.network import Network, placed
from worldsize.analysis.points import Setting
from worldsize.analysis.projection import crossing_kind, project_series, series_doubt
from worldsize.analysis.recommend import Finding
from worldsize.analysis.scaling import Row
from worldsize.analysis.stats import Interval
from worldsize.analysis.table import TableSeries, table_series
from worldsize.analysis.throughput import Parts, ThroughputModel, fit_throughput
from worldsize.analysis.wall import AboveModel, fit_above
from worldsize.analysis.widening import Reach, doubt, reach
from worldsize.errors import SpecError
from worldsize.prediction_inputs import above, ground, timed
from worldsize.results import Results
from worldsize.train_spec import steps_per_epoch

OVERLAP_UNKNOWN = (1.0, 2.0, 10.0)
"""Nothing of the exchange hidden, some, almost all: the range where one worker or one batch could not tell."""
NO_CORE_LEFT = 0.5
"""How much slower, in logarithms, a step may be where no core is left: exchanges then wait for the scheduler, about
20 ms a step on 16 of 16 cores (docs/benchmarks/cores.md), which no smaller count shows."""
WHY = {
    None: "no law fits",
    "not-reached-there": "runs at this batch, or at a smaller one, missed it",
    "too-far": "it lies too far beyond the batches that were trained",
    "steps-rise": "more steps were needed at larger batches, which no law foretells",
}
NETWORK_USE = (0.6, 0.8, 1.0)
"""Of a declared rate: what real transfers reach."""


@dataclass(frozen=True, kw_only=True)
class Question:
    workers: tuple[int, ...]
    batch_per_worker: int | None = None
    """Default: of the study's answer. In strong scaling the global batch is the study's."""
    target: float | None = None
    """Of the metric; default: the study's own."""
    price: float | None = None
    """Of a worker for an hour."""
    budget: float | None = None
    deadline_s: float | None = None
    network: Network | None = None
    workers_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Settings that differ in workers only, and all that is known about them."""

    results: Results
    question: Question
    setting: Setting
    rows: tuple[Row, ...]
    """Measured ones of this line."""
    model: ThroughputModel | None
    series: TableSeries
    places: int
    above: AboveModel | None
    batches: BatchStudy | None
    """What the global batch does to learning: steps to a target or, without one, epochs until stable and the metric."""
    joules_a_worker: float | None
    """Watts of a worker while it trains."""

    @classmethod
    def of(cls, results: Results, row: Row, question: Question) -> Line:
        setting = row.setting
        if question.batch_per_worker is not None:
            if setting.scaling == "strong":
                raise SpecError(
                    f"batch_per_worker={question.batch_per_worker}: this study shares out a global batch of "
                    f"{setting.global_batch}, so the batch of a worker follows from the workers; leave --batch out"
                )
            setting = replace(setting, batch_per_worker=question.batch_per_worker)
        rows = tuple(each for each in results.rows if _same_line(each.setting, setting))
        measured_on = ground(results, setting, question.workers_per_node)
        parts = timed(results, setting)
        # A batch that was never run has no series of its own: the model makes one, at the counts that were.
        model = fit_throughput(parts, measured_on) if parts else None
        if not rows and model is None:
            raise SpecError(f"nothing was measured with {setting.strategy}, {setting.precision}; run the study first")
        points = [(each.setting.workers, each.samples_per_s.value) for each in rows]
        if not points and model is not None:
            counts = sorted({each.workers for each in parts})
            batch, times = setting.batch_per_worker, setting.accumulation
            points = [(n, n * batch * times / model.parts(n, batch, times).step_s) for n in counts]
        places = question.workers_per_node or (
            question.network.workers_per_node if question.network else measured_on.places
        )
        return cls(
            results=results,
            question=question,
            setting=setting,
            rows=rows,
            model=model,
            series=table_series(points, workers_per_node=places),
            places=places,
            above=fit_above(above(results, measured_on.places)),
            batches=_batch_study(results, setting, row.variant, question.target),
            joules_a_worker=_watts(results, rows),
        )

    def possible(self, workers: int) -> bool:
        """A global batch that does not divide among the workers cannot be shared out."""
        return self.setting.scaling == "weak" or self.setting.global_batch % (workers * self.setting.accumulation) == 0

    def option(self, workers: int) -> Option:
        setting = self._setting(workers)
        batch = setting.global_batch
        rate, parts, measured, notes = self._throughput(setting)
        samples = self.results.facts.train_samples
        steps_an_epoch = steps_per_epoch(samples, batch)
        step_s = over(batch, rate)
        steps, epochs, unknown = self._steps(batch, steps_an_epoch)
        wall = above_s = joules = None
        if steps is not None:
            above_s = self.above.at(workers, placed(workers, self.places)[0], epochs) if self.above else 0.0
            wall = plus(product(steps, step_s), above_s)
            if self.joules_a_worker is not None:
                joules = times(product(steps, step_s), workers * self.joules_a_worker)
        return Option(
            workers=workers,
            nodes=placed(workers, self.places)[1],
            batch_per_worker=setting.batch_per_worker,
            accumulation=setting.accumulation,
            measured=measured,
            samples_per_s=rate,
            step_s=step_s,
            epoch_s=times(step_s, steps_an_epoch),
            parts=parts,
            steps_an_epoch=steps_an_epoch,
            steps=steps,
            above_s=above_s,
            wall_s=wall,
            joules=joules,
            epochs_stable=_expected(self.batches.epochs_stable, batch) if self.batches else None,
            metric=_expected(self.batches.metric, batch) if self.batches else None,
            price=self.question.price,
            notes=(*notes, *unknown),
        )

    def _setting(self, workers: int) -> Setting:
        if self.setting.scaling == "weak":
            return replace(self.setting, workers=workers)
        share = self.setting.global_batch // (workers * self.setting.accumulation)
        return replace(self.setting, workers=workers, batch_per_worker=share)

    def _throughput(self, setting: Setting) -> tuple[Interval, Parts | None, bool, tuple[str, ...]]:
        """As `_expected_rate`; less sure where workers take every core, and launcher and system wait for one."""
        rate, parts, measured, notes = self._expected_rate(setting)
        cores = self.model.ground.cores if self.model and self.question.network is None else None
        if measured or cores is None or placed(setting.workers, self.places)[0] * self.results.spec.threads < cores:
            return rate, parts, measured, notes
        return replace(rate, low=rate.low * math.exp(-NO_CORE_LEFT)), parts, measured, (*notes, "every core is taken")

    def _expected_rate(self, setting: Setting) -> tuple[Interval, Parts | None, bool, tuple[str, ...]]:
        """Samples a second with an 80 % interval, the parts of the step, whether it was measured, what to know."""
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        network = self.question.network
        row = next((each for each in self.rows if each.setting.workers == workers), None)
        if row is not None and (network is None or workers == 1):
            return (
                narrower(row.samples_per_s),
                self.model.parts(workers, batch, times) if self.model else None,
                True,
                (),
            )
        if network is not None:
            return self._on_network(setting, network)
        found = project_series(self.series, [workers])[0]
        new_node = placed(workers, self.places)[1] > placed(self.series.largest, self.places)[1]
        if self.model is None or self.model.top == 1 or new_node:
            # What an exchange costs, a worker alone cannot say; what leaving a node costs, no span inside one can.
            return Interval(found.samples_per_s, found.low, found.high), None, False, found.notes
        parts = self.model.parts(workers, batch, times)
        by_parts = setting.global_batch / parts.step_s
        # Where the work of a rank changes with the workers, a bare series cannot tell that from what scaling costs.
        both = [by_parts] if setting.scaling == "strong" else [by_parts, found.samples_per_s]
        value = math.exp(sum(map(math.log, both)) / len(both))
        low, high = self._reach(workers).around(value)
        # Two models that disagree say how little is known: the interval holds both.
        return Interval(value, min(low, *both), max(high, *both)), parts, False, found.notes

    def _reach(self, workers: int) -> Reach:
        distance = min(abs(math.log2(workers / other)) for other in self.series.workers)
        return reach(doublings=distance, doubt=self._doubt(), crossing=crossing_kind(self.series, workers))

    def _doubt(self) -> float:
        """How well the parts of smaller counts foretell the largest one; of a single count, what a bare series says."""
        assert self.model is not None
        top = self.model.top
        smaller = [each for each in self.model.timed if each.workers < top]
        if not smaller:
            return series_doubt(self.series)
        foretelling = fit_throughput(smaller, self.model.ground)
        misses = [
            abs(math.log(foretelling.parts(top, each.batch_per_worker, each.accumulation).step_s / each.step_s))
            for each in self.model.timed
            if each.workers == top
        ]
        apart = max(math.log2(top / max(each.workers for each in smaller)), 1.0)
        counts = len({each.workers for each in self.model.timed})
        return doubt(miss=sum(misses) / len(misses) / apart, loss_per_doubling=0.0, counts=counts)

    def _on_network(self, setting: Setting, network: Network) -> tuple[Interval, Parts | None, bool, tuple[str, ...]]:
        """On a network that was declared: how much of the exchange hides and how much of the rate is reached is a
        range, and so is the answer."""
        assert self.model is not None
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        if placed(workers, network.workers_per_node)[1] > 1 and network.across is None:
            raise SpecError(
                f"{workers} workers need {placed(workers, network.workers_per_node)[1]} nodes, and the network "
                f"({network.source}) has no rate across nodes; add one: '8 x 450GB/s 2us, 50GB/s 5us'"
            )
        if self.model.ground.payload_bytes is None and workers > 1:
            raise SpecError("the records do not tell how many bytes of gradients a step sends; measure it again")
        known = self.model.overlap if self.model.overlap_known else None
        overlaps = OVERLAP_UNKNOWN if known is None else (max(known / 2, 1.0), known, min(known * 2, 10.0))
        slow, middle, fast = (
            self.model.parts_on(network, workers, batch, times, overlap=overlap, use=use)
            for overlap, use in zip(overlaps, NETWORK_USE, strict=True)
        )
        rates = [setting.global_batch / each.step_s for each in (slow, middle, fast)]
        doublings = math.log2(workers) if workers > 1 else 0.0
        # Computing is as measured; what more workers add beyond the wire (stragglers) widens as elsewhere.
        more = reach(doublings=min(doublings, 3.0), doubt=0.0)
        low, high = rates[0] * math.exp(-more.down), rates[2] * math.exp(more.up)
        return Interval(rates[1], low, high), middle, False, (f"network {network.source}",)

    def _steps(self, batch: int, steps_an_epoch: int) -> tuple[Interval | None, float, tuple[str, ...]]:
        """Of the whole training, with its evaluations, or why it is not known."""
        train = self.results.spec.train
        if train is None:
            return None, 0.0, ()
        if self.question.target is None and train.until is None:
            steps = float(train.total_steps(self.results.facts.train_samples, batch))
            return Interval(steps, steps, steps), math.ceil(steps / steps_an_epoch), ()
        if self.batches is None or self.batches.steps is None:
            return None, 0.0, ("no run reached the target, so no time to it is known",)
        found = self.batches.steps.predict(batch)
        if found.unknown is not None or found.steps is None:
            return None, 0.0, (f"time to the target not known: {WHY[found.unknown]}",)
        return found.steps, math.ceil(found.steps.value / steps_an_epoch), ()

    def findings(self, asked: Iterable[int]) -> Iterable[Finding]:
        """What the projection rests on, and the measurement that would narrow it most."""
        counts = self.series.workers
        if len(counts) == 1 and self.question.network is None:
            yield Finding(code="projected-from-one-count", numbers={"workers": float(counts[0])})
        crossing = [n for n in asked if crossing_kind(self.series, n) == "new" and self.question.network is None]
        if crossing:
            yield Finding(
                code="node-never-left", numbers={"workers": float(min(crossing)), "places": float(self.places)}
            )
        yield from _next_measurement(counts, self.places, [n for n in asked if n not in counts])


def _next_measurement(counts: Sequence[int], places: int, asked: Sequence[int]) -> Iterable[Finding]:
    """Every doubling nearer narrows the interval: the largest count that fits here and is not beyond what is asked."""
    if not asked:
        return
    feasible = [n for n in {*(2**power for power in range(20)), places, *asked} if counts[-1] < n <= places]
    useful = [n for n in feasible if n <= max(asked)]
    if useful:
        yield Finding(code="measure-next", numbers={"workers": float(max(useful))})
    elif max(asked) > places:
        yield Finding(code="measure-two-nodes", numbers={"workers": float(2 * places), "places": float(places)})


def _same_line(one: Setting, other: Setting) -> bool:
    if (one.strategy, one.precision, one.accumulation, one.scaling) != (
        other.strategy,
        other.precision,
        other.accumulation,
        other.scaling,
    ):
        return False
    if one.scaling == "weak":
        return one.batch_per_worker == other.batch_per_worker
    return one.global_batch == other.global_batch


def _batch_study(results: Results, setting: Setting, variant: str | None, target: float | None) -> BatchStudy | None:
    """Of the variant that the answer names, else of the first that was trained this way."""
    wanted = results.target if target is None else Target(value=target, at_least=results.facts.higher_is_better)
    found = [
        study
        for study in results.batch_studies_for(wanted)
        if (study.strategy, study.precision) == (setting.strategy, setting.precision)
    ]
    return next((study for study in found if study.variant == variant), found[0] if found else None)


def _expected(trend: Trend | None, batch: int) -> Interval | None:
    return trend.predict(batch).value if trend else None


def _watts(results: Results, rows: Sequence[Row]) -> float | None:
    """Joules a sample times samples a second, of one worker, at the largest count that was watched."""
    known = {setting: found.joules_per_sample for setting, found in results.hardware if found.joules_per_sample}
    for row in reversed(rows):
        if row.setting in known:
            return known[row.setting] * row.samples_per_s.value / row.setting.workers
    return None
