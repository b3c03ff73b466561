"""Findings as sentences: one dictionary of all that can be found. Plain text; the writers escape for their medium."""

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
"""Upper limit of the repeats to ask for: if more are needed, fix the noisy machine."""
IN_THE_ANSWER = "next-count-not-worth-it"
"""The finding about the next count, which is part of the answer itself."""
LARGEST_BATCH = "largest-batch-"
"""Prefix of the codes of a search for the largest batch."""

Level = Literal["doubt", "caution", "problem", "note"]
"""doubt: why there is no answer; caution: the measurements may be wrong; problem: something went wrong; note: worth
knowing."""


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    text: str
    """A template: `{speedup}` prints as its quantity does, with its interval if it has one."""
    level: Level = "note"


METRIC = Quantity(key="metric", title="metric", digits=metric_value)
LR = Quantity(key="lr", title="learning rate", digits=rate)
PERCENT = Quantity(key="percent", title="share", unit="%", digits=percents)
QUANTITIES: dict[str, Quantity] = {
    "speedup": SPEEDUP,
    "efficiency": EFFICIENCY,
    **dict.fromkeys(("metric", "best", "value", "gap", "lost"), METRIC),
    **dict.fromkeys(("lr", "held", "diverged", "theory"), LR),
    **dict.fromkeys(("percent", "won_back", "most"), PERCENT),
}
"""Quantity of each number that a template names; the others have a format in the template."""

