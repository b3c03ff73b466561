"""Projects a study to worker counts that were never run: throughput, time, energy and cost, and which count to use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldsize.analysis.estimate import PROJECTED_LEVEL
from worldsize.analysis.projection.choice import Choice, Option, choose, limit, speedup_of
from worldsize.analysis.speed.network import Network
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.as_dict import plain, plain_finding, plain_setting
from worldsize.answer.predict.question import Question, default_counts, parse_network
from worldsize.answer.predict.training_at import WorkerCurve
from worldsize.answer.results import Results, as_results
from worldsize.data.catalog import metric_bounds
from worldsize.errors import InputError
from worldsize.spec.setting import Setting

__all__ = ["Outlook", "Prediction", "Question", "doublings", "outlook", "predict", "predict_study", "to_dict"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    setting: Setting
    """The setting that is projected: its batch, strategy and precision."""
    options: tuple[Option, ...]
    """The measured counts and those asked about."""
    choice: Choice
    question: Question
    findings: tuple[Finding, ...]
    base: Option
    """Baseline of the speedups: the smallest measured count."""
    doubt: Finding | None
    """Why the choice is only a best guess; None if it is certain enough."""

    @property
    def place(self) -> str:
        """Name of the place; empty if the study has only one."""
        return self.setting.place

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `predict --json` prints them."""
        return {"place": self.place, **to_dict(self)}


def doublings(results: Results) -> tuple[int, ...]:
    """Return the default counts among which the batch can be divided."""
    largest = max((row.setting.workers for row in results.rows), default=1)
    row = results.answer.row
    batch = row.setting.global_batch // row.setting.accumulation if row and row.setting.scaling == "strong" else 0
    return tuple(count for count in default_counts(largest) if not batch % count)


def _check(results: Results, question: Question, curve: WorkerCurve) -> None:
    """Raise InputError for questions that cannot be answered."""
    impossible = [count for count in question.workers if not curve.possible(count)]
    if impossible:
        batch = curve.setting.global_batch // curve.setting.accumulation
        divisors = [count for count in range(1, min(batch, 4 * impossible[0]) + 1) if batch % count == 0][-4:]
        raise InputError(
            f"workers={impossible[0]} does not divide the global batch of {curve.setting.global_batch} evenly; use "
            f"{', '.join(map(str, divisors))}"
        )
    samples = results.facts.train_samples
    if question.batch_per_worker is not None and question.batch_per_worker > samples:
        raise InputError(
            f"batch={question.batch_per_worker} is more than the {samples} training samples; use a smaller batch"
        )
    metric = results.facts.metric
    least, most = metric_bounds(metric)
    if question.goal is not None and most < math.inf and not least < question.goal <= most:
        rule = "is at most 1" if question.goal > 1 else "lies between 0 and 1"
        share = question.goal / 100 if 1 < question.goal <= 100 else 0.9
        raise InputError(f"until={question.goal:g}: {metric} {rule}; write --until {share:g} for {100 * share:g} %")
    if question.budget is not None and question.price is None:
        raise InputError(f"budget={question.budget:g} requires the price of a worker-hour; add --price")
    if results.spec.train is None:
        for name, value in (("until", question.goal), ("price", question.price), ("deadline", question.deadline_s)):
            if value is not None:
                raise InputError(
                    f"{name}={value:g} requires the training time, but the study trains nothing; add `train:` to the "
                    f"study, or leave out --{name}"
                )


DOUBTS_OF_COUNTS = {"too-noisy"}
DOUBTS_OF_TRAINING = {"nothing-learned"}
DOUBTS_OF_ITS_TARGET = {"nothing-reached", "learning-against-speed", "failing-against-speed"}
"""Findings that keep the study from recommending anything, by what they cast doubt on: the measured counts, all
training, or training to its own target."""
Outlook = tuple[Prediction, Finding | None]
"""A projection, and what limits scaling."""


def outlook(results: Results) -> Outlook | None:
    """Return the projection beyond the largest measured count, and what limits scaling beyond the recommended one.

    None if fewer than two counts were measured, or if the study searches for the largest batch.
    """
    row = results.answer.row
    if row is None or results.largest or len({other.setting.workers for other in results.rows}) < 2:
        return None
    prediction = predict(results, Question(workers=doublings(results)))
    if results.is_crowded:
        return prediction, None
    current = next((option for option in prediction.options if option.workers == row.setting.workers), None)
    further = [option for option in prediction.options if current and option.workers > current.workers]
    # If the model no longer learns at the next count, that is the limit, and the answer already says so.
    if current is None or not further or not further[0].learns:
        return prediction, None
    # The answer is about throughput, so the limit is too; `predict` is about the whole training.
    return prediction, limit(replace(current, wall_s=None), replace(further[0], wall_s=None))


