"""The opening of a report: the answer in a sentence or two, cautions, the main numbers and the recommended study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import VariantSummary
from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.evidence import Evidence
from worldsize.answer.facets import facets
from worldsize.answer.predict.predict import Outlook
from worldsize.answer.reruns import recommended_study
from worldsize.answer.results import Results
from worldsize.data.catalog import WorkloadFacts
from worldsize.report.blocks import Block, Code, Findings, FindingText, Prose, Tile, Tiles
from worldsize.report.sections.steps import queue_words
from worldsize.report.words.answers import only_one_count
from worldsize.report.words.findings import IN_THE_ANSWER, LARGEST_BATCH, is_bad, is_doubt, sentence
from worldsize.report.words.headline import headline, says_busy
from worldsize.report.words.numbers import counted
from worldsize.report.words.quantities import (
    BATCH_PER_WORKER,
    EFFICIENCY,
    EPOCH_TIME,
    GLOBAL_BATCH,
    LEARNING_RATE,
    SECONDS,
    SPEEDUP,
    STEPS,
    WORKERS,
    Quantity,
    test_metric,
    throughput,
)

STRATEGY = Quantity(key="strategy", title="strategy")
PRECISION = Quantity(key="precision", title="precision")


def opening(evidence: Evidence) -> list[Block]:
    """Return the answer, what casts doubt on it, its numbers in large type, and the recommended study file."""
    results = evidence.results
    blocks: list[Block] = [*headline(results, evidence.outlook)]
    blocks += [Prose(role="caution", text=finding["text"]) for finding in cautions_below(results)]
    if (numbers := tiles(results)) is not None:
        blocks.append(numbers)
    if (study := recommended_study(results)) is not None:
        lead = "The recommended" if results.answer.verdict == "use" else "The best"
        blocks.append(Code(title=f"{lead} configuration as a study file", text=study))
    return blocks


def tiles(results: Results) -> Tiles | None:
    """Return the main numbers, in large type: of the best variant, or of the recommended setting."""
    asked, rankings = facets(results.spec), results.variant_rankings
    if asked and asked[0] in ("optimizer", "weights") and rankings:
        return Tiles(tiles=tuple(_training_tiles(rankings[0].variants[0], results.facts)))
    if results.answer.row is None:
        return None
    return Tiles(tiles=(_first_tile(results, results.answer.row), *_speed_tiles(results.answer.row, results.facts)))


def _first_tile(results: Results, row: ScalingRow) -> Tile:
    """Return what the study asks for: a batch, a strategy, a precision, or else a number of workers."""
    asked, setting = facets(results.spec), row.setting
    workers = counted(setting.workers, "worker")
    first = next((facet for facet in asked if facet != "workers" or len(_counts(results)) > 1), None)
    if first == "strategy":
        return Tile(quantity=STRATEGY, value=setting.strategy.label, note=workers)
    if first == "precision":
        return Tile(quantity=PRECISION, value=setting.precision, note=workers)
    if first in ("batch", "largest-batch"):
        if setting.scaling == "strong":
            return Tile(quantity=GLOBAL_BATCH, value=setting.global_batch, note=workers)
        return Tile(quantity=BATCH_PER_WORKER, value=setting.batch_per_worker, note=workers)
    batch = f"batch {setting.batch_per_worker:,} per worker, {setting.global_batch:,} in total"
    return Tile(quantity=WORKERS, value=setting.workers, note=batch)


def _counts(results: Results) -> set[int]:
    return {row.setting.workers for row in results.rows}


def _training_tiles(best: VariantSummary, facts: WorkloadFacts) -> Iterator[Tile]:
    yield Tile(quantity=LEARNING_RATE, value=best.lr * best.scaled, note=best.variant)
    if best.target is not None and best.target.steps is not None and best.target.seconds is not None:
        yield _tile(STEPS.titled("steps to target"), best.target.steps, f"{best.target.reached} runs")
        yield _tile(SECONDS.titled("time to target"), best.target.seconds, f"{best.target.reached} runs")
    if best.metric is not None:
        yield _tile(test_metric(facts), best.metric, f"{best.metric.n} runs")


def _speed_tiles(row: ScalingRow, facts: WorkloadFacts) -> Iterator[Tile]:
    setting, pace = row.setting, throughput(facts)
    yield _tile(replace(pace, title=pace.heading, unit=""), row.samples_per_s)
    if setting.workers > row.baseline_workers:
        yield _tile(SPEEDUP.titled(f"speedup over {row.baseline_workers}"), row.speedup)
        yield _tile(EFFICIENCY, row.efficiency)
    epoch_s = row.samples_per_s.time_for(facts.train_samples).value
    epoch = EPOCH_TIME.titled("time per epoch")
    yield Tile(quantity=epoch, value=epoch_s, note=f"steps only, {facts.train_samples:,} samples")
    if row.metric is not None:
        yield _tile(test_metric(facts), row.metric, f"{row.metric.n} runs")


def _tile(quantity: Quantity, value: Estimate, note: str = "") -> Tile:
    return Tile(quantity=quantity, value=value, note=note if value.has_interval else "one run")


def findings_block(evidence: Evidence) -> Findings | None:
    """Return the findings that are in neither the answer nor the cautions, and how long jobs waited."""
    results = evidence.results
    findings = [*other_findings(results), *({"code": "queue", "text": line} for line in queue_words(evidence))]
    texts = [FindingText(**finding, is_bad=is_bad(finding["code"])) for finding in findings]
    return Findings(findings=tuple(texts)) if texts else None


def cautions(results: Results) -> list[dict[str, str]]:
    """Return sentences that cast doubt on the answer; empty if the answer is not about speed."""
    return [finding for finding in _unsaid(results) if finding["code"] in CAUTIONS] if _asks_for_speed(results) else []


def cautions_below(results: Results) -> list[dict[str, str]]:
    """Return the cautions that the headline does not mention."""
    said = {"machine-busy"} if says_busy(results) else set()
    return [finding for finding in cautions(results) if finding["code"] not in said]


def other_findings(results: Results) -> list[dict[str, str]]:
    """Return sentences for the findings that are in neither the answer nor the cautions."""
    shown = cautions(results)
    return [finding for finding in _unsaid(results) if finding not in shown]


def _asks_for_speed(results: Results) -> bool:
    """Return False for a study of one worker count, which compares variants, and for a largest-batch search."""
    return any(
        place_results.series and not place_results.largest and not only_one_count(place_results.answer)
        for place_results in results.by_place.values()
    )


def _unsaid(results: Results) -> list[dict[str, str]]:
    """Return the findings that the answer does not mention, in words."""
    if len(results.by_place) > 1:
        placed = [
            (place, finding) for place, place_results in results.by_place.items() for finding in _unsaid(place_results)
        ]
        return [{"code": finding["code"], "text": f"On {place}: {finding['text']}"} for place, finding in placed]
    said = " ".join(prose.text for prose in headline(results, None))
    return [
        {"code": finding.code, "text": text}
        for finding in results.answer.findings
        if not is_doubt(finding)
        and finding.code not in IN_THE_ANSWER
        and not finding.code.startswith(LARGEST_BATCH)
        and (text := sentence(finding)) not in said
    ]


def beyond(outlook: Outlook | None) -> list[dict[str, str]]:
    """Return what limits the next larger count, and what to measure next unless the measurements are in doubt."""
    if outlook is None:
        return []
    prediction, limiting = outlook
    findings = [limiting] if limiting else []
    if not prediction.doubt:
        findings += [finding for finding in prediction.findings if finding.code.startswith("measure")]
    return [{"code": finding.code, "text": sentence(finding)} for finding in findings]


def beyond_target(evidence: Evidence) -> list[dict[str, str]]:
    """Return `beyond` for the recommended place, with its name if there are several places."""
    findings, row = beyond(evidence.outlook), evidence.results.answer.row
    if row is None or len(evidence.results.by_place) == 1:
        return findings
    return [{**finding, "text": f"On {row.setting.place}: {finding['text']}"} for finding in findings]
