"""Settings of a study that differ in workers only: what is known about them, and what follows for any count.

Whether a model still learns at a setting: as it was trained there, or as other batches let expect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import NARROWER, Interval, narrower, over, plus, product, times
from worldsize.analysis.learning.larger_batches import BatchStudy, Trend
from worldsize.analysis.learning.variants import Goal
from worldsize.analysis.projection.bare import crossing_kind
from worldsize.analysis.projection.choice import Option
from worldsize.analysis.projection.overhead import OverheadModel, fit_overhead
from worldsize.analysis.projection.series_law import table_series
from worldsize.analysis.projection.step_model import fit_throughput
from worldsize.analysis.speed.network import placed
from worldsize.analysis.speed.recommend import METRIC_SLACK, Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.from_records import node, overheads, step_timings
from worldsize.answer.predict.question import Question
from worldsize.answer.predict.throughput_at import Throughputs
from worldsize.answer.results import Results
from worldsize.errors import InputError
from worldsize.plan.grid import scaled_lr
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.setting import Setting
from worldsize.spec.training import steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class Learned:
    metric: Interval | None
    measured: bool
    why_not: str | None
    """Why speed there is no speed; None: nothing speaks against it."""


def learning_at(results: Results, setting: Setting, batches: BatchStudy | None) -> Learned:
    """Held against the best metric of the study, as the study's own answer does."""
    metrics = {row.setting: row for row in results.rows}
    best = _best(results)
    trained = {contest.setting for contest in results.variant_rankings}
    samples = results.facts.train_samples
    if setting.global_batch > samples:
        too_many = f"{_where(setting)}, a step would take more than the {samples:,} training samples"
        return Learned(metric=None, measured=False, why_not=too_many)
    row = metrics.get(setting)
    if setting in trained:
        if row is None or row.metric is None:
            return Learned(
                metric=None, measured=True, why_not=f"{_where(setting)}, training diverged or missed its target"
            )
        low = row.metric if row.metric_low is None else row.metric_low
        high = row.metric if row.metric_high is None else row.metric_high
        why = f"{_where(setting)}, the model learned less" if _behind(results, row.metric, best) else None
        # Rows have 90 %, and all that is told beside it here 80 %; plainly, since metrics may be 0.
        down, up = NARROWER * (row.metric - low), NARROWER * (high - row.metric)
        return Learned(metric=Interval(row.metric, row.metric - down, row.metric + up), measured=True, why_not=why)
    if batches is None or batches.metric is None:
        return Learned(metric=None, measured=False, why_not=None)
    expected = batches.metric.predict(setting.global_batch)
    if expected.unknown == "failed-there":
        return Learned(metric=None, measured=False, why_not=f"{_where(setting)} and less, training failed")
    # Of what is only expected, the end that promises most must fall behind.
    ends = (expected.value.low, expected.value.high) if expected.value else ()
    hopeful = (max if results.facts.higher_is_better else min)(ends, default=None)
    why = (
        f"{_where(setting)}, the model is expected to learn less"
        if hopeful is not None and _behind(results, hopeful, best)
        else None
    )
    return Learned(metric=expected.value, measured=False, why_not=why)


def _best(results: Results) -> float | None:
    metrics = [row.metric for row in results.rows if row.metric is not None]
    sign = 1.0 if results.facts.higher_is_better else -1.0
    return max(metrics, key=lambda metric: sign * metric, default=None)


def _behind(results: Results, metric: float, best: float | None) -> bool:
    if best is None:
        return False
    short = best - metric if results.facts.higher_is_better else metric - best
    return short > METRIC_SLACK * max(abs(best), METRIC_SLACK)


def _where(setting: Setting) -> str:
    return f"at a global batch of {setting.global_batch}"


WHY = {
    None: "no law fits",
    "not-reached-there": "runs at this batch, or at a smaller one, missed it",
    "too-far": "it lies too far beyond the batches that were trained",
    "steps-rise": "more steps were needed at larger batches, which no law foretells",
}


