"""The sentence of every finding, in one dictionary. Plain text; the writers escape it for their medium."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.recommend import Finding
from worldsize.report.words.numbers import metric_value, percents, rate
from worldsize.report.words.quantities import EFFICIENCY, SPEEDUP, Quantity
from worldsize.report.words.settings import HOW, WORDS

MOST_REPEATS = 100
"""The most repeats to ask for. If more are needed, the machine is too noisy."""
IN_THE_ANSWER = ("next-count-not-worth-it", "close-call", "trials-failed")
"""Codes of findings that the answer itself includes."""
LARGEST_BATCH = "largest-batch-"
"""Prefix of the codes for the result of a search for the largest batch."""

Level = Literal["doubt", "caution", "problem", "note"]
"""doubt: the reason why there is no answer; caution: the measurements may be wrong; problem: something went wrong;
note: worth knowing."""


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    text: str
    """A template. `{speedup}` is formatted by its quantity, with its interval if it has one."""
    level: Level = "note"


METRIC = Quantity(key="metric", title="metric", digits=metric_value)
LR = Quantity(key="lr", title="learning rate", digits=rate)
PERCENT = Quantity(key="percent", title="share", unit="%", digits=percents)
QUANTITIES: dict[str, Quantity] = {
    **dict.fromkeys(("speedup", "trained"), SPEEDUP),
    "efficiency": EFFICIENCY,
    **dict.fromkeys(("metric", "best", "value", "gap", "lost"), METRIC),
    **dict.fromkeys(("lr", "held", "diverged", "theory"), LR),
    **dict.fromkeys(("percent", "won_back", "most"), PERCENT),
}
"""Quantity of each number in a template. Other numbers have a format in the template."""

FINDINGS: dict[str, FindingKind] = {
    # Why there is no answer.
    "nothing-measured": FindingKind(level="doubt", text="No trial has finished yet; run the study."),
    "nothing-learned": FindingKind(
        level="doubt",
        text="No setting finished all of its training runs with a finite loss. Lower the learning rate, or look into "
        "the failed trials.",
    ),
    "nothing-reached": FindingKind(
        level="doubt",
        text="No setting reached the target in all of its runs. Train longer, or set an easier target.",
    ),
    "learning-against-speed": FindingKind(
        level="doubt",
        text="{workers:.0f} workers are only {speedup} as fast as {few:.0f}, but with {few:.0f} the model learned "
        "less: {metric} instead of {best}. To decide, train longer or with another learning rate.",
    ),
    "failing-against-speed": FindingKind(
        level="doubt",
        text="{workers:.0f} workers are only {speedup} as fast as {few:.0f}, but training with {few:.0f} diverged or "
        "missed the target. To decide, train longer or with another learning rate.",
    ),
    "one-count": FindingKind(
        level="doubt",
        text="Only one worker count was measured. Add another one to axes.workers to see how training scales.",
    ),
    "too-noisy": FindingKind(
        level="doubt",
        text="With {workers:.0f} workers the speedup is {speedup}, measured in {repeats:.0f} run(s). About "
        "{repeats_needed:.0f} runs would decide: raise probe.repeats, or use a quieter machine.",
    ),
    "far-too-noisy": FindingKind(
        level="doubt",
        text="With {workers:.0f} workers the speedup is {speedup}, measured in {repeats:.0f} run(s). That is very "
        "noisy: find out what else runs on the machine, then raise probe.repeats.",
    ),
    # What casts doubt on the measurements.
    "machine-busy": FindingKind(
        level="caution",
        text="Not a clean measurement: other processes used {percent} of the CPU (median of {trials:.0f} of {of:.0f} "
        "trials; up to {most}), on cores that the workers needed. Stop the other work and run the study again in a "
        "new folder.",
    ),
    "cpu-stolen": FindingKind(
        level="caution",
        text="Not a quiet machine: during {trials:.0f} of {of:.0f} trials the hypervisor withheld {percent} of the CPU "
        "time that this virtual machine asked for (median; up to {most}), because of other guests or a quota. Timings "
        "may differ on a quiet machine; run the study again when it is quiet.",
    ),
    # What went wrong.
    "trials-failed": FindingKind(
        level="problem",
        text="{trials:.0f} trial(s) failed. `worldsize status FOLDER` shows why; --retry-failed runs failed trials "
        "again.",
    ),
    "trials-diverged": FindingKind(
        level="problem", text="{trials:.0f} trial(s) diverged: the loss exploded or was not a number."
    ),
    "learning-lost": FindingKind(
        level="problem",
        text="With {workers:.0f} workers (global batch {global_batch:.0f}) the model learns less: {metric} instead of "
        "{best}. Try another learning rate for this batch, or train longer.",
    ),
    "straggler": FindingKind(
        level="problem",
        text="Rank {rank:.0f} of {workers:.0f} computes {extra_ms:.3g} ms longer per step than the others, which wait "
        "for it. Check what else runs on its core or GPU, and its share of the data.",
    ),
    "training-differs": FindingKind(
        level="problem",
        text="Probes and training disagree: {workers:.0f} workers are {speedup} as fast in probes and {trained} in "
        "training. The answer uses both, so its interval is wider.",
    ),
    "overfitting": FindingKind(
        level="problem",
        text="Overfitting: {metric_name} on training samples is {gap} better than on test samples ({value}).",
    ),
    "target-not-reached": FindingKind(
        level="problem",
        text="{trials:.0f} of {of:.0f} trials ran all {epochs:.0f} epochs without reaching {metric_name} of "
        "{sign} {value}.",
    ),
    # Worth knowing.
    "next-count-not-worth-it": FindingKind(
        text="{workers:.0f} workers would be only {speedup} as fast, which is {efficiency} efficient."
    ),
    "close-call": FindingKind(
        text="Whether {workers:.0f} workers are worthwhile is too close to call; more repeats would decide."
    ),
    "learning-unclear": FindingKind(
        text="With a global batch of {global_batch:.0f} the model may learn less: {metric} instead of {best}, in "
        "{repeats:.0f} runs. About {repeats_needed:.0f} runs would decide."
    ),
    "learning-unclear-once": FindingKind(
        text="With a global batch of {global_batch:.0f} the model may learn less: {metric} instead of {best}, in a "
        "single run. Set `repeats: 3` to find out."
    ),
    "largest-count-measured": FindingKind(
        text="No more than {workers:.0f} workers were measured; more may still be worthwhile."
    ),
    "one-repeat": FindingKind(
        text="Some settings ran only once, so run-to-run variation is unknown. Set `repeats: 3`."
    ),
    "adaptive": FindingKind(
        text="Adaptive study: {probes:.0f} of the {of:.0f} probes of the full grid were enough. They took "
        "{worker_s:.0f} worker-seconds, about {percent} of what the full grid would take."
    ),
    "no-rate-edge": FindingKind(
        text="{optimizer}: training does not start to diverge anywhere between learning rates {low:.4g} and "
        "{high:.4g}. Widen the search."
    ),
    "soonest-target": FindingKind(
        text="{workers:.0f} workers with a global batch of {batch:.0f} reach the target soonest, in {seconds:.3g} s of "
        "training."
    ),
    "trials-stopped": FindingKind(
        text="{trials:.0f} trial(s) of a search stopped early for being worse than the median of the others."
    ),
    "rate-edge": FindingKind(
        text="{optimizer} diverges above a learning rate of about {lr}: {held} was stable, {diverged} diverged."
    ),
    "rate-edge-wide": FindingKind(
        text="{optimizer} starts to diverge somewhere between learning rates {held}, which was stable, and {diverged}, "
        "which diverged."
    ),
    "rate-edge-theory": FindingKind(
        text="Theory predicts {theory} (2 / the largest eigenvalue of the Hessian), which lies between the two."
    ),
    "rate-edge-theory-off": FindingKind(
        text="Theory predicts {theory} (2 / the largest eigenvalue of the Hessian), so the measurement is off by "
        "{off:+.0f} %."
    ),
    "rate-edge-blurred": FindingKind(
        text="{optimizer}: learning rate {diverged} diverged but {held} did not, so there is no sharp limit."
    ),
    "large-batch": FindingKind(
        text="With {factor:.3g} times the batch ({batch:.0f}) and the same number of epochs, {unscaled} loses {lost} "
        "in {metric_name}; {variant} recovers {won_back} of that."
    ),
    "largest-batch-memory": FindingKind(
        text="The largest batch per worker that fits is {fits:,.0f} ({tried:,.0f} runs out of memory). {enough:,.0f} "
        "is the smallest within 5 % of the best throughput."
    ),
    "largest-batch-throughput": FindingKind(
        text="A batch of {fits:,.0f} per worker fits. Larger ones were not tried, because throughput no longer rises. "
        "{enough:,.0f} is the smallest within 5 % of the best throughput."
    ),
    "largest-batch-most": FindingKind(
        text="A batch of {fits:,.0f} per worker fits, which is the largest that the study allows. {enough:,.0f} is the "
        "smallest within 5 % of the best throughput."
    ),
    "largest-batch-none": FindingKind(text="No batch fits: even {tried:,.0f} per worker runs out of memory."),
    "out-of-memory": FindingKind(
        text="A batch of {batch:,.0f} per worker does not fit into memory with {workers:.0f} worker(s) "
        "({trials:.0f} trial(s))."
    ),
    "trials-left": FindingKind(text="{trials:.0f} trial(s) left to run; the same command continues the study."),
    "precision-not-reached": FindingKind(
        text="{trials:.0f} probe(s) ran out of time before the step time was known to within {percent}; see "
        "the intervals for the uncertainty."
    ),
    # Findings of projections.
    "limit-data": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, waiting for data costs {percent} of the ideal speedup."
    ),
    "limit-compute": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, each worker computes more slowly because they share cores, "
        "memory or power, which costs {percent} of the ideal speedup."
    ),
    "limit-fixed-cost": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, the part of a step that does not shrink with its batch costs "
        "{percent} of the ideal speedup."
    ),
    "limit-not-measured": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, about {percent} of the ideal speedup would be lost. The cause "
        "was not measured."
    ),
    "limit-communication": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, exchanging gradients and waiting for the slowest worker cost "
        "{percent} of the ideal speedup."
    ),
    "limit-learning": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, the global batch of {global_batch:.0f} needs more epochs, "
        "which costs {percent} of the ideal speedup."
    ),
    "limit-above-the-step": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, startup, data preparation and evaluation do not get shorter, "
        "which costs {percent} of the ideal speedup."
    ),
    "limit-data-set-too-small": FindingKind(
        text="The data set is small: with {workers:.0f} workers an epoch has only {steps_per_epoch:.0f} steps of "
        "{global_batch:.0f} samples, which is too few."
    ),
    "nothing-limits": FindingKind(text="Nothing measured limits scaling up to {workers:.0f} workers."),
    "projected-from-one-count": FindingKind(
        text="Only one count, {workers:.0f} worker(s), was measured, so the projection assumes typical scaling."
    ),
    "node-never-left": FindingKind(
        text="{workers:.0f} workers need more than one node of {places:.0f} workers, and no run has used two nodes. "
        "The interval is wide because the cost of the network is a guess. To narrow it, measure on two nodes, or "
        "describe the network with --network."
    ),
    "projected-too-widely": FindingKind(
        text="With {workers:.0f} worker(s), throughput may be anywhere from {low:,.4g} to {high:,.4g} samples/s."
    ),
    "nothing-learns": FindingKind(text="The model does not learn with any of these batches."),
    "target-time-not-known": FindingKind(
        text="The time to reach {target:g} is unknown for all of these worker counts."
    ),
    "measure-next": FindingKind(text="Measure {workers:.0f} workers to narrow these intervals the most."),
    "measure-two-nodes": FindingKind(
        text="A machine like this runs up to {places:.0f} worker(s). To go further, measure {workers:.0f} workers "
        "on two machines, or describe your network with `worldsize predict --network`."
    ),
}

WHERE: dict[str, Callable[[Any], str]] = {
    **{name: WORDS[name] for name in ("workers", *HOW)},
    "batch_per_worker": lambda batch: f"batch {batch:,}",
}
"""Words for the fields of the setting that a finding is about."""


def number_of(finding: Finding, name: str) -> float:
    """Return a number of a finding, or the value of an estimate."""
    return _value(finding.numbers[name])


def is_bad(code: str) -> bool:
    """Whether findings with this code report that something went wrong."""
    return code in FINDINGS and FINDINGS[code].level == "problem"


def is_doubt(finding: Finding) -> bool:
    """Whether a finding explains why there is no answer."""
    return FINDINGS[finding.code].level == "doubt"


def sentence(finding: Finding) -> str:
    """Return the sentence of a finding. If it is about one of several settings, the sentence names that setting."""
    code = finding.code
    if code == "too-noisy" and _value(finding.numbers["repeats_needed"]) > MOST_REPEATS:
        code = "far-too-noisy"
    template = plural(FINDINGS[code].text, {name: _value(number) for name, number in finding.numbers.items()})
    numbers = {name: _formatted(name, number) for name, number in finding.numbers.items()}
    text = template.format(**numbers, **finding.names)
    where = ", ".join(words(finding.where[name]) for name, words in WHERE.items() if name in finding.where)
    return f"With {where}: {text}" if where else text


def _value(number: float | Estimate) -> float:
    return number.value if isinstance(number, Estimate) else number


def _formatted(name: str, number: float | Estimate) -> Any:
    """Return the number as text, or as it is if the template formats it."""
    quantity = QUANTITIES.get(name)
    if quantity is None:
        return number
    return quantity.full(number) if isinstance(number, Estimate) else quantity.said(number)


def plural(template: str, numbers: Mapping[str, float]) -> str:
    """Resolve `trial(s)` in `{trials:.0f} trial(s)` to singular or plural.

    This works on the template, before names from outside are inserted, so that it cannot change them.
    """
    return re.sub(
        r"(\{(\w+):[^{}]*\} \w+)\(s\)", lambda match: match[1] + ("" if numbers[match[2]] == 1 else "s"), template
    )
