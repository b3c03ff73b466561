"""Projects the training time of settings that differ only in workers to any count.

Also decides whether a model still learns at a setting, as measured there or as expected from other batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import PROJECTED_LEVEL, Estimate
from worldsize.analysis.learning.larger_batches import BatchStudy, Trend
from worldsize.analysis.learning.variants import Goal
from worldsize.analysis.projection.bare import crossing_kind
from worldsize.analysis.projection.choice import Option
from worldsize.analysis.projection.overhead import OverheadModel, fit_overhead
from worldsize.analysis.projection.series_law import table_series
from worldsize.analysis.projection.step_model import fit_throughput
from worldsize.analysis.speed.network import node_layout
from worldsize.analysis.speed.recommend import METRIC_SLACK, Finding, learning_unclear, learns_less
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.from_records import node, overheads, step_timings
from worldsize.answer.predict.question import Question
from worldsize.answer.predict.throughput_at import Throughputs
from worldsize.answer.results import Results
from worldsize.data.catalog import metric_bounds
from worldsize.errors import InputError
from worldsize.plan.grid import scaled_lr
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.setting import Setting
from worldsize.spec.training import steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class Learned:
    metric: Estimate | None
    measured: bool
    """Whether the setting was trained. Otherwise the metric is expected."""
    why_not: str | None
    """Why the setting is not recommended, whatever its speed. None if there is no reason."""
    unclear: str | None = None
    """Note that the setting may learn less, if noise leaves that open."""


def learning_at(results: Results, setting: Setting, batches: BatchStudy | None) -> Learned:
    """Return whether a model learns at this setting, compared with the best metric of the study, as in its answer."""
    metrics = {row.setting: row for row in results.rows}
    best = _best(results)
    trained = {ranking.setting for ranking in results.variant_rankings}
    samples = results.facts.train_samples
    least, most = metric_bounds(results.facts.metric)
    if setting.global_batch > samples:
        too_large = f"{_where(setting)}, a step would need more than the {samples:,} training samples"
        return Learned(metric=None, measured=False, why_not=too_large)
    row = metrics.get(setting)
    if setting in trained:
        if row is None or row.metric is None:
            return Learned(
                metric=None, measured=True, why_not=f"{_where(setting)}, training diverged or missed its target"
            )
        assert row.metric_sample is not None
        assert best is not None
        less = learns_less(row, best)
        return Learned(
            metric=row.metric_sample.estimate(PROJECTED_LEVEL).clipped(least, most),
            measured=True,
            why_not=f"{_where(setting)}, the model learned less" if less else None,
            unclear=_unclear(row, best) if less is None else None,
        )
    if batches is None or batches.metric is None:
        return Learned(metric=None, measured=False, why_not=None)
    expected = batches.metric.predict(setting.global_batch)
    if expected.unknown == "failed-there":
        return Learned(metric=None, measured=False, why_not=f"{_where(setting)} or below, training failed")
    # An expected metric counts as worse only if even the better end of its interval is.
    ends = expected.value.ends if expected.value else ()
    better_end = (max if results.facts.higher_is_better else min)(ends, default=None)
    why = (
        f"{_where(setting)}, the model is expected to learn less"
        if better_end is not None and _behind(results, better_end, best)
        else None
    )
    return Learned(metric=expected.value, measured=False, why_not=why)


def _unclear(row: ScalingRow, best: float) -> str:
    """Say that a setting may learn less, and how many runs would decide, as the answer of the study does."""
    needed = learning_unclear(row, best).numbers.get("repeats_needed")
    runs = "a second run" if not isinstance(needed, float) else f"about {needed:.0f} runs"
    return f"{_where(row.setting)}, the model may learn less; {runs} would show"


def _best(results: Results) -> float | None:
    metrics = [row.metric.value for row in results.rows if row.metric is not None]
    sign = 1.0 if results.facts.higher_is_better else -1.0
    return max(metrics, key=lambda metric: sign * metric, default=None)


def _behind(results: Results, metric: float, best: float | None) -> bool:
    if best is None:
        return False
    shortfall = best - metric if results.facts.higher_is_better else metric - best
    return shortfall > METRIC_SLACK * abs(best)


def _where(setting: Setting) -> str:
    return f"at a global batch of {setting.global_batch}"


WHY = {
    None: "no law fits",
    "not-reached-there": "runs at this batch or a smaller one missed it",
    "too-far": "the batch is too far beyond those that were trained",
    "steps-rise": "larger batches needed more steps, which no law predicts",
}
"""Why the steps to the target are unknown."""


@dataclass(frozen=True, kw_only=True)
class WorkerCurve:
    """Settings that differ only in workers, and the models that project them."""

    results: Results
    question: Question
    setting: Setting
    throughputs: Throughputs
    optimizer: OptimizerSpec | None
    """Optimizer of the variant that the answer names; None if nothing was trained."""
    overhead: OverheadModel | None
    batches: BatchStudy | None
    """Effect of the global batch on learning: steps to a target or, without one, epochs until stable and the metric."""
    watts_per_worker: float | None
    """Power of one worker while it trains, in watts."""

    @classmethod
    def of(cls, results: Results, row: ScalingRow, question: Question) -> WorkerCurve:
        setting, network = row.setting, question.network
        if network and (declared := question.workers_per_node) not in (None, network.workers_per_node):
            network = replace(
                network, workers_per_node=declared, source=f"{network.source}, but {declared} workers per node"
            )
        if question.batch_per_worker is not None:
            if setting.scaling == "strong":
                raise InputError(
                    f"batch_per_worker={question.batch_per_worker}: this study has a fixed global batch of "
                    f"{setting.global_batch}, which determines the batch per worker; leave out --batch"
                )
            setting = replace(setting, batch_per_worker=question.batch_per_worker)
        rows = tuple(other for other in results.rows if other.setting.series == setting.series)
        measured_on = node(results, setting, None if network else question.workers_per_node)
        parts = step_timings(results, setting)
        # A batch that was never run has no series. The model provides one at the counts that were run.
        model = fit_throughput(parts, measured_on) if parts else None
        if not rows and model is None:
            raise InputError(
                f"nothing was measured with {setting.strategy.label}, {setting.precision}; run the study first"
            )
        points = [(other.setting.workers, other.samples_per_s.value) for other in rows]
        if not points and model is not None:
            counts = sorted({timing.workers for timing in parts})
            batch, times = setting.batch_per_worker, setting.accumulation
            points = [(n, n * batch * times / model.parts(n, batch, times).step_s) for n in counts]
        per_node = network.workers_per_node if network else measured_on.workers_per_node
        return cls(
            results=results,
            question=question,
            setting=setting,
            throughputs=Throughputs(
                rows=rows,
                model=model,
                series=table_series(points, workers_per_node=per_node),
                workers_per_node=per_node,
                network=network,
                noise_samples=tuple(other.pace.throughput for other in rows or results.rows),
            ),
            optimizer=_optimizer(results, row.variant),
            overhead=fit_overhead(overheads(results, measured_on.workers_per_node)),
            batches=_batch_study(results, setting, row.variant, question.goal),
            watts_per_worker=_watts(results, rows),
        )

    def possible(self, workers: int) -> bool:
        """Whether the global batch divides among the workers."""
        return self.setting.scaling == "weak" or self.setting.global_batch % (workers * self.setting.accumulation) == 0

    def option(self, workers: int) -> Option:
        """Return everything known or projected about one worker count."""
        setting = self.setting.with_workers(workers)
        batch, row = setting.global_batch, self.throughputs.row(workers)
        throughput = self.throughputs.at(setting)
        rate, measured = throughput.samples_per_s, throughput.measured
        samples = self.results.facts.train_samples
        epoch_steps = steps_per_epoch(samples, batch)
        step_s = rate.time_for(batch)
        steps, epochs, unknown = self._steps(batch, epoch_steps)
        learned = learning_at(self.results, setting, self.batches)
        # If the question names a target, steps to that target decide; `learned` uses the study's own target.
        why_not = None if self.question.goal is not None and steps is not None else learned.why_not
        wall = overhead_s = joules = None
        if steps is not None:
            training_s = wall = steps.times(step_s)
            if self.overhead:
                outside = self.overhead.at(workers, node_layout(workers, self.throughputs.workers_per_node)[0], epochs)
                overhead_s, wall = outside.value, wall.plus(outside)
            if self.watts_per_worker is not None:
                joules = training_s.scaled(workers * self.watts_per_worker)
        return Option(
            workers=workers,
            nodes=node_layout(workers, self.throughputs.workers_per_node)[1],
            batch_per_worker=setting.batch_per_worker,
            accumulation=setting.accumulation,
            measured=measured,
            samples_per_s=rate,
            step_s=step_s,
            epoch_s=rate.time_for(samples),
            parts=throughput.parts,
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
            speedup=row.pace.speedup.exp(PROJECTED_LEVEL) if measured and row else None,
            notes=(*throughput.notes, *unknown, *filter(None, (why_not, learned.unclear))),
        )

    def _lr(self, batch: int) -> float | None:
        train = self.results.spec.train
        if train is None or self.optimizer is None:
            return None
        return scaled_lr(self.optimizer, train, batch)

    def _steps(self, batch: int, steps_per_epoch: int) -> tuple[Estimate | None, float, tuple[str, ...]]:
        """Return steps and epochs of the whole training, or a note why they are unknown."""
        train = self.results.spec.train
        if train is None:
            return None, 0.0, ()
        if self.question.goal is None and train.steps is not None:
            return (
                None,
                0.0,
                (f"training time unknown: {train.steps} steps at another batch are a different training",),
            )
        if self.question.goal is None and train.until is None:
            steps = float(train.total_steps(self.results.facts.train_samples, batch))
            return Estimate(value=steps), math.ceil(steps / steps_per_epoch), ()
        if self.batches is None or self.batches.steps is None:
            return None, 0.0, (self._never_reached(),)
        prediction = self.batches.steps.predict(batch)
        if prediction.unknown is not None or prediction.steps is None:
            return None, 0.0, (f"time to the target unknown: {WHY[prediction.unknown]}",)
        return prediction.steps, math.ceil(prediction.steps.value / steps_per_epoch), ()

    def _never_reached(self) -> str:
        until = self.results.spec.train.until if self.results.spec.train else None
        if self.question.goal is not None and until is not None:
            return f"time to the target unknown: training ended at the study's own, {until.metric} {until.value:g}"
        return "time to the target unknown: no run reached it"

    def findings(self, asked: Iterable[int]) -> Iterable[Finding]:
        """Yield what the projection is based on, and the measurement that would narrow it most."""
        if self.question.network is not None:
            return  # the question is about another network than the measured one
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
        """Suggest the largest count that fits on a node and is not beyond those asked about.

        The closer the measurement is to them, the narrower the interval.
        """
        if not asked:
            return
        per_node, largest = self.throughputs.workers_per_node, self.throughputs.series.largest
        candidates = {*(2**power for power in range(20)), per_node, *asked}
        feasible = [n for n in candidates if largest < n <= per_node and self.possible(n)]
        useful = [n for n in feasible if n <= max(asked)]
        if useful:
            yield Finding(code="measure-next", numbers={"workers": float(max(useful))})
        elif max(asked) > per_node and self.possible(2 * per_node):
            yield Finding(code="measure-two-nodes", numbers={"workers": float(2 * per_node), "places": float(per_node)})


def _batch_study(results: Results, setting: Setting, variant: str | None, target: float | None) -> BatchStudy | None:
    """Return the batch study of the variant that the answer names, or of the first variant trained with this method."""
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


def _expected(trend: Trend | None, batch: int) -> Estimate | None:
    return trend.predict(batch).value if trend else None


def _watts(results: Results, rows: Sequence[ScalingRow]) -> float | None:
    """Return the power per worker: joules per sample * samples per second, at the largest count with telemetry."""
    known = {
        setting: hardware.joules_per_sample for setting, hardware in results.hardware if hardware.joules_per_sample
    }
    for row in reversed(rows):
        if row.setting in known:
            return known[row.setting] * row.samples_per_s.value / row.setting.workers
    return None
