"""The answer to the question of a study: one short sentence, its evidence, the reason, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from worldsize.analysis.learning.variants import VariantRanking, VariantSummary
from worldsize.analysis.speed.largest_batch import LargestBatch
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.facets import Facet, facets
from worldsize.answer.predict.predict import Outlook
from worldsize.answer.results import Results
from worldsize.report.blocks import Prose
from worldsize.report.words.answers import configuration_of, target_words
from worldsize.report.words.findings import number_of, sentence
from worldsize.report.words.numbers import LEVEL_WORDS, counted, number, rate, whole
from worldsize.report.words.quantities import EFFICIENCY, SPEEDUP, STEPS, test_metric, throughput

MOST_OTHERS = 3
"""Maximum number of alternatives that the evidence compares with the best one. The table has the rest."""


def headline(results: Results, outlook: Outlook | None) -> list[Prose]:
    """Return the answer to the first facet of the study. Each place has its own answer; the fastest place is first."""
    if len(results.by_place) > 1:
        best = results.answer.row.setting.place if results.answer.row else ""
        ordered = sorted(results.by_place.items(), key=lambda item: item[0] != best)
        return [
            Prose(role=prose.role, text=f"On {place}: {prose.text}", command=prose.command)
            for place, of_place in ordered
            for prose in headline(of_place, outlook if place == best else None)
        ]
    asked: Sequence[Facet] = facets(results.spec)
    if not results.rows and not results.largest:
        return [Prose(role="doubt", text=_nothing(results))]
    first: Facet | None = asked[0] if asked else None
    if first == "workers" and len({row.setting.workers for row in results.rows}) < 2 and "largest-batch" not in asked:
        first = "batch" if "batch" in asked else None  # the other worker counts failed or have not run yet
    return list(ANSWERS.get(first, _one_point)(results, outlook))


def _nothing(results: Results) -> str:
    return " ".join(sentence(finding) for finding in results.answer.findings[:1]) or "Nothing was measured."


def _use_workers(results: Results, outlook: Outlook | None) -> Iterator[Prose]:
    answer, row = results.answer, results.answer.row
    codes = {finding.code: finding for finding in answer.findings}
    if row is None:
        yield Prose(role="doubt", text=f"Not enough evidence. {_nothing(results)}")
        return
    base = next(other for series in results.series for other in series.rows if other.pace.baseline == row.pace.baseline)
    doubt = codes.get("too-noisy")
    how = configuration_of(results, row)
    use = f"Use {counted(row.setting.workers, 'worker')}{f' with {how}' if how else ''}"
    if doubt is not None or "close-call" in codes:
        other = int(number_of(doubt or codes["close-call"], "workers"))
        yield from _too_close(results, row, _row_at(results, row, other), doubt)
        return
    if answer.verdict != "use":
        yield Prose(role="doubt", text="Not enough evidence to recommend a number of workers.")
        yield Prose(role="evidence", text=_nothing(results))
        return
    if row.setting.workers > base.setting.workers:
        speedup = SPEEDUP.said(row.speedup.value)
        yield Prose(role="answer", text=f"{use}: {speedup} as fast as {counted(base.setting.workers, 'worker')}.")
        yield Prose(role="evidence", text=_certainty(row))
    else:
        yield Prose(role="answer", text=f"{use}.")
    following = next((other for other in _larger(results, row)), None)
    if following is not None:
        yield Prose(role="evidence", text=_faster(following, base))
    yield from _why_and_next(results, row, following, outlook)


def _certainty(row: ScalingRow) -> str:
    """`The speedup is between 1.30x and 1.49x (90 % interval), which is 70 % efficient.`"""
    efficiency = f"{EFFICIENCY.said(row.efficiency.value)} efficient"
    if not row.speedup.has_interval:
        return f"This is {efficiency}. It ran only once, so the uncertainty is unknown."
    low, high = map(SPEEDUP.said, row.speedup.ends)
    return f"The speedup is between {low} and {high} ({LEVEL_WORDS}), which is {efficiency}."


def _faster(row: ScalingRow, base: ScalingRow) -> str:
    """`2 workers are 1.29x as fast as 1 (1.07x to 1.56x), which is 64 % efficient.`"""
    speedup = SPEEDUP.full(row.speedup).replace(" (", f" as fast as {base.setting.workers} (", 1)
    if "(" not in speedup:
        speedup += f" as fast as {base.setting.workers}"
    efficiency = EFFICIENCY.said(row.efficiency.value)
    return f"{counted(row.setting.workers, 'worker')} are {speedup}, which is {efficiency} efficient."


def _row_at(results: Results, row: ScalingRow, workers: int) -> ScalingRow:
    same = [other for other in results.rows if other.setting.series == row.setting.series]
    return next((other for other in same if other.setting.workers == workers), row)


def _larger(results: Results, row: ScalingRow) -> list[ScalingRow]:
    same = [other for other in results.rows if other.setting.series == row.setting.series]
    return [other for other in same if other.setting.workers > row.setting.workers]


def _too_close(results: Results, row: ScalingRow, other: ScalingRow, doubt: Finding | None) -> Iterator[Prose]:
    counts = sorted({row.setting.workers, other.setting.workers})
    if len(counts) == 1:
        counts = sorted({*counts, row.baseline_workers})
    yield Prose(role="doubt", text=f"Too close to call: {' or '.join(map(str, counts))} workers.")
    larger = max(row, other, key=lambda candidate: candidate.setting.workers)
    ends = " and ".join(map(SPEEDUP.said, larger.speedup.ends))
    yield Prose(
        role="evidence",
        text=f"{counted(larger.setting.workers, 'worker')} are between {ends} as fast as {larger.baseline_workers}. "
        f"Best guess: {counted(row.setting.workers, 'worker')}.",
    )
    needed = int(number_of(doubt, "repeats_needed")) if doubt else 2 * larger.repeats
    yield _next(
        results, {"probe.repeats": min(needed, 100)}, "more-repeats", f"about {min(needed, 100)} runs would decide"
    )


def _why_and_next(
    results: Results, row: ScalingRow, following: ScalingRow | None, outlook: Outlook | None
) -> Iterator[Prose]:
    """Say why more workers are not worthwhile, and which measurement or change would help most."""
    codes = {finding.code: finding for finding in results.answer.findings}
    if "learning-lost" in codes:
        yield Prose(role="why", text=sentence(codes["learning-lost"]))
        return
    limit = outlook[1] if outlook else None
    if following is not None and (exchange := _exchange(results, following)):
        yield Prose(role="why", text=exchange)
    elif limit is not None:
        yield Prose(role="why", text=sentence(limit))
    if following is not None and limit is not None and limit.code == "limit-communication":
        if row.setting.scaling == "weak":
            batch = row.setting.batch_per_worker
            yield _next(
                results,
                {"axes.batch_per_worker": [batch, 4 * batch]},
                "larger-batch",
                "a larger batch exchanges gradients less often",
            )
    elif outlook is not None and not outlook[0].doubt:
        measure = next((finding for finding in outlook[0].findings if finding.code.startswith("measure")), None)
        if measure is not None and measure.code == "measure-next":
            counts = sorted({other.setting.workers for other in results.rows} | {int(number_of(measure, "workers"))})
            yield _next(results, {"axes.workers": counts}, "more-workers", "more workers may still be worthwhile")
        elif measure is not None:
            yield Prose(role="next", text=sentence(measure))


def _exchange(results: Results, row: ScalingRow) -> str:
    """Say how much exchanging gradients adds to a step; empty if it was not measured or is less than 10 %."""
    step = next((step for step in results.steps if step.setting == row.setting), None)
    if step is None or step.exposed is None:
        return ""
    added, total = step.exposed.seconds.value, step.parts.step_s.value
    if added < 0.1 * total:
        return ""
    return (
        f"On {counted(row.setting.workers, 'worker')}, exchanging gradients adds {number(added * 1e3)} ms to each "
        f"{number(total * 1e3)} ms step."
    )


def _next(results: Results, changes: Mapping[str, object], name: str, why: str) -> Prose:
    """Return a command to copy: the same study with a few changes, in another folder."""
    command = ["worldsize", "run", str(results.folder.study_file)]
    for key, value in changes.items():
        command += ["--set", f"{key}={json.dumps(value, separators=(',', ':'))}"]
    command += ["--dir", f"runs/{results.spec.name}-{name}"]
    return Prose(role="next", text=why, command=shlex.join(command))


def _largest_batch(results: Results, _: Outlook | None) -> Iterator[Prose]:
    if not results.largest:
        yield Prose(role="doubt", text="No batch has been tried yet.")
        return
    searches = results.largest
    for search in searches:
        where = f" with {counted(search.setting.workers, 'worker')}" if len(searches) > 1 else ""
        if search.fits is None:
            tried = search.rows[-1].batch_per_worker
            yield Prose(role="doubt", text=f"No batch fits into memory{where}: even {tried:,} per worker is too large.")
            continue
        yield Prose(role="answer", text=f"Use a batch of {search.enough or search.fits:,} per worker{where}.")
        yield Prose(role="evidence", text=_fits(search))


def _fits(search: LargestBatch) -> str:
    limit = {
        "memory": f"{search.too_large or 0:,} runs out of memory",
        "throughput": "larger ones were not tried because throughput no longer rises",
        "most": "the largest that the study allows",
    }[search.ended]
    enough = "It is the smallest within 5 % of the best throughput. " if search.enough else ""
    return f"{enough}A batch of {search.fits:,} fits ({limit})."


def _best_batch(results: Results, _: Outlook | None) -> Iterator[Prose]:
    row = results.answer.row
    if row is None:
        yield Prose(role="doubt", text=f"Not enough evidence to recommend a batch. {_nothing(results)}")
        return
    weak = row.setting.scaling == "weak"
    batch = f"{row.setting.batch_per_worker:,} per worker" if weak else f"{row.setting.global_batch:,}"
    yield Prose(role="answer", text=f"Use a batch of {batch}.")
    yield Prose(role="evidence", text=_performance(results, row))
    yield from _best_optimizer_there(results)


def _performance(results: Results, row: ScalingRow) -> str:
    """`It processes 5,703 samples/s and reaches a test accuracy of 0.9750.`"""
    metric = test_metric(results.facts)
    text = f"It processes {throughput(results.facts).full(row.samples_per_s)}"
    if row.metric is not None:
        text += f" and reaches a {metric.title} of {metric.full(row.metric)}"
    return f"{text}."


def _best_way(results: Results, _: Outlook | None) -> Iterator[Prose]:
    """Recommend a strategy or a precision, at one worker count."""
    row = results.answer.row
    if row is None:
        yield Prose(role="doubt", text=f"Not enough evidence. {_nothing(results)}")
        return
    yield Prose(role="answer", text=f"Use {configuration_of(results, row) or row.setting.strategy.label}.")
    yield Prose(role="evidence", text=_performance(results, row))
    others = [other for other in results.rows if other is not row and other.setting.workers == row.setting.workers]
    fastest_first = sorted(others, key=lambda other: -other.samples_per_s.value)
    if fastest_first:
        unit = throughput(results.facts)
        names = [
            f"{configuration_of(results, other)} {unit.said(other.samples_per_s.value)}"
            for other in fastest_first[:MOST_OTHERS]
        ]
        yield Prose(role="evidence", text=f"Alternatives: {', '.join(names)}.")


def _best_optimizer(results: Results, _: Outlook | None) -> Iterator[Prose]:
    ranking = next((ranking for ranking in results.variant_rankings if ranking.variants), None)
    if ranking is None:
        yield Prose(role="doubt", text="Nothing has been trained yet.")
        return
    yield from _best_of(results, ranking)
    yield from _divergence(results)
    if ranking.variants[0].repeats == 1:
        yield _next(
            results, {"repeats": 3}, "repeats", "each variant ran only once, so the variation between runs is unknown"
        )


def _best_of(results: Results, ranking: VariantRanking) -> Iterator[Prose]:
    """Recommend the best variant of a ranking, or say that several are equally good."""
    best = ranking.best_variants[0]
    if best.diverged or best.metric is None:
        yield Prose(role="doubt", text="None of the trained variants learned.")
        return
    ties = [difference.variant for difference in ranking.differences if difference.within_noise]
    if ties:
        yield Prose(role="doubt", text=f"Too close to call: {' or '.join(map(setting_words, (best.variant, *ties)))}.")
    else:
        yield Prose(role="answer", text=f"Use {setting_words(best.variant)}.")
    subject = "The first" if ties else "It"
    yield Prose(role="evidence", text=f"{subject} {_achieved(results, best)}. {_compared(results, ranking)}".strip())


def setting_words(variant: str) -> str:
    """Return the label of a variant as words: `momentum 0.5 with learning rate 1`."""
    return variant.replace(" rate ", " with learning rate ", 1)


def _achieved(results: Results, variant: VariantSummary) -> str:
    """`reaches accuracy 0.9 in 29 steps`, or the test metric if the study has no target."""
    until = results.spec.train.until if results.spec.train else None
    if variant.target is not None and variant.target.always and variant.target.steps is not None:
        return f"reaches {target_words(until)} in {STEPS.full(variant.target.steps)} steps"
    metric = test_metric(results.facts)
    assert variant.metric is not None
    return f"reaches a {metric.title} of {metric.full(variant.metric)}"


def _compared(results: Results, ranking: VariantRanking) -> str:
    """`Best of the others: adam 62 steps (lr 0.3162), sgd 34 steps (lr 1.778).`"""
    metric, descriptions = test_metric(results.facts), []
    ties = {difference.variant for difference in ranking.differences if difference.within_noise}
    for other in ranking.best_variants[1 : 1 + MOST_OTHERS]:
        if other.target is not None and other.target.always and other.target.steps is not None:
            result = f"{whole(other.target.steps.value)} steps"
        elif other.target is None and other.metric is not None:
            result = metric.said(other.metric.value)
        else:
            result = "diverged" if other.diverged else "not reached"
        noise = ", within the noise" if other.variant in ties else ""
        descriptions.append(f"{other.family} {result} (lr {rate(other.lr)}{noise})")
    return f"Best of the others: {', '.join(descriptions)}." if descriptions else ""


def _divergence(results: Results) -> Iterator[Prose]:
    """Say at which learning rate training diverges, and what theory predicts."""
    sentences = [
        sentence(finding) for finding in results.answer.findings if finding.code in ("rate-edge", "rate-edge-theory")
    ]
    if sentences:
        yield Prose(role="evidence", text=" ".join(sentences))


def _best_optimizer_there(results: Results) -> Iterator[Prose]:
    """Name the best optimizer at the recommended setting, if several were trained there."""
    row = results.answer.row
    ranking = next((ranking for ranking in results.variant_rankings if row and ranking.setting == row.setting), None)
    if ranking is not None and len(ranking.variants) > 1 and ranking.variants[0].metric is not None:
        best = ranking.best_variants[0]
        text = f"Best optimizer for this batch: {setting_words(best.variant)}, which {_achieved(results, best)}."
        yield Prose(role="evidence", text=f"{text} {_compared(results, ranking)}".strip())


def _one_point(results: Results, _: Outlook | None) -> Iterator[Prose]:
    """Describe what was measured. A study of a single point has nothing to choose between."""
    row = results.answer.row or (results.rows[0] if results.rows else None)
    if row is None:
        yield Prose(role="doubt", text=_nothing(results))
        return
    workers, metric = counted(row.setting.workers, "worker"), test_metric(results.facts)
    if row.metric is not None:
        yield Prose(role="answer", text=f"{metric.title.capitalize()}: {metric.full(row.metric)}.")
    verb = "processes" if row.setting.workers == 1 else "process"
    speed = throughput(results.facts).full(row.samples_per_s)
    yield Prose(role="answer" if row.metric is None else "evidence", text=f"{workers} {verb} {speed}.")


AnswerWriter = Callable[[Results, "Outlook | None"], Iterator[Prose]]
ANSWERS: dict[Facet | None, AnswerWriter] = {
    "workers": _use_workers,
    "largest-batch": _largest_batch,
    "batch": _best_batch,
    "strategy": _best_way,
    "precision": _best_way,
    "optimizer": _best_optimizer,
    "weights": _best_optimizer,
}