def to_dict(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain values."""
    return {
        "setting": plain_setting(prediction.setting),
        "level": PROJECTED_LEVEL,
        "options": [
            {
                **plain(option),
                "speedup": plain(speedup := speedup_of(option, prediction.base)),
                "efficiency": speedup.value * prediction.base.workers / option.workers,
                "global_batch": option.global_batch,
                "cost": plain(option.cost) if option.cost else None,
            }
            for option in prediction.options
        ],
        "choice": {
            "verdict": "not enough evidence" if prediction.doubt else "use",
            "doubt": plain_finding(prediction.doubt) if prediction.doubt else None,
            "workers": prediction.choice.knee.workers,
            "measured": prediction.choice.knee.measured,
            "fastest_in_budget": prediction.choice.fastest_in_budget and prediction.choice.fastest_in_budget.workers,
            "cheapest_in_time": prediction.choice.cheapest_in_time and prediction.choice.cheapest_in_time.workers,
            "pareto": list(prediction.choice.pareto),
            "limit": plain_finding(prediction.choice.limit) if prediction.choice.limit else None,
        },
        "findings": [plain_finding(finding) for finding in prediction.findings],
    }


def predict_study(
    study: Results | Path | str,
    workers: Sequence[int] = (),
    *,
    batch_per_worker: int | None = None,
    until: float | None = None,
    price: float | None = None,
    budget: float | None = None,
    deadline_s: float | None = None,
    network: str | Network | None = None,
    workers_per_node: int | None = None,
) -> list[Prediction]:
    """Project a study to worker counts that were never run, with 80 % intervals. Runs nothing.

    `workers`: the counts to project to (default: 2, 4 and 8 times the largest measured count). `until`: value of the
    test metric at which training ends (default: the study's own `until`, or its epochs). `price`: price per
    worker-hour. `budget` and `deadline_s`: also choose the fastest count within the budget, and the cheapest within the
    deadline. `network`: another network to assume, such as "8 x 450GB/s 2us, 50GB/s 5us", or the name of a preset.
    Returns one prediction per place, because kinds of hardware are never pooled.
    """
    predictions = []
    for results in as_results(study).by_place.values():
        question = Question(
            workers=tuple(workers) or doublings(results),
            batch_per_worker=batch_per_worker,
            goal=until,
            price=price,
            budget=budget,
            deadline_s=deadline_s,
            network=parse_network(network) if isinstance(network, str) else network,
            workers_per_node=workers_per_node,
        )
        predictions.append(predict(results, question))
    return predictions


def predict(results: Results, question: Question) -> Prediction:
    """Answer a question about the results of one place."""
    row = results.answer.row or max(results.rows, key=lambda candidate: candidate.samples_per_s.value, default=None)
    if row is None:
        raise InputError(f"{results.folder.path} has no measured throughput to project from; run the study first")
    curve = WorkerCurve.of(results, row, question)
    _check(results, question, curve)
    counts = sorted({*question.workers, *curve.throughputs.series.workers})
    options = [curve.option(workers) for workers in counts if curve.possible(workers)]
    choice = choose(options, budget=question.budget, deadline_s=question.deadline_s)
    base = min((option for option in options if option.measured), key=lambda option: option.workers, default=options[0])
    return Prediction(
        setting=curve.setting,
        options=tuple(options),
        choice=choice,
        question=question,
        findings=(*results.answer.cautions, *curve.findings(question.workers)),
        base=base,
        doubt=_own_doubt(results, row, question, choice) or _doubt(question, options, choice),
    )


def _own_doubt(results: Results, row: ScalingRow, question: Question, choice: Choice) -> Finding | None:
    """Return the doubt of the study itself, if the question is about what it measured."""
    if question.batch_per_worker not in (None, row.setting.batch_per_worker) or question.network is not None:
        return None
    codes = set(DOUBTS_OF_TRAINING)
    codes |= DOUBTS_OF_COUNTS if choice.knee.measured else set()
    codes |= DOUBTS_OF_ITS_TARGET if question.goal is None else set()
    return next((finding for finding in results.answer.findings if finding.code in codes), None)


def _doubt(question: Question, options: Sequence[Option], choice: Choice) -> Finding | None:
    if question.goal is not None and not any(option.wall_s for option in options):
        return Finding(code="target-time-not-known", numbers={"target": question.goal})
    if not choice.sure and not choice.knee.learns:
        return Finding(code="nothing-learns")
    if not choice.sure:
        low, high = choice.knee.samples_per_s.ends
        numbers = {"workers": float(choice.knee.workers), "low": low, "high": high}
        return Finding(code="projected-too-widely", numbers=numbers)
    return None
