"""How a report opens: the answer in a sentence or two, and what else to know."""

from __future__ import annotations

from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.answer.predict.predict import Outlook
from worldsize.answer.results import Results
from worldsize.report.words.answers import answer_sentence, contest_sentence, largest_batch_sentences, only_one_count
from worldsize.report.words.findings import DOUBTS, IN_THE_ANSWER, LARGEST_BATCH, finding_sentence, sentence
from worldsize.report.words.settings import configuration_words, describe

MOST_CONTESTS = 4
"""So many settings are worded one by one; beyond that the table speaks."""


def answer_sentences(results: Results) -> list[str]:
    """Of a search for the largest batch, what it found; where one count was measured, what was trained best; else how
    many workers."""
    if len(results.by_place) > 1:
        row = results.answer.row  # its place comes first: the numbers beside these words are of it
        ordered = sorted(results.by_place.items(), key=lambda item: row is not None and item[0] != row.setting.place)
        return [f"On {on}: {words}" for on, each in ordered for words in answer_sentences(each)]
    answer, metric = results.answer, results.facts.metric
    compared = [contest for contest in results.variant_rankings if len(contest.variants) > 1]
    until = results.spec.train.until if results.spec.train else None
    told = largest_batch_sentences(answer)
    asks_elsewhere = only_one_count(answer) or not results.series  # than how many workers
    if not (asks_elsewhere and told) and (not only_one_count(answer) or not 0 < len(compared) <= MOST_CONTESTS):
        told.append(answer_sentence(answer, metric, configuration_words(results)))
    settings = [contest.setting for contest in results.variant_rankings]
    for contest in compared if len(compared) <= MOST_CONTESTS else []:
        place = "" if len(results.variant_rankings) == 1 else f"{describe(contest.setting, settings)}: "
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
    return any(
        each.series and not each.largest and not only_one_count(each.answer) for each in results.by_place.values()
    )


def _unsaid(results: Results) -> list[dict[str, str]]:
    """All but those that the answer says."""
    if len(results.by_place) > 1:
        found = [(on, each) for on, apart in results.by_place.items() for each in _unsaid(apart)]
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