@dataclass(frozen=True, kw_only=True)
class WorkerCurve:
    """Settings that differ in workers only, and all that is known about them."""

    results: Results
    question: Question
    setting: Setting
    throughputs: Throughputs
    optimizer: OptimizerSpec | None
    """Of what the answer names; None: nothing was trained."""
    overhead: OverheadModel | None
    batches: BatchStudy | None
    """What the global batch does to learning: steps to a target or, without one, epochs until stable and the metric."""
    watts_per_worker: float | None
    """Watts of a worker while it trains."""

    @classmethod
    def of(cls, results: Results, row: ScalingRow, question: Question) -> WorkerCurve:
        setting, network = row.setting, question.network
        if network and (own := question.workers_per_node) not in (None, network.workers_per_node):
            network = replace(network, workers_per_node=own, source=f"{network.source}, but {own} workers a node")
        if question.batch_per_worker is not None:
            if setting.scaling == "strong":
                raise InputError(
                    f"batch_per_worker={question.batch_per_worker}: this study shares out a global batch of "
                    f"{setting.global_batch}, so the batch of a worker follows from the workers; leave --batch out"
                )
            setting = replace(setting, batch_per_worker=question.batch_per_worker)
        rows = tuple(each for each in results.rows if each.setting.series == setting.series)
        measured_on = node(results, setting, None if network else question.workers_per_node)
        parts = step_timings(results, setting)
        # A batch that was never run has no series of its own: the model makes one, at the counts that were.
        model = fit_throughput(parts, measured_on) if parts else None
        if not rows and model is None:
            raise InputError(
                f"nothing was measured with {setting.strategy.label}, {setting.precision}; run the study first"
            )
        points = [(each.setting.workers, each.samples_per_s.value) for each in rows]
        if not points and model is not None:
            counts = sorted({each.workers for each in parts})
            batch, times = setting.batch_per_worker, setting.accumulation
            points = [(n, n * batch * times / model.parts(n, batch, times).step_s) for n in counts]
        places = network.workers_per_node if network else measured_on.workers_per_node
        return cls(
            results=results,
            question=question,
            setting=setting,
            throughputs=Throughputs(
                rows=rows,
                model=model,
                series=table_series(points, workers_per_node=places),
                workers_per_node=places,
                network=network,
                threads=results.spec.threads_per_worker,
                noise_of=tuple(each.samples_per_s for each in rows or results.rows),
            ),
            optimizer=_optimizer(results, row.variant),
            overhead=fit_overhead(overheads(results, measured_on.workers_per_node)),
            batches=_batch_study(results, setting, row.variant, question.goal),
            watts_per_worker=_watts(results, rows),
        )

    def possible(self, workers: int) -> bool:
        """A global batch that does not divide among the workers cannot be shared out."""
        return self.setting.scaling == "weak" or self.setting.global_batch % (workers * self.setting.accumulation) == 0

    def option(self, workers: int) -> Option:
        setting = self.setting.with_workers(workers)
        batch = setting.global_batch
        rate, parts, measured, notes = self.throughputs.at(setting)
        samples = self.results.facts.train_samples
        epoch_steps = steps_per_epoch(samples, batch)
        step_s = over(batch, rate)
        steps, epochs, unknown = self._steps(batch, epoch_steps)
        learned = learning_at(self.results, setting, self.batches)
        # Where somebody asks about a target, steps to it are the judge: the study was held against its own.
        why_not = None if self.question.goal is not None and steps is not None else learned.why_not
        wall = overhead_s = joules = None
        if steps is not None:
            wall = product(steps, step_s)
            if self.overhead:
                outside = self.overhead.at(workers, placed(workers, self.throughputs.workers_per_node)[0], epochs)
                overhead_s, wall = outside.value, plus(wall, outside)
            if self.watts_per_worker is not None:
                joules = times(product(steps, step_s), workers * self.watts_per_worker)
        return Option(
            workers=workers,
            nodes=placed(workers, self.throughputs.workers_per_node)[1],
            batch_per_worker=setting.batch_per_worker,
            accumulation=setting.accumulation,
            measured=measured,
            samples_per_s=rate,
            step_s=step_s,
            epoch_s=times(step_s, epoch_steps),
            parts=parts,
            steps_per_epoch=epoch_steps,
            steps=steps,
            overhead_s=overhead_s,
            wall_s=wall,
            joules=joules,
            lr=self._lr(batch),
            epochs_stable=_expected(self.batches.epochs_stable, batch) if self.batches else None,
            metric=learned.metric,
            metric_measured=learned.measured,
            learns=why_not is None,
            price=self.question.price,
            speedup=narrower(row.speedup) if measured and (row := self.throughputs.row(workers)) else None,
            notes=(*notes, *unknown, *([why_not] if why_not else [])),
        )

    def _lr(self, batch: int) -> float | None:
        train = self.results.spec.train
        if train is None or self.optimizer is None:
            return None
        return scaled_lr(self.optimizer, train, batch)

    def _steps(self, batch: int, steps_per_epoch: int) -> tuple[Interval | None, float, tuple[str, ...]]:
        """Of the whole training, with its evaluations, or why it is not known."""
        train = self.results.spec.train
        if train is None:
            return None, 0.0, ()
        if self.question.goal is None and train.steps is not None:
            return (
                None,
                0.0,
                (f"{train.steps} steps are not the same training at another batch: no time of it is told",),
            )
        if self.question.goal is None and train.until is None:
            steps = float(train.total_steps(self.results.facts.train_samples, batch))
            return Interval(steps, steps, steps), math.ceil(steps / steps_per_epoch), ()
        if self.batches is None or self.batches.steps is None:
            return None, 0.0, (self._never_reached(),)
        found = self.batches.steps.predict(batch)
        if found.unknown is not None or found.steps is None:
            return None, 0.0, (f"time to the target not known: {WHY[found.unknown]}",)
        return found.steps, math.ceil(found.steps.value / steps_per_epoch), ()

    def _never_reached(self) -> str:
        until = self.results.spec.train.until if self.results.spec.train else None
        if self.question.goal is not None and until is not None:
            return f"no run went on to the target: training ended at the study's own, {until.metric} {until.value:g}"
        return "no run reached the target, so no time to it is known"

    def findings(self, asked: Iterable[int]) -> Iterable[Finding]:
        """What the projection rests on, and the measurement that would narrow it most."""
        if self.question.network is not None:
            return  # what was measured here is not what is asked about
        asked, counts = list(asked), self.throughputs.series.workers
        if len(counts) == 1 and (self.throughputs.model is None or self.throughputs.model.top == 1):
            yield Finding(code="projected-from-one-count", numbers={"workers": float(counts[0])})
        crossing = [n for n in asked if crossing_kind(self.throughputs.series, n) == "new"]
        if crossing:
            yield Finding(
                code="node-never-left",
                numbers={"workers": float(min(crossing)), "places": float(self.throughputs.workers_per_node)},
            )
        yield from self._next_measurement([n for n in asked if n not in counts])

    def _next_measurement(self, asked: Sequence[int]) -> Iterable[Finding]:
        """Every doubling nearer narrows the interval: the largest count that fits here and is not beyond the asked."""
        if not asked:
            return
        places, largest = self.throughputs.workers_per_node, self.throughputs.series.largest
        candidates = {*(2**power for power in range(20)), places, *asked}
        feasible = [n for n in candidates if largest < n <= places and self.possible(n)]
        useful = [n for n in feasible if n <= max(asked)]
        if useful:
            yield Finding(code="measure-next", numbers={"workers": float(max(useful))})
        elif max(asked) > places and self.possible(2 * places):
            yield Finding(code="measure-two-nodes", numbers={"workers": float(2 * places), "places": float(places)})


def _batch_study(results: Results, setting: Setting, variant: str | None, target: float | None) -> BatchStudy | None:
    """Of the variant that the answer names, else of the first that was trained this way."""
    wanted = results.goal if target is None else Goal(value=target, at_least=results.facts.higher_is_better)
    for name in dict.fromkeys((variant, None)):
        for study in results.batch_studies_for(wanted, name):
            if study.method == setting.method.undivided:
                return study
    return None


def _optimizer(results: Results, variant: str | None) -> OptimizerSpec | None:
    trained = [trial for trial in results.trials.values() if trial.kind == "train"]
    named = [trial for trial in trained if trial.variant == variant]
    return next((trial.optimizer for trial in [*named, *trained]), None)


def _expected(trend: Trend | None, batch: int) -> Interval | None:
    return trend.predict(batch).value if trend else None


def _watts(results: Results, rows: Sequence[ScalingRow]) -> float | None:
    """Joules a sample times samples a second, of one worker, at the largest count that was watched."""
    known = {setting: found.joules_per_sample for setting, found in results.hardware if found.joules_per_sample}
    for row in reversed(rows):
        if row.setting in known:
            return known[row.setting] * row.samples_per_s.value / row.setting.workers
    return None
