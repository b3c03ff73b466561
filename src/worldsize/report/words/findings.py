"""Findings as sentences. Plain text; the caller escapes for its medium."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from worldsize.analysis.speed.recommend import Finding
from worldsize.report.words.settings import HOW, WORDS

MOST_REPEATS = 100
"""Upper limit of the repeats to ask for: if more are needed, fix the noisy machine."""
IN_THE_ANSWER = "next-count-not-worth-it"
"""The finding about the next count, which is part of the answer itself."""
LARGEST_BATCH = "largest-batch-"
"""Prefix of the codes of a search for the largest batch."""
BAD = (
    "trials-failed",
    "trials-diverged",
    "learning-lost",
    "straggler",
    "overfitting",
    "target-not-reached",
    "too-noisy",
)
"""Findings that mean that something is wrong."""
DOUBTS = {
    "nothing-measured",
    "nothing-learned",
    "nothing-reached",
    "one-count",
    "too-noisy",
    "learning-against-speed",
    "failing-against-speed",
}
"""Codes of findings that explain why there is no answer."""
SENTENCES = {
    "nothing-measured": "no trial has finished; run the study.",
    "nothing-learned": (
        "no setting ended all of its trainings with a finite loss; lower the rate, or look at the failures."
    ),
    "learning-against-speed": (
        "{workers:.0f} workers bring {speedup:.2f} x the throughput of {few:.0f}, too little to pay, but with "
        "{few:.0f} the model learned less: {metric:.4f} against {best:.4f}. Train longer, or with another rate, to "
        "tell."
    ),
    "failing-against-speed": (
        "{workers:.0f} workers bring {speedup:.2f} x the throughput of {few:.0f}, too little to pay, but training with "
        "{few:.0f} diverged or missed the target. Train longer, or with another rate, to tell."
    ),
    "one-count": "Only one count was measured: add another to axes.workers to learn how it scales.",
    "too-noisy": (
        "at {workers:.0f} workers the speedup lies anywhere from {low:.2f} to {high:.2f} over {repeats:.0f} repeat(s); "
        "about {repeats_needed:.0f} would tell: raise probe.repeats, or quieten the machine."
    ),
    "far-too-noisy": (
        "at {workers:.0f} workers the speedup lies anywhere from {low:.2f} to {high:.2f} over {repeats:.0f} repeat(s); "
        "see what else runs on the machine, then raise probe.repeats."
    ),
    "next-count-not-worth-it": (
        "{workers:.0f} workers would give only {speedup:.2f} x ({low:.2f} to {high:.2f}), "
        "{efficiency_percent:.0f} % efficient."
    ),
    "next-count-not-worth-it-once": (
        "{workers:.0f} workers would give only {speedup:.2f} x, {efficiency_percent:.0f} % efficient."
    ),
    "close-call": "Whether {workers:.0f} workers pay is within the noise; more repeats would tell.",
    "learning-unclear": (
        "At a global batch of {global_batch:.0f} the model may learn less: {metric:.4f} ({low:.4f} to {high:.4f}) "
        "against {best:.4f} over {repeats:.0f} repeats; about {repeats_needed:.0f} would tell."
    ),
    "learning-unclear-once": (
        "At a global batch of {global_batch:.0f} the model may learn less: {metric:.4f} against {best:.4f}, from a "
        "single run; 3 repeats would tell."
    ),
    "learning-lost": (
        "With {workers:.0f} workers (global batch {global_batch:.0f}) the model learns less: {metric:.4f} against "
        "{best:.4f}. Its rate or its number of updates does not fit that batch."
    ),
    "largest-count-measured": "{workers:.0f} is the largest count measured; more may still pay.",
    "one-repeat": "Something ran once only: one run has no interval. Raise repeats.",
    "adaptive": (
        "Adaptive: {probes:.0f} probes where the full grid has {of:.0f}, {worker_s:.0f} worker-seconds, about "
        "{percent:.0f} % of what it would take."
    ),
    "trials-failed": "{trials:.0f} trial(s) failed; `worldsize status` says why, --retry-failed tries again.",
    "trials-diverged": "{trials:.0f} trial(s) diverged: the loss exploded, or was no longer a number.",
    "no-rate-edge": "{optimizer}: between {low:.4g} and {high:.4g} no rate is the first to diverge; widen the search.",
    "soonest-target": (
        "The target is reached soonest, in {seconds:.3g} s of training, with {workers:.0f} workers and a global batch "
        "of {batch:.0f}."
    ),
    "nothing-reached": "no setting reached the target in all of its repeats; train longer, or lower the target.",
    "trials-stopped": "{trials:.0f} trial(s) of a search were stopped early: behind the median of the others.",
    "target-not-reached": (
        "{trials:.0f} of {of:.0f} trials ran all {epochs:.0f} epochs and did not reach {metric} {sign} {value:.4g}."
    ),
    "rate-edge": "{optimizer} diverges above a rate of about {rate:.3g}: {held:.4g} held, {diverged:.4g} diverged.",
    "rate-edge-wide": "{optimizer} diverges somewhere between a rate of {held:.4g}, which held, and {diverged:.4g}.",
    "rate-edge-theory": "Theory says {theory:.4g} (2 / largest eigenvalue): {percent:+.1f} % off.",
    "rate-edge-blurred": (
        "{optimizer}: a rate of {diverged:.4g} diverged and one of {held:.4g} did not; the edge is not sharp."
    ),
    "large-batch": (
        "At {factor:.3g} x the batch ({batch:.0f}) and equal epochs, {unscaled} loses {lost:.3g} of {metric}; "
        "{variant} wins back {percent:.0f} % of it ({low:.0f} to {high:.0f})."
    ),
    "largest-batch-memory": (
        "Largest batch a worker that fits: {fits:,.0f} ({tried:,.0f} runs out of memory). Smallest within 5 % of "
        "the best throughput: {enough:,.0f}."
    ),
    "largest-batch-throughput": (
        "A batch of {fits:,.0f} a worker fits; larger ones were not tried, since throughput no longer rises. "
        "Smallest within 5 % of the best throughput: {enough:,.0f}."
    ),
    "largest-batch-most": (
        "A batch of {fits:,.0f} a worker fits, the largest that the study allows. Smallest within 5 % of the best "
        "throughput: {enough:,.0f}."
    ),
    "largest-batch-none": "No batch fits: even {tried:,.0f} a worker runs out of memory.",
    "out-of-memory": (
        "A batch of {batch:,.0f} a worker does not fit into memory with {workers:.0f} worker(s); {trials:.0f} trial(s)."
    ),
    "straggler": (
        "Rank {rank:.0f} of {workers:.0f} computes {extra_ms:.3g} ms a step longer than the others, who wait for it: "
        "look at what else runs on its core or GPU, and at its share of the data."
    ),
    "cpu-stolen": (
        "Not a quiet machine: while {trials:.0f} of {of:.0f} trials ran, a hypervisor kept {percent:.0f} % of the CPU "
        "time that the machine wanted (median; up to {most:.0f} %), for other guests or a quota. On a quiet one "
        "these timings may be others: run the study again then."
    ),
    "overfitting": (
        "Overfitting: {metric} on training samples is {gap:.3g} better than on test samples ({value:.4f})."
    ),
    "trials-left": "{trials:.0f} trial(s) have not run yet; the same command continues.",
    "precision-not-reached": (
        "{trials:.0f} probe(s) ran out of time before the median step was known to {percent:.3g} %; "
        "the intervals say how well it is."
    ),
}


WHERE: dict[str, Callable[[Any], str]] = {
    **{name: WORDS[name] for name in ("workers", *HOW)},
    "batch_per_worker": lambda batch: f"batch {batch:,}",
}


def finding_sentence(finding: Finding) -> str:
    code = finding.code
    if code == "too-noisy" and finding.numbers["repeats_needed"] > MOST_REPEATS:
        code = "far-too-noisy"
    if code == IN_THE_ANSWER and "low" not in finding.numbers:
        code = "next-count-not-worth-it-once"
    sentence = plural(SENTENCES[code], finding.numbers).format(**finding.numbers, **finding.names)
    where = ", ".join(words(finding.where[name]) for name, words in WHERE.items() if name in finding.where)
    return f"With {where}: {sentence}" if where else sentence


def plural(template: str, numbers: Mapping[str, float]) -> str:
    """Resolves `{trials:.0f} trial(s)` by its number. Applied to the template before any outside name is inserted."""
    return re.sub(
        r"(\{(\w+):[^{}]*\} \w+)\(s\)", lambda match: match[1] + ("" if numbers[match[2]] == 1 else "s"), template
    )


PREDICTION_SENTENCES = {
    "limit-data": (
        "Limit: data. From {from:.0f} to {workers:.0f} workers {percent:.0f} % of what perfect scaling would give goes "
        "into waiting for data."
    ),
    "limit-compute": (
        "Limit: computing. With {workers:.0f} workers each one computes more slowly, because they share cores, memory "
        "or power: that takes {percent:.0f} % of what perfect scaling from {from:.0f} would give."
    ),
    "limit-fixed-cost": (
        "Limit: what a step costs however small its batch is. From {from:.0f} to {workers:.0f} workers each one has "
        "less to compute and is not as much faster: {percent:.0f} % of what perfect scaling would give."
    ),
    "limit-not-measured": (
        "From {from:.0f} to {workers:.0f} workers {percent:.0f} % of what perfect scaling would give is expected to be "
        "lost; what limits it was not measured there."
    ),
    "limit-communication": (
        "Limit: communication. From {from:.0f} to {workers:.0f} workers exchanging gradients, and waiting for the "
        "slowest at it, takes {percent:.0f} % of what perfect scaling would give."
    ),
    "limit-learning": (
        "Limit: statistical efficiency. A global batch of {global_batch:.0f} needs more epochs, which takes "
        "{percent:.0f} % of what perfect scaling from {from:.0f} to {workers:.0f} workers would give."
    ),
    "limit-above-the-step": (
        "Limit: what lies outside the steps. Start, preparation and evaluation do not shrink with workers: "
        "{percent:.0f} % of what perfect scaling from {from:.0f} to {workers:.0f} would give."
    ),
    "limit-data-set-too-small": (
        "Limit: the data set. With {workers:.0f} workers an epoch has only {steps_per_epoch:.0f} steps of "
        "{global_batch:.0f} samples: too few updates to learn from."
    ),
    "nothing-limits": "Up to {workers:.0f} workers nothing limits it that is known.",
    "projected-from-one-count": (
        "Only {workers:.0f} worker(s) ran: how it scales is the experience of others, not of this study."
    ),
    "node-never-left": (
        "{workers:.0f} workers need more than one node of {places:.0f}, and no run had two: what that costs is a "
        "guess, and the interval is wide. A measured or declared network (--network) would narrow it."
    ),
    "projected-too-widely": "with {workers:.0f} worker(s) it may be anything from {low:,.4g} to {high:,.4g} samples/s.",
    "nothing-learns": "nothing was found to learn at any of these batches.",
    "target-time-not-known": "the time to {target:g} is not known at any of these counts.",
    "measure-next": "Measure {workers:.0f} workers next: that would narrow these intervals most.",
    "measure-two-nodes": (
        "One machine like this takes {places:.0f}. Measure {workers:.0f} workers on two of them next, or declare the "
        "network."
    ),
}


def sentence(finding: Finding) -> str:
    """The sentence for a finding of a prediction, or of the study behind it."""
    if finding.code not in PREDICTION_SENTENCES:
        return finding_sentence(finding)
    return plural(PREDICTION_SENTENCES[finding.code], finding.numbers).format(**finding.numbers, **finding.names)
