"""A study folder -> worker counts never run: throughput, time, energy, cost, and what to choose among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from worldsize.analysis.choice import Choice, Option, choose, limit
from worldsize.analysis.points import Setting
from worldsize.analysis.recommend import Finding
from worldsize.analysis.widening import LEVEL as PROJECTED_LEVEL
from worldsize.errors import SpecError
from worldsize.prediction_line import Line, Question
from worldsize.results import Results

__all__ = ["Outlook", "Prediction", "Question", "doublings", "outlook", "predict", "to_dict"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    setting: Setting
    """Whose batch, strategy and precision it speaks of."""
    options: tuple[Option, ...]
    """Counts that were measured, and those asked for."""
    choice: Choice
    question: Question
    findings: tuple[Finding, ...]
    base: Option
    """What speedups are told against: the smallest measured count."""


def doublings(results: Results) -> tuple[int, ...]:
    """What is asked when nobody says: 2, 4 and 8 times the largest measured count, as far as batches divide."""
    largest = max((row.setting.workers for row in results.rows), default=1)
    row = results.answer.row
    whole = row.setting.global_batch // row.setting.accumulation if row and row.setting.scaling == "strong" else 0
    return tuple(count for factor in (2, 4, 8) if not whole % (count := largest * factor))


def _check(results: Results, question: Question, line: Line) -> None:
    """What cannot be answered is an error, not left out."""
    impossible = [count for count in question.workers if not line.possible(count)]
    if impossible:
        whole = line.setting.global_batch // line.setting.accumulation
        near = [count for count in range(1, min(whole, 4 * impossible[0]) + 1) if whole % count == 0][-4:]
        raise SpecError(
            f"workers={impossible[0]}: a global batch of {line.setting.global_batch} does not divide among them; ask "
            f"about {', '.join(map(str, near))}"
        )
    if question.budget is not None and question.price is None:
        raise SpecError(f"budget={question.budget:g} needs to know what a worker costs; add --price")
    if results.spec.train is None:
        for name, value in (("target", question.target), ("price", question.price), ("deadline", question.deadline_s)):
            if value is not None:
                raise SpecError(
                    f"{name}={value:g}: the study trains nothing, so the time of a whole training is not known; add "
                    f"`train:` to it, or leave --{name} out"
                )


Outlook = tuple[Prediction, Finding | None]


def outlook(results: Results) -> Outlook | None:
    """What lies beyond the largest measured count, and what limits the step after the recommended one.

    None where fewer than two counts were measured, or a batch is being looked for: then scaling was not the question.
    """
    row = results.answer.row
    if row is None or results.largest or len({each.setting.workers for each in results.rows}) < 2:
        return None
    found = predict(results, Question(workers=doublings(results)))
    here = next((option for option in found.options if option.workers == row.setting.workers), None)
    further = [option for option in found.options if here and option.workers > here.workers]
    # Where the next count no longer learns, that is the limit, and the answer itself says so.
    return found, limit(here, further[0]) if here and further and further[0].learns else None


def to_dict(found: Prediction) -> dict[str, Any]:
    """For machines."""
    return {
        "setting": asdict(found.setting),
        "level": PROJECTED_LEVEL,
        "options": [
            {
                **asdict(option),
                "global_batch": option.global_batch,
                "cost": asdict(option.cost) if option.cost else None,
            }
            for option in found.options
        ],
        "choice": {
            "workers": found.choice.knee.workers,
            "measured": found.choice.knee.measured,
            "fastest_in_budget": found.choice.fastest_in_budget and found.choice.fastest_in_budget.workers,
            "cheapest_in_time": found.choice.cheapest_in_time and found.choice.cheapest_in_time.workers,
            "pareto": list(found.choice.pareto),
            "limit": asdict(found.choice.limit) if found.choice.limit else None,
        },
        "findings": [asdict(each) for each in found.findings],
    }


def predict(results: Results, question: Question) -> Prediction:
    row = results.answer.row or max(results.rows, key=lambda each: each.samples_per_s.value, default=None)
    if row is None:
        raise SpecError(f"{results.folder.path} has no measured throughput to project from; run the study first")
    line = Line.of(results, row, question)
    _check(results, question, line)
    counts = sorted({*question.workers, *(each.setting.workers for each in line.rates.rows)})
    options = [line.option(workers) for workers in counts if line.possible(workers)]
    choice = choose(options, budget=question.budget, deadline_s=question.deadline_s)
    base = min((option for option in options if option.measured), key=lambda option: option.workers, default=options[0])
    return Prediction(
        setting=line.setting,
        options=tuple(options),
        choice=choice,
        question=question,
        findings=tuple(line.findings(question.workers)),
        base=base,
    )
