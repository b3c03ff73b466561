"""The sentences of an answer, measured or projected. Plain text; the caller escapes for its medium."""

from __future__ import annotations

from collections.abc import Iterable

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import VariantDifference, VariantRanking
from worldsize.analysis.projection.choice import Option, marginal, speedup_of
from worldsize.analysis.speed.recommend import LEAST_MARGINAL_EFFICIENCY, Answer
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.predict.predict import Prediction
from worldsize.answer.predict.question import Question
from worldsize.answer.results import Results
from worldsize.report.words.findings import DOUBTS, IN_THE_ANSWER, LARGEST_BATCH, finding_sentence, sentence
from worldsize.report.words.numbers import (
    counted,
    duration,
    metric_value,
    number,
    percent,
    range_of,
    times_words,
    whole,
    with_range,
)
from worldsize.spec.training import UntilSpec


def answer_sentence(answer: Answer, metric: str, how: str = "") -> str:
    """`how`: strategy, precision and accumulation of the recommended setting, if the study varies them."""
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
            f": {number(row.speedup.value)} x the throughput of {row.baseline_workers}"
            f"{with_range(row.speedup)}, {percent(row.efficiency.value)} efficient."
        )
    elif any(finding.code == "learning-lost" for finding in answer.findings):
        lead += ": with more the model learns less."
    else:
        lead += "."
    following = [finding_sentence(finding) for finding in answer.findings if finding.code == IN_THE_ANSWER]
    return " ".join([lead, *following, metric_sentence(row, metric)]).strip()


def largest_batch_sentences(answer: Answer) -> list[str]:
    """Answers of a study that searches for the largest batch, one per search."""
    return [finding_sentence(finding) for finding in answer.findings if finding.code.startswith(LARGEST_BATCH)]


def only_one_count(answer: Answer) -> bool:
    """True for a study of one worker count, whose answer is about training, not about the number of workers."""
    return [finding.code for finding in answer.findings if finding.code in DOUBTS] == ["one-count"]


def trained_sentence(row: ScalingRow, metric: str, how: str = "") -> str:
    variant = f"{row.variant}, {how}" if how else row.variant
    return f"Trained best with {variant}: {metric_sentence(row, metric).replace('Test', 'test', 1)}"


def metric_sentence(row: ScalingRow, metric: str) -> str:
    if row.metric is None:
        return ""
    runs = f"{range_of(row.metric, metric_value)}, {row.metric.n} runs" if row.metric.has_interval else "one run"
    return f"Test {metric} {metric_value(row.metric.value)} ({runs})."


def contest_sentence(contest: VariantRanking, metric: str, until: UntilSpec | None = None) -> str:
    """The best variant, and how the best of each other optimizer compares: `within the noise` where that is true."""
    best = contest.best_variants[0]
    if best.target is not None and best.target.always and best.target.steps is not None:
        steps = best.target.steps
        lead = f"Fewest steps to {target_words(until)}: {best.variant}, {whole(steps.value)}{with_range(steps, whole)}"
    elif best.metric is not None and not best.diverged:
        lead = f"Best of what was trained: {best.variant}, test {metric} {metric_value(best.metric.value)}"
        lead += with_range(best.metric, metric_value)
    else:
        return "Nothing that was trained learned."
    others = [comparison_words(comparison) for comparison in contest.differences]
    unknown = any(comparison.within_noise is None and comparison.estimate for comparison in contest.differences)
    return "; then ".join([lead, *others]) + "." + (" One run each: the noise is unknown." if unknown else "")


def target_words(until: UntilSpec | None) -> str:
    if until is None:
        return "the target"
    if until.at_least is not None:
        return f"{until.metric} of at least {until.at_least:g}"
    return f"{until.metric} of at most {until.at_most:g}"


def comparison_words(comparison: VariantDifference) -> str:
    estimate = comparison.estimate
    if estimate is None:
        ended = {"diverged": comparison.diverged, "stopped as hopeless": comparison.stopped}
        facts = [f"{count} of {comparison.repeats} {how}" for how, count in ended.items() if count]
        if comparison.reached is not None and not facts:
            facts = [f"reached it in {comparison.reached} of {comparison.repeats}"]
        return f"{comparison.variant} ({', '.join(facts) or 'nothing to compare'})"
    if comparison.kind == "steps":
        words = f"{number(estimate.value)} x as many{with_range(estimate)}"
    else:
        words = f"{estimate.value:+.4g}{with_range(estimate, lambda value: f'{value:+.4g}')}"
    return f"{comparison.variant}, {words}" + (", within the noise" if comparison.within_noise else "")


