"""Sentences of an answer, measured or projected. Plain text; the writers escape it for their medium."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.choice import Option, marginal, speedup_of
from worldsize.analysis.speed.recommend import LEAST_MARGINAL_EFFICIENCY, Answer
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.predict.predict import Prediction
from worldsize.answer.predict.question import Question
from worldsize.answer.results import Results
from worldsize.report.blocks import Prose
from worldsize.report.words.findings import is_doubt, sentence
from worldsize.report.words.numbers import (
    as_written,
    counted,
    duration,
    number,
    range_of,
    rate,
    times_words,
    with_range,
)
from worldsize.report.words.quantities import SPEEDUP
from worldsize.report.words.settings import configuration
from worldsize.spec.training import UntilSpec


def only_one_count(answer: Answer) -> bool:
    """Whether the study has only one worker count. Then its answer is about training, not about workers."""
    return [finding.code for finding in answer.findings if is_doubt(finding)] == ["one-count"]


def target_words(until: UntilSpec | None) -> str:
    """Return the target of the training: `accuracy 0.99`."""
    return "the target" if until is None else f"{until.metric} {as_written(until.value)}"


def goal_words(results: Results, question: Question) -> str:
    """Return the goal of the training: `accuracy 0.99`, `5 epochs`. Empty if the study trains nothing."""
    train = results.spec.train
    if question.goal is not None:
        return f"{results.facts.metric} {as_written(question.goal)}"
    if train is None:
        return ""
    if train.until is not None:
        return target_words(train.until)
    return counted(train.epochs, "epoch") if train.epochs else counted(train.steps or 0, "step")


def choice_prose(prediction: Prediction, goal: str = "") -> Iterator[Prose]:
    """Say which worker count to use, and how long training takes with it.

    `Use 8 workers: 4.1x as fast as 1 (2.8x to 4.7x, projected).`
    """
    chosen, base = prediction.choice.knee, prediction.base
    if prediction.doubt is not None:
        yield Prose(role="doubt", text="Not enough evidence to recommend a number of workers.")
        yield Prose(role="evidence", text=sentence(prediction.doubt))
    lead = "Best guess:" if prediction.doubt else "Use"
    words, basis = f"{lead} {counted(chosen.workers, 'worker')}", "measured" if chosen.measured else "projected"
    if chosen.workers != base.workers:
        speedup = speedup_of(chosen, base)
        ends = f"{' to '.join(map(SPEEDUP.said, speedup.ends))}, " if speedup.has_interval else ""
        words += f": {SPEEDUP.said(speedup.value)} as fast as {base.workers} ({ends}{basis})"
    else:
        words += f" ({basis})"
    yield Prose(role="evidence" if prediction.doubt else "answer", text=f"{words}.")
    settings = [f"a batch of {chosen.batch_per_worker:,} per worker"]
    if chosen.lr is not None:
        settings.append(f"learning rate {rate(chosen.lr)}")
    if chosen.wall_s:
        scope = "including" if chosen.overhead_s is not None else "without"
        purpose = f" {'for' if goal[0].isdigit() else 'to'} {goal}" if goal else ""
        duration_text = f"Training{purpose} takes {times_words(chosen.wall_s)}, {scope} startup and evaluation"
    else:
        duration_text = f"An epoch takes {times_words(chosen.epoch_s)}"
    yield Prose(role="evidence", text=f"{duration_text}, with {' and '.join(settings)}.")


def extra_sentences(prediction: Prediction, unit: str, per_sample: int) -> Iterable[str]:
    """Yield what else is worth knowing: the next larger count, an uncertain count, the budget, and the deadline."""
    choice, question = prediction.choice, prediction.question
    if (more := next_that_does_not_pay(prediction)) is not None:
        scope = "" if more.wall_s else " for an epoch"
        why = "which saves too little to be worth it" if more.time_s < choice.knee.time_s else "which is no faster"
        yield f"{more.workers:,} workers would take {times_words(more.time)}{scope}, {why}."
    if choice.unsure is not None:
        option = choice.unsure
        yield (
            f"{counted(option.workers, 'worker')} may be worthwhile, but the projection is too uncertain: throughput "
            f"may be anywhere from {range_of(option.samples_per_s.scaled(per_sample))} {unit}/s."
        )
    if choice.fastest_in_budget is not None:
        option = choice.fastest_in_budget
        assert option.cost is not None
        yield (
            f"Fastest within the budget: {counted(option.workers, 'worker')}, {times_words(option.time)} for "
            f"{number(option.cost.value)}{with_range(option.cost)}{_may_exceed(option.cost, question.budget)}."
        )
    elif question.budget is not None:
        yield f"No worker count is known to cost {number(question.budget)} or less."
    if choice.cheapest_in_time is not None:
        option = choice.cheapest_in_time
        yield (
            f"Cheapest within the deadline: {counted(option.workers, 'worker')}, {times_words(option.time)}"
            f"{_may_exceed(option.time, question.deadline_s)}."
        )
    elif question.deadline_s is not None:
        yield f"No worker count is known to finish within {duration(question.deadline_s)}."
    if question.price is not None and not any(option.cost for option in prediction.options):
        yield "Cost unknown, because the time of the whole training is unknown."
    if len(choice.pareto) > 2:
        yield f"Best trade-offs between time and worker-hours: {', '.join(map(str, choice.pareto))} workers."


def next_that_does_not_pay(prediction: Prediction) -> Option | None:
    """Return the next count after the chosen one, if it is known well enough and is not worthwhile."""
    knee, following = prediction.choice.knee, prediction.choice.following
    if prediction.doubt or following is None or not following.sure:
        return None
    return following if marginal(knee, following) < LEAST_MARGINAL_EFFICIENCY else None


def _may_exceed(spent: Estimate, most: float | None) -> str:
    return "; it may exceed that" if most is not None and spent.ends[1] > most else ""


def configuration_of(results: Results, row: ScalingRow) -> str:
    """Return strategy, precision, accumulation and place of a row, as far as the study varies them."""
    return configuration(row.setting, [other.setting for other in results.rows])