FINDINGS: dict[str, FindingKind] = {
    # Why there is no answer.
    "nothing-measured": FindingKind(level="doubt", text="No trial has finished yet; run the study."),
    "nothing-learned": FindingKind(
        level="doubt",
        text="No setting finished all of its training runs with a finite loss. Lower the learning rate, or look at "
        "the failures.",
    ),
    "nothing-reached": FindingKind(
        level="doubt",
        text="No setting reached the target in all of its repeats. Train longer, or set an easier target.",
    ),
    "learning-against-speed": FindingKind(
        level="doubt",
        text="{workers:.0f} workers are only {speedup} as fast as {few:.0f}, but with {few:.0f} the model learned "
        "less: {metric} instead of {best}. Train longer, or with another learning rate, to find out.",
    ),
    "failing-against-speed": FindingKind(
        level="doubt",
        text="{workers:.0f} workers are only {speedup} as fast as {few:.0f}, but training with {few:.0f} diverged or "
        "missed the target. Train longer, or with another learning rate, to find out.",
    ),
    "one-count": FindingKind(
        level="doubt",
        text="Only one worker count was measured. Add another to axes.workers to learn how training scales.",
    ),
    "too-noisy": FindingKind(
        level="doubt",
        text="At {workers:.0f} workers the speedup is {speedup} over {repeats:.0f} repeat(s). About "
        "{repeats_needed:.0f} repeats would decide: raise probe.repeats, or use a quieter machine.",
    ),
    "far-too-noisy": FindingKind(
        level="doubt",
        text="At {workers:.0f} workers the speedup is {speedup} over {repeats:.0f} repeat(s). Find out what else runs "
        "on the machine, then raise probe.repeats.",
    ),
    # What casts doubt on the measurements.
    "cpu-stolen": FindingKind(
        level="caution",
        text="Not a quiet machine: during {trials:.0f} of {of:.0f} trials a hypervisor withheld {percent} of the CPU "
        "time that the machine asked for (median; up to {most}), for other guests or a quota. Timings may differ on a "
        "quiet machine: run the study again then.",
    ),
    # What went wrong.
    "trials-failed": FindingKind(
        level="problem",
        text="{trials:.0f} trial(s) failed. `worldsize status` shows why; --retry-failed runs them again.",
    ),
    "trials-diverged": FindingKind(
        level="problem", text="{trials:.0f} trial(s) diverged: the loss exploded or was not a number."
    ),
    "learning-lost": FindingKind(
        level="problem",
        text="With {workers:.0f} workers (global batch {global_batch:.0f}) the model learns less: {metric} instead of "
        "{best}. Its learning rate or its number of updates does not fit that batch.",
    ),
    "straggler": FindingKind(
        level="problem",
        text="Rank {rank:.0f} of {workers:.0f} computes {extra_ms:.3g} ms longer per step than the others, which wait "
        "for it. Check what else runs on its core or GPU, and its share of the data.",
    ),
    "overfitting": FindingKind(
        level="problem",
        text="Overfitting: {metric_name} on training samples is {gap} better than on test samples ({value}).",
    ),
    "target-not-reached": FindingKind(
        level="problem",
        text="{trials:.0f} of {of:.0f} trials ran all {epochs:.0f} epochs without reaching {metric_name} {sign} "
        "{value}.",
    ),
    # Worth knowing.
    "next-count-not-worth-it": FindingKind(
        text="{workers:.0f} workers would be only {speedup} as fast, which is {efficiency} efficient."
    ),
    "close-call": FindingKind(text="Whether {workers:.0f} workers pay is within the noise; more repeats would decide."),
    "learning-unclear": FindingKind(
        text="At a global batch of {global_batch:.0f} the model may learn less: {metric} instead of {best}, over "
        "{repeats:.0f} repeats. About {repeats_needed:.0f} repeats would decide."
    ),
    "learning-unclear-once": FindingKind(
        text="At a global batch of {global_batch:.0f} the model may learn less: {metric} instead of {best}, from a "
        "single run. 3 repeats would tell."
    ),
    "largest-count-measured": FindingKind(
        text="{workers:.0f} is the largest count that was measured; more workers may still pay."
    ),
    "one-repeat": FindingKind(
        text="Some settings ran only once, so run-to-run variation is unknown. Set `repeats: 3`."
    ),
    "adaptive": FindingKind(
        text="Adaptive study: {probes:.0f} probes instead of the {of:.0f} of the full grid, {worker_s:.0f} "
        "worker-seconds, about {percent} of what the grid would take."
    ),
    "no-rate-edge": FindingKind(
        text="{optimizer}: no learning rate between {low:.4g} and {high:.4g} was the first to diverge. Widen the "
        "search."
    ),
    "soonest-target": FindingKind(
        text="{workers:.0f} workers with a global batch of {batch:.0f} reach the target soonest, in {seconds:.3g} s of "
        "training."
    ),
    "trials-stopped": FindingKind(
        text="{trials:.0f} trial(s) of a search were stopped early, because they were behind the median of the others."
    ),
    "rate-edge": FindingKind(
        text="{optimizer} diverges above a learning rate of about {lr}: {held} was stable, {diverged} diverged."
    ),
    "rate-edge-wide": FindingKind(
        text="{optimizer} diverges somewhere between a learning rate of {held}, which was stable, and {diverged}."
    ),
    "rate-edge-theory": FindingKind(
        text="Theory predicts {theory} (2 / largest eigenvalue); measured is {off:+.1f} % off."
    ),
    "rate-edge-blurred": FindingKind(
        text="{optimizer}: a learning rate of {diverged} diverged and {held} did not, so the edge is not sharp."
    ),
    "large-batch": FindingKind(
        text="At {factor:.3g} times the batch ({batch:.0f}) and equal epochs, {unscaled} loses {lost} of "
        "{metric_name}; {variant} wins back {won_back} of it."
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
        text="A batch of {fits:,.0f} per worker fits, the largest that the study allows. {enough:,.0f} is the smallest "
        "within 5 % of the best throughput."
    ),
    "largest-batch-none": FindingKind(text="No batch fits: even {tried:,.0f} per worker runs out of memory."),
    "out-of-memory": FindingKind(
        text="A batch of {batch:,.0f} per worker does not fit into memory with {workers:.0f} worker(s) "
        "({trials:.0f} trial(s))."
    ),
    "trials-left": FindingKind(text="{trials:.0f} trial(s) have not run yet; the same command continues."),
    "precision-not-reached": FindingKind(
        text="{trials:.0f} probe(s) ran out of time before the median step was known to {percent}; see the intervals "
        "for the uncertainty."
    ),
    # Of projections.
    "limit-data": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, waiting for data costs {percent} of the ideal speedup."
    ),
    "limit-compute": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, each one computes more slowly, because they share cores, "
        "memory or power: this costs {percent} of the ideal speedup."
    ),
    "limit-fixed-cost": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, the fixed cost of a step, however small its batch, costs "
        "{percent} of the ideal speedup."
    ),
    "limit-not-measured": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, {percent} of the ideal speedup is expected to be lost. What "
        "limits it was not measured."
    ),
    "limit-communication": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, exchanging gradients and waiting for the slowest worker costs "
        "{percent} of the ideal speedup."
    ),
    "limit-learning": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, the global batch of {global_batch:.0f} needs more epochs, "
        "which costs {percent} of the ideal speedup."
    ),
    "limit-above-the-step": FindingKind(
        text="From {from:.0f} to {workers:.0f} workers, start, preparation and evaluation do not shrink, which costs "
        "{percent} of the ideal speedup."
    ),
    "limit-data-set-too-small": FindingKind(
        text="The data set is small: with {workers:.0f} workers an epoch has only {steps_per_epoch:.0f} steps of "
        "{global_batch:.0f} samples, too few updates to learn from."
    ),
    "nothing-limits": FindingKind(text="Nothing measured limits scaling up to {workers:.0f} workers."),
    "projected-from-one-count": FindingKind(
        text="Only {workers:.0f} worker(s) ran, so scaling is projected from what is usual, not from this study."
    ),
    "node-never-left": FindingKind(
        text="{workers:.0f} workers need more than one node of {places:.0f}, and no run has used two. The interval is "
        "wide because that cost is a guess; a measured network, or one described with --network, would narrow it."
    ),
    "projected-too-widely": FindingKind(
        text="With {workers:.0f} worker(s) throughput may be anything from {low:,.4g} to {high:,.4g} samples/s."
    ),
    "nothing-learns": FindingKind(text="Nothing learned at any of these batches."),
    "target-time-not-known": FindingKind(text="The time to {target:g} is unknown at all of these counts."),
    "measure-next": FindingKind(text="Measure {workers:.0f} workers next: it would narrow these intervals most."),
    "measure-two-nodes": FindingKind(
        text="This machine takes {places:.0f} workers. To go further, measure {workers:.0f} workers on two machines, "
        "or describe your network with --network."
    ),
}

