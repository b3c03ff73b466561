"""The opening of a report: the answer in a sentence or two, then cautions and findings."""

from __future__ import annotations

from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.answer.predict.predict import Outlook
from worldsize.answer.results import Results
from worldsize.report.words.answers import answer_sentence, contest_sentence, largest_batch_sentences, only_one_count
from worldsize.report.words.findings import DOUBTS, IN_THE_ANSWER, LARGEST_BATCH, finding_sentence, sentence
from worldsize.report.words.settings import configuration_words, describe

MOST_CONTESTS = 4
"""Maximum number of settings described one by one; the table has the rest."""


def answer_sentences(results: Results) -> list[str]:
    """The result of a search for the largest batch, the best training if only one worker count was measured, or else
    the recommended number of workers."""
    if len(results.by_place) > 1:
        row = results.answer.row  # its place comes first, since the numbers shown next to the answer belong to it
        ordered = sorted(results.by_place.items(), key=lambda item: row is not None and item[0] != row.setting.place)
        return [f"On {place}: {words}" for place, place_results in ordered for words in answer_sentences(place_results)]
    answer, metric = results.answer, results.facts.metric
    compared = [contest for contest in results.variant_rankings if len(contest.variants) > 1]
    until = results.spec.train.until if results.spec.train else None
    sentences = largest_batch_sentences(answer)
    asks_elsewhere = only_one_count(answer) or not results.series  # the question is not how many workers
    if not (asks_elsewhere and sentences) and (not only_one_count(answer) or not 0 < len(compared) <= MOST_CONTESTS):
        sentences.append(answer_sentence(answer, metric, configuration_words(results)))
    settings = [contest.setting for contest in results.variant_rankings]
    for contest in compared if len(compared) <= MOST_CONTESTS else []:
        lead = "" if len(results.variant_rankings) == 1 else f"{describe(contest.setting, settings)}: "
        sentences.append(lead + contest_sentence(contest, metric, until))
    return sentences


def cautions(results: Results) -> list[dict[str, str]]:
    """Sentences that cast doubt on the answer; empty if the answer is not about speed."""
    return [finding for finding in _unsaid(results) if finding["code"] in CAUTIONS] if _asks_for_speed(results) else []


def other_findings(results: Results) -> list[dict[str, str]]:
    """Sentences for findings that are in neither the answer nor the cautions."""
    shown = cautions(results)
    return [finding for finding in _unsaid(results) if finding not in shown]


def _asks_for_speed(results: Results) -> bool:
    """False for a study of one worker count, which compares trainings, and for a search for the largest batch."""
    return any(
        place_results.series and not place_results.largest and not only_one_count(place_results.answer)
        for place_results in results.by_place.values()
    )


def _unsaid(results: Results) -> list[dict[str, str]]:
    """Findings that the answer does not mention, in words."""
    if len(results.by_place) > 1:
        placed = [
            (place, finding) for place, place_results in results.by_place.items() for finding in _unsaid(place_results)
        ]
        return [{"code": finding["code"], "text": f"On {place}: {finding['text']}"} for place, finding in placed]
    answer = results.answer
    stated = DOUBTS if answer.verdict != "use" else {*DOUBTS, IN_THE_ANSWER}
    if only_one_count(answer) and answer.row is not None and answer.row.metric is not None:
        stated = stated - {"one-count"}
    return [
        {"code": finding.code, "text": finding_sentence(finding)}
        for finding in answer.findings
        if finding.code not in stated and not finding.code.startswith(LARGEST_BATCH)
    ]


def beyond(outlook: Outlook | None) -> list[dict[str, str]]:
    """What limits the next larger count, and which measurement to make next. The latter is left out if the existing
    measurements are in doubt."""
    if outlook is None:
        return []
    prediction, limiting = outlook
    wanted = (
        [] if prediction.doubt else [finding for finding in prediction.findings if finding.code.startswith("measure")]
    )
    return [
        {"code": finding.code, "text": sentence(finding)} for finding in [*([limiting] if limiting else []), *wanted]
    ]
