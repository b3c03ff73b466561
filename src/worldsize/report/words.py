"""All wording of the answer: findings and numbers in, sentences out. Plain text; the caller escapes for its medium."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from worldsize.analysis.bests import Comparison, Contest
from worldsize.analysis.estimates import Estimate
from worldsize.analysis.recommend import Answer, Finding
from worldsize.analysis.scaling import Row
from worldsize.analysis.stats import LEVEL, Interval
from worldsize.train_spec import UntilSpec


def answer_sentence(answer: Answer, metric: str, how: str = "") -> str:
    """`how`: strategy, precision and accumulation of the recommended setting, where the study varies them."""
    row = answer.row
    if only_one_count(answer):
        if row is None or row.metric is None:
            return finding_sentence(answer.findings[0])
        return trained_sentence(row, metric, how)
    if answer.verdict == "not enough evidence" or row is None:
        doubts = " ".join(finding_sentence(finding) for finding in answer.findings if finding.code in DOUBTS)
        best = f" {trained_sentence(row, metric, how)}" if row and row.metric is not None else ""
        return f"Not enough evidence for a number of workers: {doubts}{best}"
    setting = row.setting
    batch = f"batch {setting.batch_per_worker} a worker, {setting.global_batch} in all; {setting.scaling} scaling"
    lead = f"Use {counted(setting.workers, 'worker')}{f' with {how}' if how else ''} ({batch})"
    if setting.workers > row.baseline_workers:
        lead += (
            f": {number(row.speedup.value)} x the throughput of {row.baseline_workers} "
            f"({span(row.speedup)}), {percent(row.efficiency.value)} efficient."
        )
    elif any(finding.code == "learning-lost" for finding in answer.findings):
        lead += ": with more the model learns less."
    elif any(finding.code == "learning-unclear" for finding in answer.findings):
        lead += ": with more the model seems to learn less, which may be noise."
    else:
        lead += "."
    following = [finding_sentence(found) for found in answer.findings if found.code == IN_THE_ANSWER]
    return " ".join([lead, *following, metric_sentence(row, metric)]).strip()


def largest_batch_sentences(answer: Answer) -> list[str]:
    """The answer of a study that searches for the largest batch, one a search."""
    return [finding_sentence(finding) for finding in answer.findings if finding.code.startswith(LARGEST_BATCH)]


def only_one_count(answer: Answer) -> bool:
    """A study of one count asks something else than how many: what was trained comes first then."""
    return [finding.code for finding in answer.findings if finding.code in DOUBTS] == ["one-count"]


def trained_sentence(row: Row, metric: str, how: str = "") -> str:
    variant = f"{row.variant}, {how}" if how else row.variant
    return f"Trained best with {variant}: {metric_sentence(row, metric).replace('Test', 'test', 1)}"


def metric_sentence(row: Row, metric: str) -> str:
    if row.metric is None:
        return ""
    runs = "one run"
    if row.metric_low is not None and row.metric_high is not None:
        reach = f"{metric_value(row.metric_low)} to {metric_value(row.metric_high)}"
        runs = f"{reach}, {row.metric_repeats} runs"
    return f"Test {metric} {metric_value(row.metric)} ({runs})."


def contest_sentence(contest: Contest, metric: str, until: UntilSpec | None = None) -> str:
    """The best of each optimiser and how the others compare with it: `within the noise` where that is true."""
    best = contest.bests[0]
    if best.target is not None and best.target.always and best.target.steps is not None:
        steps = best.target.steps
        lead = f"Fewest steps to {target_words(until)}: {best.variant}, {whole(steps.value)}{reach(steps, whole)}"
    elif best.metric is not None and not best.diverged:
        lead = f"Best of what was trained: {best.variant}, test {metric} {metric_value(best.metric.value)}"
        lead += reach(best.metric, metric_value)
    else:
        return "Nothing that was trained learned."
    others = [comparison_words(comparison) for comparison in contest.comparisons]
    unknown = any(comparison.within_noise is None and comparison.estimate for comparison in contest.comparisons)
    return "; then ".join([lead, *others]) + "." + (" One run each: the noise is unknown." if unknown else "")


def target_words(until: UntilSpec | None) -> str:
    if until is None:
        return "the target"
    if until.at_least is not None:
        return f"{until.metric} of at least {until.at_least:g}"
    return f"{until.metric} of at most {until.at_most:g}"


def comparison_words(comparison: Comparison) -> str:
    estimate = comparison.estimate
    if estimate is None:
        ended = {"diverged": comparison.diverged, "stopped as hopeless": comparison.stopped}
        facts = [f"{count} of {comparison.repeats} {how}" for how, count in ended.items() if count]
        if comparison.reached is not None and not facts:
            facts = [f"reached it in {comparison.reached} of {comparison.repeats}"]
        return f"{comparison.variant} ({', '.join(facts) or 'nothing to compare'})"
    if comparison.kind == "steps":
        words = f"{number(estimate.value)} x as many{reach(estimate)}"
    else:
        words = f"{estimate.value:+.4g}{reach(estimate, lambda value: f'{value:+.4g}')}"
    return f"{comparison.variant}, {words}" + (", within the noise" if comparison.within_noise else "")


def reach(estimate: Estimate, words: Callable[[float], str] | None = None) -> str:
    """` (1.2 to 1.4)`; nothing where a single run leaves it unknown."""
    if estimate.low is None or estimate.high is None:
        return ""
    words = words or number
    return f" ({words(estimate.low)} to {words(estimate.high)})"


def finding_sentence(finding: Finding) -> str:
    code = finding.code
    if code == "too-noisy" and finding.numbers["repeats_needed"] > MOST_REPEATS:
        code = "far-too-noisy"
    sentence = plural(SENTENCES[code], finding.numbers).format(**finding.numbers, **finding.names)
    where = finding.names.get("where")
    return f"With {where}: {sentence}" if where else sentence


def plural(template: str, numbers: Mapping[str, float]) -> str:
    """`{trials:.0f} trial(s)` by its number. Of the template, before any name from outside is in it."""
    return re.sub(
        r"(\{(\w+):[^{}]*\} \w+)\(s\)", lambda found: found[1] + ("" if numbers[found[2]] == 1 else "s"), template
    )


MOST_REPEATS = 100
"""More are not asked for: where they would be needed, the machine is what to mend."""
IN_THE_ANSWER = "next-count-not-worth-it"
"""What the next count would bring belongs to the answer itself."""
LARGEST_BATCH = "largest-batch-"
"""Begins the codes of what a search for the largest batch found."""
DOUBTS = {
    "nothing-measured",
    "nothing-learned",
    "nothing-reached",
    "one-count",
    "too-noisy",
    "learning-against-speed",
    "noise-against-speed",
    "failing-against-speed",
}
"""Why there is no answer."""
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
    "noise-against-speed": (
        "{workers:.0f} workers bring {speedup:.2f} x the throughput of {few:.0f}, too little to pay, but with "
        "{few:.0f} the model learned less, {metric:.4f} against {best:.4f}, which may be noise. More repeats would "
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
    "close-call": "Whether {workers:.0f} workers pay is within the noise; more repeats would tell.",
    "learning-unclear": (
        "With {workers:.0f} workers (global batch {global_batch:.0f}) the model learned less, {metric:.4f} ({low:.4f} "
        "to {high:.4f}) against {best:.4f}, which may be noise; more repeats would tell."
    ),
    "learning-lost": (
        "With {workers:.0f} workers (global batch {global_batch:.0f}) the model learns less: {metric:.4f} against "
        "{best:.4f}. Its rate or its number of updates does not fit that batch."
    ),
    "largest-count-measured": "{workers:.0f} is the largest count measured; more may still pay.",
    "one-repeat": "Something ran once only: the intervals know little of how its runs differ. Raise repeats.",
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
        "{optimizer}: a rate of {diverged:.4g} diverged and one of {held:.4g} did not; the edge is no sharp line."
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
    "overfitting": (
        "Overfitting: {metric} on training samples is {gap:.3g} better than on test samples ({value:.4f})."
    ),
    "trials-left": "{trials:.0f} trial(s) have not run yet; the same command continues.",
    "precision-not-reached": (
        "{trials:.0f} probe(s) ran out of time before the median step was known to {percent:.3g} %; "
        "the intervals say how well it is."
    ),
}


def metric_value(value: float) -> str:
    """Four decimals for what lies around 1, as accuracies do; four digits for the rest."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 100 or value == 0 else f"{value:.4g}"


def number(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def span(interval: Interval) -> str:
    return f"{number(interval.low)} to {number(interval.high)}"


def whole(value: float) -> str:
    """Of steps and epochs: whole, unless a mean over few of them says more."""
    return f"{value:,.0f}" if value >= 10 or abs(value - round(value)) < 1e-6 else number(value)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def byte_size(count: float) -> str:
    return f"{number(count / 1e9)} GB" if count >= 1e9 else f"{number(count / 1e6)} MB"


def duration(seconds: float) -> str:
    """Two units at most: 1.8 s, 45 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 10:
        return f"{seconds:.0f} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


LEVEL_WORDS = f"{LEVEL:.0%} interval".replace("%", " %")
