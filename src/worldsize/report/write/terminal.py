"""The answer in the terminal. Text from users is never interpreted as markup."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.answer.predict.predict import outlook
from worldsize.answer.results import Results
from worldsize.errors import visible
from worldsize.report.sections.batch import batches_view
from worldsize.report.sections.communication import exchange_view, links_view
from worldsize.report.sections.curves import noise_view
from worldsize.report.sections.hardware import hardware_view
from worldsize.report.sections.learning import learning_view
from worldsize.report.sections.opening import answer_sentences, beyond, cautions, other_findings
from worldsize.report.sections.scaling import scaling_table
from worldsize.report.sections.steps import queue_words, steps_view
from worldsize.report.words.answers import only_one_count
from worldsize.report.write.console import ACCENT


def answer_view(results: Results) -> Group:
    """The answer, other findings and the tables, for one place after another."""
    parts: list[Any] = []
    for place, place_results in results.by_place.items():
        parts += [Text(f"\nOn {place}", style=f"bold {ACCENT}")] if len(results.by_place) > 1 else []
        parts += _answer(place_results)
    parts += [Text(words, style="dim") for words in queue_words(results)]
    parts.append(Text(f"Everything measured is in {visible(str(results.folder.path))}", style="dim"))
    return Group(*parts)


def _answer(results: Results) -> list[Any]:
    answer, searched = results.answer, bool(results.largest)
    trained = answer.row is not None and answer.row.metric is not None
    sure = answer.verdict == "use" or searched or (only_one_count(answer) and trained)
    parts: list[Any] = [Text("")]
    parts += [Text(words, style="bold" if sure else "bold yellow") for words in answer_sentences(results)]
    parts += [Text(finding["text"], style="yellow") for finding in cautions(results)]
    parts += [Text(finding["text"]) for finding in beyond(outlook(results))]
    parts += [Text(finding["text"], style="dim") for finding in other_findings(results)]
    parts += batches_view(results)
    if results.series and not (searched and only_one_count(answer)):
        parts += [Text(""), scaling_table(results, results.facts.metric)]
    parts += steps_view(results)
    parts += exchange_view(results)
    parts += links_view(results)
    parts += hardware_view(results)
    parts += learning_view(results)
    return parts + noise_view(results)
