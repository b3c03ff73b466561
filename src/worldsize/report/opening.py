"""How the page opens: the answer in a sentence or two, what else to know, and the recommended study to copy."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML

from worldsize.analysis.points import Setting
from worldsize.analysis.recommend import CAUTIONS
from worldsize.analysis.scaling import Row
from worldsize.grid import base_batch
from worldsize.inputs import labels, setting_of
from worldsize.prediction import Outlook
from worldsize.report.learning import how_words
from worldsize.report.prediction import sentence
from worldsize.report.sentences import DOUBTS, IN_THE_ANSWER, LARGEST_BATCH, finding_sentence
from worldsize.report.tables import where
from worldsize.report.words import (
    answer_sentence,
    contest_sentence,
    largest_batch_sentences,
    only_one_count,
)
from worldsize.results import Results
from worldsize.spec import TrialSpec

MOST_CONTESTS = 4
"""So many settings are worded one by one; beyond that the table speaks."""


def answer_sentences(results: Results) -> list[str]:
    """Of a search for the largest batch, what it found; where one count was measured, what was trained best; else how
    many workers."""
    if len(results.apart) > 1:
        row = results.answer.row  # its target comes first: the numbers beside these words are of it
        ordered = sorted(results.apart.items(), key=lambda item: row is not None and item[0] != row.setting.on)
        return [f"On {on}: {words}" for on, each in ordered for words in answer_sentences(each)]
    answer, metric = results.answer, results.facts.metric
    compared = [contest for contest in results.contests if len(contest.variants) > 1]
    until = results.spec.train.until if results.spec.train else None
    told = largest_batch_sentences(answer)
    asks_elsewhere = only_one_count(answer) or not results.series  # than how many workers
    if not (asks_elsewhere and told) and (not only_one_count(answer) or not 0 < len(compared) <= MOST_CONTESTS):
        told.append(answer_sentence(answer, metric, how_words(results)))
    settings = [contest.setting for contest in results.contests]
    for contest in compared if len(compared) <= MOST_CONTESTS else []:
        place = "" if len(results.contests) == 1 else f"{where(contest.setting, settings)}: "
        told.append(place + contest_sentence(contest, metric, until))
    return told


def cautions(results: Results) -> list[dict[str, str]]:
    """Findings that put the answer in question, worded: none where it is not about speed."""
    return [found for found in _unsaid(results) if found["code"] in CAUTIONS] if _asks_for_speed(results) else []


def other_findings(results: Results) -> list[dict[str, str]]:
    """Those that neither the answer nor the cautions say already, worded."""
    said = cautions(results)
    return [found for found in _unsaid(results) if found not in said]


def _asks_for_speed(results: Results) -> bool:
    """Not of a study of one count, which compares what was trained, nor of one that looks for the largest batch."""
    return any(each.series and not each.largest and not only_one_count(each.answer) for each in results.apart.values())


def _unsaid(results: Results) -> list[dict[str, str]]:
    """All but those that the answer says."""
    if len(results.apart) > 1:
        found = [(on, each) for on, apart in results.apart.items() for each in _unsaid(apart)]
        return [{"code": each["code"], "text": f"On {on}: {each['text']}"} for on, each in found]
    answer = results.answer
    said = DOUBTS if answer.verdict != "use" else {*DOUBTS, IN_THE_ANSWER}
    if only_one_count(answer) and answer.row is not None and answer.row.metric is not None:
        said = said - {"one-count"}
    return [
        {"code": found.code, "text": finding_sentence(found)}
        for found in answer.findings
        if found.code not in said and LARGEST_BATCH not in found.code
    ]


def beyond(seen: Outlook | None) -> list[dict[str, str]]:
    """What limits the next step up, and the measurement that would say most about it: not where the first step is to
    measure again what is there."""
    if seen is None:
        return []
    prediction, limiting = seen
    wanted = [] if prediction.doubt else [each for each in prediction.findings if each.code.startswith("measure")]
    return [{"code": found.code, "text": sentence(found)} for found in [*([limiting] if limiting else []), *wanted]]


def recommended_study(results: Results) -> str | None:
    """The recommended setting alone, as a study file; None where nothing was measured. Left out: the defaults."""
    row = results.answer.row
    if row is None:
        return None
    results = results.apart[row.setting.on]
    trial = _trial_of(results, row)
    spec = results.spec.model_dump(mode="json", exclude_defaults=True, exclude={"small", "skip", "axes", "name"})
    axes: dict[str, Any] = {"workers": [row.setting.workers]}
    if row.setting.scaling == "weak":
        axes["batch_per_worker"] = [row.setting.batch_per_worker]
    else:
        axes["global_batch"] = [row.setting.global_batch]
    if row.setting.accumulation > 1:
        axes["accumulation"] = [row.setting.accumulation]
    axes["optimizer"] = [short_optimizer(trial)]
    if trial.strategy.name != "ddp" or trial.strategy.model_dump(exclude_defaults=True):
        axes["strategy"] = [trial.strategy.model_dump(mode="json", exclude_defaults=True)]
    if trial.precision != "fp32":
        axes["precision"] = [trial.precision]
    if len(results.spec.starts) > 1:
        axes["start"] = ["pretrained" if trial.workload.pretrained else "scratch"]
    if isinstance(spec.get("train"), dict):
        # Alone, the setting would be its own base, and the rate rule would scale nothing.
        spec["train"]["base_batch"] = base_batch(results.spec)
    rest = {key: False if value is None else value for key, value in spec.items() if key != "workload"}
    study = {"name": f"{results.spec.name[:50]}-recommended", "workload": spec["workload"], "axes": axes, **rest}
    stream = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.default_flow_style = None
    yaml.width = 78
    yaml.dump(study, stream)
    return stream.getvalue()


def short_optimizer(trial: TrialSpec) -> dict[str, Any]:
    """As one would write it."""
    given = trial.optimizer.model_dump(mode="json", exclude_defaults=True)
    return {"name": trial.optimizer.name} | {key: value for key, value in given.items() if key != "momentum" or value}


def _trial_of(results: Results, row: Row) -> TrialSpec:
    """One that was trained with the best variant of the row; where nothing was trained, a probe of it."""
    starts = len(results.spec.starts)
    here = [trial for trial in results.trials.values() if trial.kind != "pretrain" and _runs(trial, row.setting)]
    best = [trial for trial in here if trial.kind == "train" and labels(trial, starts)[1] == row.variant]
    return (best or here)[0]


def _runs(trial: TrialSpec, setting: Setting) -> bool:
    """A search for the largest batch ran every batch it tried."""
    own = setting_of(trial)
    return own == setting or (
        trial.largest is not None and replace(own, batch_per_worker=setting.batch_per_worker) == setting
    )
