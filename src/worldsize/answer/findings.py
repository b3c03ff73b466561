"""Findings that accompany the answer: problems, and facts worth knowing. The report puts them into words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from worldsize.analysis.estimate import Sample
from worldsize.analysis.learning.larger_batches import recovered
from worldsize.analysis.speed.breakdown import straggler
from worldsize.analysis.speed.recommend import Answer, Finding
from worldsize.answer.as_dict import plain_setting
from worldsize.plan.plan import full_grid
from worldsize.spec.setting import Setting

if TYPE_CHECKING:
    from worldsize.answer.results import Results

SHARP_EDGE = 1.25
"""An edge is reported as a number if the two rates around it differ by at most this factor, else as a range."""
STOLEN_SHARE, STOLEN_S = 0.05, 0.1
"""A trial counts as disturbed if other guests took at least this share of the CPU time its machine requested, and at
least this many core-seconds. On a quiet host the share is below 1 %. The counter has a resolution of 0.01 s, and two
ticks are a large share of a short probe."""
FEW_TRIALS, FEW_SHARE = 1, 0.05
"""Disturbed trials are not reported up to this number or share of the trials, whichever is larger: a brief load of
another guest is normal."""
MIN_DIFFERENCE = 0.05
"""A smaller difference between probes and training, in logarithms, is not reported."""
GAP_SHARE = 0.02
"""A gap between training and test metric below this share of the metric is not reported."""


def findings(results: Results, answer: Answer) -> Iterator[Finding]:
    outcomes = [record.outcome for record in results.records.values()]
    for outcome in ("failed", "diverged", "stopped"):
        if outcome in outcomes:
            yield Finding(code=f"trials-{outcome}", numbers={"trials": outcomes.count(outcome)})
    yield from _crowded(results)
    yield from _stolen(results)
    if results.spec.adaptive:
        yield _adaptive(results)
    yield from _memory(results)
    yield from _targets(results)
    yield from _soonest(results, answer)
    yield from _edges(results)
    yield from _edges_not_found(results)
    yield from _large_batches(results)
    yield from _stragglers(results)
    yield from _training_differs(results, answer)
    if answer.row is not None:
        yield from _overfitting(results, answer.row.setting)
    reached = [record.precision_reached for record in results.records.values()]
    reached += [attempt.precision_reached for record in results.records.values() for attempt in record.tries]
    imprecise = reached.count(False)
    if imprecise and results.spec.probe:
        percent = results.spec.probe.tolerance * 100
        yield Finding(code="precision-not-reached", numbers={"trials": imprecise, "percent": percent})
    if results.left():
        yield Finding(code="trials-left", numbers={"trials": len(results.left())})


def _crowded(results: Results) -> Iterator[Finding]:
    """Other processes on the cores of the workers."""
    crowded = [share for share in results.crowded if share > 0]
    if results.is_crowded:
        numbers = {"trials": len(crowded), "of": len(results.crowded), "percent": 100 * float(np.median(crowded))}
        yield Finding(code="machine-busy", numbers={**numbers, "most": 100 * max(crowded)})


def _training_differs(results: Results, answer: Answer) -> Iterator[Finding]:
    """Training that is faster or slower than its probes, beyond noise. The answer uses both."""
    if answer.row is None or results.is_crowded:
        return
    series = [row for row in results.rows if row.pace.baseline == answer.row.pace.baseline]
    for row in series[1:]:
        if (gains := row.pace.training_gain_over(series[0].pace)) is None:
            continue
        probed, trained = gains
        # Training of each count is a launch of its own, so nothing that launches differ by cancels in its ratio.
        of_one_run = math.hypot(*(pace.noise_of_one_probe for pace in (series[0].pace, row.pace)))
        error = math.hypot(probed.error, of_one_run / math.sqrt(len(trained.repeats)))
        difference = Sample(value=probed.value - trained.value, error=error, freedom=probed.freedom)
        # A single probe does not show its noise.
        if probed.freedom and abs(difference.value) > max(difference.half_width(), MIN_DIFFERENCE):
            yield Finding(
                code="training-differs",
                numbers={"workers": row.setting.workers, "speedup": probed.exp(), "trained": trained.exp()},
            )


def _stragglers(results: Results) -> Iterator[Finding]:
    if results.is_crowded:  # the rank beside the other process is slow, for no reason of its own
        return
    for step in results.steps:
        slow = straggler(step.parts)
        if slow is not None:
            setting = step.setting
            same_count = [other.setting for other in results.steps if other.setting.workers == setting.workers]
            where = _distinguishing(setting, same_count)
            numbers = {"workers": setting.workers, "rank": slow[0], "extra_ms": slow[1] * 1e3}
            yield Finding(code="straggler", numbers=numbers, where=where)


def _stolen(results: Results) -> Iterator[Finding]:
    """Yield a finding if other guests took CPU time. Such timings say little about the machine and its scaling."""
    trials = results.stolen
    disturbed = [trial.share for trial in trials if trial.share >= STOLEN_SHARE and trial.seconds >= STOLEN_S]
    if len(disturbed) > max(FEW_TRIALS, FEW_SHARE * len(trials)):
        numbers = {"trials": len(disturbed), "of": len(trials), "percent": 100 * float(np.median(disturbed))}
        yield Finding(code="cpu-stolen", numbers={**numbers, "most": 100 * max(disturbed)})


def _adaptive(results: Results) -> Finding:
    """Return the worker-seconds of the probes that ran, relative to the full grid at the same seconds per probe."""
    probes = [trial for trial in results.trials.values() if trial.kind == "probe"]
    seconds_by_count: dict[int, list[float]] = defaultdict(list)
    for trial in probes:
        if trial.id in results.records:
            seconds_by_count[trial.workers].append(results.records[trial.id].wall_s)
    all_s = [seconds for times in seconds_by_count.values() for seconds in times]
    grid = [trial.workers for trial in full_grid(results.spec)]
    spent = sum(workers * sum(times) for workers, times in seconds_by_count.items())
    # A probe of a count that never ran is assumed to take as long as the average probe.
    grid_s = sum(workers * float(np.mean(seconds_by_count.get(workers) or all_s)) for workers in grid) if all_s else 0.0
    numbers = {"probes": float(len(probes)), "of": float(len(grid)), "worker_s": spent}
    return Finding(code="adaptive", numbers={**numbers, "percent": 100 * spent / grid_s if grid_s else 100.0})


def _memory(results: Results) -> Iterator[Finding]:
    """Yield the results of searches for the largest batch, and listed batches that do not fit."""
    for largest in results.largest:
        numbers: dict[str, float] = {
            "workers": largest.setting.workers,
            "fits": largest.fits or 0,
            "enough": largest.enough or 0,
            "tried": largest.too_large or largest.rows[-1].batch_per_worker,
        }
        code = "largest-batch-none" if largest.fits is None else f"largest-batch-{largest.ended}"
        where = _distinguishing(largest.setting, [other.setting for other in results.largest], but="batch_per_worker")
        yield Finding(code=code, numbers=numbers, where=where)
    out_of_memory: dict[tuple[int, int], int] = Counter(
        (trial.workers, trial.batch_per_worker)
        for name, record in results.records.items()
        if record.outcome == "out_of_memory" and not (trial := results.trials[name]).largest
    )
    for (workers, batch), trials in sorted(out_of_memory.items()):
        yield Finding(code="out-of-memory", numbers={"workers": workers, "batch": batch, "trials": trials})


def _distinguishing(setting: Setting, among: list[Setting], but: str | None = None) -> dict[str, int | str]:
    """Return the fields in which the settings differ, with the values of this setting."""
    all_fields = [plain_setting(candidate) for candidate in among]
    return {
        name: value
        for name, value in plain_setting(setting).items()
        if name != but and len({fields[name] for fields in all_fields}) > 1
    }


def _targets(results: Results) -> Iterator[Finding]:
    """Yield a finding if trials ran to their last epoch without reaching the target.

    Other findings cover trials that ended early.
    """
    until = results.spec.train.until if results.spec.train else None
    with_target = [variant for ranking in results.variant_rankings for variant in ranking.variants if variant.target]
    if until is None or not with_target:
        return
    targets = [variant.target for variant in with_target if variant.target]
    early = sum(variant.diverged + variant.stopped + variant.plateaued for variant in with_target)
    missed = sum(target.repeats - target.reached for target in targets) - early
    if missed > 0:
        target = targets[0].target
        yield Finding(
            code="target-not-reached",
            numbers={
                "trials": missed,
                "of": sum(target.repeats for target in targets),
                "value": target.value,
                "epochs": float(until.max_epochs),
            },
            names={"metric_name": until.metric, "sign": "at least" if target.at_least else "at most"},
        )


def _soonest(results: Results, answer: Answer) -> Iterator[Finding]:
    """Yield the setting that reaches the target soonest, if it is not the recommended one.

    Throughput alone does not show that larger batches need more epochs.
    """
    times = {
        ranking.setting: seconds.value
        for ranking in results.variant_rankings
        if (target := ranking.variants[0].target) and target.always and (seconds := target.seconds)
    }
    soonest = min(times, key=lambda setting: times[setting], default=None)
    if answer.row is not None and soonest is not None and soonest != answer.row.setting:
        numbers = {"workers": soonest.workers, "batch": soonest.global_batch, "seconds": times[soonest]}
        yield Finding(code="soonest-target", numbers=numbers)


def _edges(results: Results) -> Iterator[Finding]:
    known = {name: value for record in results.records.values() for name, value in record.known.items()}
    single_setting = len(results.variant_rankings) == 1
    for (setting, _, label), edge in results.edges.items():
        numbers = {"lr": edge.estimate, "held": edge.stable_lr, "diverged": edge.diverged}
        names = {"optimizer": label if single_setting else f"{label} (global batch {setting.global_batch})"}
        sharp = edge.diverged <= edge.stable_lr * SHARP_EDGE
        yield Finding(code="rate-edge" if sharp else "rate-edge-wide", numbers=numbers, names=names)
        if sharp and label == "sgd" and "largest_stable_rate" in known:
            theory = known["largest_stable_rate"]
            off_percent = (edge.estimate / theory - 1) * 100
            code = "rate-edge-theory" if edge.stable_lr <= theory <= edge.diverged else "rate-edge-theory-off"
            yield Finding(code=code, numbers={"theory": theory, "off": off_percent})
        if not edge.monotone:
            numbers = {"diverged": edge.diverged, "held": edge.highest_stable_lr}
            yield Finding(code="rate-edge-blurred", numbers=numbers, names=names)


def _edges_not_found(results: Results) -> Iterator[Finding]:
    if results.left():
        return
    for entry in results.spec.axes.optimizer:
        search = entry.searched().get("lr")
        families = {setting.family for setting in entry.settings()}
        if search and search.divergence_within and not any(family in families for _, family, _ in results.edges):
            low, high = search.search
            yield Finding(code="no-rate-edge", numbers={"low": low, "high": high}, names={"optimizer": entry.name})


def _large_batches(results: Results) -> Iterator[Finding]:
    """Yield how much of the metric lost at large batches a scaled learning rate recovers.

    This compares equal epochs only: with equal steps, a larger batch sees more samples.
    """
    if results.spec.train is None or results.spec.train.epochs is None:
        return
    for recovery in recovered(results.variant_rankings, higher_is_better=results.facts.higher_is_better):
        yield Finding(
            code="large-batch",
            numbers={
                "batch": recovery.global_batch,
                "factor": recovery.global_batch / recovery.base_batch,
                "lost": recovery.lost.value,
                "won_back": recovery.share.scaled(100),
            },
            names={"metric_name": results.facts.metric, "unscaled": recovery.unscaled, "variant": recovery.variant},
        )


def _overfitting(results: Results, setting: Setting) -> Iterator[Finding]:
    best = next((ranking.variants[0] for ranking in results.variant_rankings if ranking.setting == setting), None)
    if best is None or best.gap is None or best.metric is None:
        return
    # A single run does not show run-to-run variation, so half of its gap must exceed the threshold.
    low = best.gap.ends[0] if best.gap.has_interval else best.gap.value / 2
    if low > GAP_SHARE * abs(best.metric.value):
        numbers = {"gap": best.gap.value, "value": best.metric.value}
        yield Finding(code="overfitting", numbers=numbers, names={"metric_name": results.facts.metric})
