"""All wording of the answer, and of numbers: sentences.py words the findings. Plain text; the caller escapes for its
medium."""

from __future__ import annotations

import math
from collections.abc import Callable

from worldsize.analysis.bests import Comparison, Contest
from worldsize.analysis.estimates import Estimate
from worldsize.analysis.recommend import Answer
from worldsize.analysis.scaling import Row
from worldsize.analysis.stats import LEVEL, Interval
from worldsize.report.sentences import DOUBTS, IN_THE_ANSWER, LARGEST_BATCH, finding_sentence
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