def goal_words(results: Results, question: Question) -> str:
    """Goal of the training: `accuracy of at least 0.99`, `5 epochs`."""
    train = results.spec.train
    if question.goal is not None:
        return f"{results.facts.metric} {question.goal:g}"
    if train is None:
        return ""
    if train.until is not None:
        return target_words(train.until)
    return counted(train.epochs, "epoch") if train.epochs else counted(train.steps or 0, "step")


def choice_sentence(prediction: Prediction, goal: str = "") -> str:
    """`Use 8 workers (projected): 5.1 x the throughput of 1 (4.6 to 5.4), 64 % efficient. ...`"""
    chosen, base = prediction.choice.knee, prediction.base
    rate = f", rate {chosen.lr:.3g}" if chosen.lr is not None else ""
    lead = "Use"
    if prediction.doubt is not None:
        lead = f"Not enough evidence for a number of workers: {sentence(prediction.doubt)} Best guess:"
    words = (
        f"{lead} {counted(chosen.workers, 'worker')} with a batch of {chosen.batch_per_worker} each, "
        f"{chosen.global_batch} in all{rate} ({'measured' if chosen.measured else 'projected'})"
    )
    if chosen.workers != base.workers:
        speedup = speedup_of(chosen, base)
        efficiency = speedup.value * base.workers / chosen.workers
        words += f": {number(speedup.value)} x the throughput of {base.workers}{with_range(speedup)}"
        words += f", {percent(efficiency)} efficient"
    if chosen.wall_s:
        included = "start and evaluation included" if chosen.overhead_s is not None else "steps alone"
        words += f"; {goal or 'the whole training'} in {times_words(chosen.wall_s)}, {included}"
    return words + "."


def extra_sentences(prediction: Prediction, unit: str, per_sample: int) -> Iterable[str]:
    choice, question = prediction.choice, prediction.question
    if (more := next_that_does_not_pay(prediction)) is not None:
        scope = "" if more.wall_s else " for an epoch"
        why = "that saves too little to pay" if more.time_s < choice.knee.time_s else "no faster"
        yield f"{more.workers:,} workers would take {times_words(more.time)}{scope}: {why}."
    if choice.unsure is not None:
        option = choice.unsure
        yield (
            f"Not enough evidence beyond that: {counted(option.workers, 'worker')} would pay if the projection held, "
            f"but its {unit}/s may lie anywhere from {range_of(option.samples_per_s.scaled(per_sample))}."
        )
    if choice.limit is not None:
        yield sentence(choice.limit)
    if choice.fastest_in_budget is not None:
        option = choice.fastest_in_budget
        assert option.cost is not None
        yield (
            f"Fastest within the budget: {counted(option.workers, 'worker')}, {times_words(option.time)} for "
            f"{number(option.cost.value)}{with_range(option.cost)}{_may_exceed(option.cost, question.budget)}."
        )
    elif question.budget is not None:
        yield f"No count is known to cost {number(question.budget)} or less."
    if choice.cheapest_in_time is not None:
        option = choice.cheapest_in_time
        yield (
            f"Cheapest within the deadline: {counted(option.workers, 'worker')}, {times_words(option.time)}"
            f"{_may_exceed(option.time, question.deadline_s)}."
        )
    elif question.deadline_s is not None:
        yield f"No count is known to be done within {duration(question.deadline_s)}."
    if question.price is not None and not any(option.cost for option in prediction.options):
        yield "No cost is told: the time of the whole training is not known."
    if len(choice.pareto) > 1:
        yield f"Each faster than all that take fewer worker-hours: {', '.join(map(str, choice.pareto))} workers."


def next_that_does_not_pay(prediction: Prediction) -> Option | None:
    """The count after the chosen one, if it is known well enough and is not worthwhile."""
    knee, following = prediction.choice.knee, prediction.choice.following
    if prediction.doubt or following is None or not following.sure:
        return None
    return following if marginal(knee, following) < LEAST_MARGINAL_EFFICIENCY else None


def _may_exceed(spent: Estimate, most: float | None) -> str:
    return "; it may take more" if most is not None and spent.ends[1] > most else ""