WHERE: dict[str, Callable[[Any], str]] = {
    **{name: WORDS[name] for name in ("workers", *HOW)},
    "batch_per_worker": lambda batch: f"batch {batch:,}",
}


def number_of(finding: Finding, name: str) -> float:
    return _value(finding.numbers[name])


def is_bad(code: str) -> bool:
    """Whether something went wrong."""
    return code in FINDINGS and FINDINGS[code].level == "problem"


def is_doubt(finding: Finding) -> bool:
    """Whether it explains why there is no answer."""
    return FINDINGS[finding.code].level == "doubt"


def sentence(finding: Finding) -> str:
    """The finding in words, with the setting that it is about, if it is about one of several."""
    code = finding.code
    if code == "too-noisy" and _value(finding.numbers["repeats_needed"]) > MOST_REPEATS:
        code = "far-too-noisy"
    template = plural(FINDINGS[code].text, {name: _value(number) for name, number in finding.numbers.items()})
    said = template.format(**{name: _said(name, number) for name, number in finding.numbers.items()}, **finding.names)
    where = ", ".join(words(finding.where[name]) for name, words in WHERE.items() if name in finding.where)
    return f"With {where}: {said}" if where else said


def _value(number: float | Estimate) -> float:
    return number.value if isinstance(number, Estimate) else number


def _said(name: str, number: float | Estimate) -> Any:
    quantity = QUANTITIES.get(name)
    if quantity is None:
        return number
    return quantity.full(number) if isinstance(number, Estimate) else quantity.said(number)


def plural(template: str, numbers: Mapping[str, float]) -> str:
    """Resolves `{trials:.0f} trial(s)` by its number. Applied to the template before any outside name is inserted."""
    return re.sub(
        r"(\{(\w+):[^{}]*\} \w+)\(s\)", lambda match: match[1] + ("" if numbers[match[2]] == 1 else "s"), template
    )
