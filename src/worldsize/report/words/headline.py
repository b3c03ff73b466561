"""The answer to the question of a study: one short sentence, its evidence, the reason, and what to do next."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import VariantRanking, VariantSummary
from worldsize.analysis.speed.largest_batch import LargestBatch
from worldsize.analysis.speed.recommend import LEAST_GAIN, NOISE_OF_ONE_RUN, WIDE, Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.facets import Facet, facets
from worldsize.answer.predict.predict import Outlook
from worldsize.answer.reruns import pass_s
from worldsize.answer.results import Results
from worldsize.report.blocks import Prose
from worldsize.report.words.answers import configuration_of, target_words
from worldsize.report.words.findings import METRIC, PERCENT, number_of, sentence
from worldsize.report.words.numbers import LEVEL_WORDS, counted, rate, rough_duration, whole
from worldsize.report.words.quantities import EFFICIENCY, SPEEDUP, STEP_TIME, STEPS, test_metric, throughput

MAX_OTHERS = 3
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
    answer = _answer(results, outlook)
    if not results.failed():
        return answer
    # What failed may change the answer, so it is repaired before anything else is tried.
    return [*(prose for prose in answer if prose.role != "next"), *_failed(results)]


def _answer(results: Results, outlook: Outlook | None) -> list[Prose]:
    asked: Sequence[Facet] = facets(results.spec)
    if not results.rows and not results.largest:
        return [Prose(role="doubt", text=_nothing(results))]
    first: Facet | None = asked[0] if asked else None
    if first == "workers" and len({row.setting.workers for row in results.rows}) < 2 and "largest-batch" not in asked:
        first = "batch" if "batch" in asked else None
        measured = [replace(prose, role="evidence") for prose in ANSWERS.get(first, _one_point)(results, outlook)]
        return [Prose(role="doubt", text=_missing_counts(results)), *measured]
    return list(ANSWERS.get(first, _one_point)(results, outlook))


def _missing_counts(results: Results) -> str:
    """Say that the study cannot compare worker counts, and why."""
    measured = {row.setting.workers for row in results.rows}
    trials = [trial for trial in results.trials.values() if trial.workers not in measured]
    counts = sorted({trial.workers for trial in trials})
    if not counts:
        return "No answer yet: only one worker count was measured."
    words = f"{either(*map(str, counts))} {'worker' if counts == [1] else 'workers'}"
    outcomes = {results.records[trial.id].outcome if trial.id in results.records else None for trial in trials}
    if outcomes == {"failed"}:
        return f"No answer: all trials with {words} failed."
    if outcomes == {"out_of_memory"}:
        return f"No answer: all trials with {words} ran out of memory."
    return f"No answer yet: nothing was measured with {words}."


def _failed(results: Results) -> Iterator[Prose]:
    """Say how many trials failed, why the first one did, and how to run them again."""
    failed = results.failed()
    first = failed[0]
    reason = ""
    if first.failure is not None:
        rank = "" if first.failure.rank is None else f" on rank {first.failure.rank}"
        error = (first.failure.error.splitlines() or ["unknown error"])[0]
        reason = f"{rank}: {error}" if len(failed) == 1 else f". The first failed{rank}: {error}"
    of = counted(len(results.trials), "trial")
    yield Prose(role="caution", text=f"{len(failed)} of {of} failed{reason.rstrip('.')}.")
    folder = results.folder.path
    command = shlex.join(["worldsize", "run", str(results.folder.study_file), "--dir", str(folder), "--retry-failed"])
    log = f"{folder}/trials/{first.trial}/log.txt"
    yield Prose(role="next", text=f"after fixing the cause; the log is `{log}`", command=command)


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
    where = " and ".join(filter(None, [how, _batch_words(results, row)]))
    use = f"Use {counted(row.setting.workers, 'worker')}{f' with {where}' if where else ''}"
    if (busy := codes.get("machine-busy")) is not None:
        yield from _busy(results, row, busy)
        return
    if doubt is not None or "close-call" in codes:
        other = int(number_of(doubt or codes["close-call"], "workers"))
        yield from _too_close(results, row, _row_at(results, row, other), doubt or codes["close-call"])
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
        yield Prose(role="evidence", text=f"{_faster(following, base)}{_worth_it(row, following)}")
    yield from _why_and_next(results, row, following, outlook)


def _busy(results: Results, row: ScalingRow, busy: Finding) -> Iterator[Prose]:
    percent = PERCENT.said(number_of(busy, "percent"))
    yield Prose(role="doubt", text=f"Not a clean measurement: other processes used {percent} of the CPU.")
    yield Prose(
        role="evidence",
        text=f"Best guess: {counted(row.setting.workers, 'worker')}. Stop the other work and measure again.",
    )
    yield _next(results, {}, "again", "the same study in a new folder")


def says_busy(results: Results) -> bool:
    """Return whether the headline says that the machine was busy."""
    return headline(results, None)[0].text.startswith("Not a clean measurement")


def _batch_words(results: Results, row: ScalingRow) -> str:
    """Return `a batch of 128 per worker` or `a global batch of 1,000`; empty if the study has only one batch."""
    weak = row.setting.scaling == "weak"
    batches = {other.setting.batch_per_worker if weak else other.setting.global_batch for other in results.rows}
    if len(batches) < 2:
        return ""
    if weak:
        return f"a batch of {row.setting.batch_per_worker:,} per worker"
    return f"a global batch of {row.setting.global_batch:,}"


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


def _worth_it(row: ScalingRow, following: ScalingRow) -> str:
    """` They would be worth using from 1.33x on.`; empty if the next count is not compared with the baseline."""
    least = _least_speedup(row, following)
    return "" if least is None else f" They would be worth using from {SPEEDUP.said(least)} on."


def _row_at(results: Results, row: ScalingRow, workers: int) -> ScalingRow:
    same = [other for other in results.rows if other.setting.series == row.setting.series]
    return next((other for other in same if other.setting.workers == workers), row)


def _larger(results: Results, row: ScalingRow) -> list[ScalingRow]:
    same = [other for other in results.rows if other.setting.series == row.setting.series]
    return [other for other in same if other.setting.workers > row.setting.workers]


MAX_REPEATS = 100
"""If more repeats are needed to decide, either the machine is too noisy, or both counts are equally good."""


def _too_close(results: Results, row: ScalingRow, other: ScalingRow, doubt: Finding) -> Iterator[Prose]:
    counts = sorted({row.setting.workers, other.setting.workers})
    if len(counts) == 1:
        other = _row_at(results, row, row.baseline_workers)
        counts = sorted({*counts, row.baseline_workers})
    yield Prose(role="doubt", text=f"Too close to call: {' or '.join(map(str, counts))} workers.")
    smaller, larger = sorted((row, other), key=lambda candidate: candidate.setting.workers)
    batch = _batch_words(results, row)
    ends = " and ".join(map(SPEEDUP.said, larger.speedup.ends))
    text = f"{counted(larger.setting.workers, 'worker')} are between {ends} as fast as {larger.baseline_workers}"
    text = f"With {batch}, {text}." if batch else f"{text}."
    least = _least_speedup(smaller, larger)
    low, high = larger.speedup.ends
    if least is not None and low < least < high:
        text += f" They are worth using from {SPEEDUP.said(least)} on."
    guess = f"Best guess: {counted(row.setting.workers, 'worker')}{_learned_less(row, smaller, larger, least)}."
    yield Prose(role="evidence", text=f"{text} {guess}")
    needed = int(number_of(doubt, "repeats_needed"))
    if needed <= MAX_REPEATS and (results.spec.probe is None or results.spec.axes.largest is not None):
        yield _next(results, {"repeats": needed}, "more-repeats", f"about {needed} runs would decide")
    elif needed <= MAX_REPEATS:
        more_s = max(needed - larger.repeats, 1) * pass_s(results)
        command = ["worldsize", "run", str(results.folder.path), "--time", f"{max(10 * round(more_s / 10), 10)}s"]
        why = f"about {rough_duration(more_s)} more would decide"
        yield Prose(role="next", text=why, command=shlex.join(command))
    elif doubt.code == "too-noisy":
        yield _next(results, {}, "again", "first stop other work on this machine: the runs differ too much")
    else:
        cheaper = f"{counted(smaller.setting.workers, 'worker')} cost{'s' if smaller.setting.workers == 1 else ''} less"
        text = f"More repeats would not decide soon: both are about equally good, and {cheaper}."
        yield Prose(role="evidence", text=text)


def _least_speedup(smaller: ScalingRow, larger: ScalingRow) -> float | None:
    """Return the speedup from which the larger count is recommended; None if the smaller is not the baseline."""
    if smaller.setting.workers != larger.baseline_workers:
        return None
    return float(LEAST_GAIN ** math.log2(larger.setting.workers / smaller.setting.workers))


def _learned_less(row: ScalingRow, smaller: ScalingRow, larger: ScalingRow, least: float | None) -> str:
    """Say why the best guess is not the count that its speed suggests: with the other count, the model learned less."""
    by_speed = larger if least is not None and larger.speedup.value >= least else smaller
    if least is None or by_speed is row or by_speed.metric is None or row.metric is None:
        return ""
    metric = METRIC.said(by_speed.metric.value), METRIC.said(row.metric.value)
    workers = counted(by_speed.setting.workers, "worker")
    return f", because the model learned less with {workers} ({metric[0]} instead of {metric[1]})"


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
    elif limit is not None and limit.code != "limit-not-measured":
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
    """Say how much exchanging gradients adds to a step; empty if that is unknown, uncertain or less than 10 %."""
    step = next((step for step in results.steps if step.setting == row.setting), None)
    if step is None or step.exposed is None:
        return ""
    added = step.exposed.seconds
    if added.value < 0.1 * row.step_s.value or added.ends[0] <= 0:
        return ""
    return (
        f"On {counted(row.setting.workers, 'worker')}, exchanging gradients adds {STEP_TIME.full(added)} to each "
        f"{STEP_TIME.said(row.step_s.value)} step."
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
        batch = f"a batch of {search.enough or search.fits:,} per worker{where}"
        if (widest := _widest(search)) is None:
            yield Prose(role="answer", text=f"Use {batch}.")
            yield Prose(role="evidence", text=_fits(search))
            continue
        yield Prose(role="doubt", text=f"Best guess: {batch}.")
        yield Prose(role="evidence", text=_fits(search))
        pace = throughput(results.facts).full(widest[1])
        yield Prose(
            role="evidence",
            text=f"The timings are too noisy to be sure: with a batch of {widest[0]:,}, throughput is {pace}.",
        )
    if any(_widest(search) for search in searches):
        yield _quieter(results, max(row.tries for search in searches for row in search.rows))


def _widest(search: LargestBatch) -> tuple[int, Estimate] | None:
    """Return the batch with the widest interval of throughput, and the interval; None if all are narrow enough."""
    paces = [(row.batch_per_worker, row.samples_per_s) for row in search.rows if row.fits and row.samples_per_s]
    batch, pace = max(paces, key=lambda pair: pair[1].relative_width, default=(0, Estimate(value=1.0)))
    return (batch, pace) if pace.relative_width > WIDE else None


def _quieter(results: Results, repeats: int) -> Prose:
    """Suggest more repeats, for results whose intervals overlap."""
    why = "more runs narrow the intervals, and so does a machine that does nothing else"
    return _next(results, {"probe.repeats": max(2 * repeats, 5)}, "more-repeats", why)


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
    yield from _recommended(results, row, _batch_of, "batches", lead="a batch of ")
    yield from (
        Prose(role="evidence", text=sentence(finding))
        for finding in results.answer.findings
        if finding.code == "out-of-memory"
    )
    yield from _best_optimizer_there(results)


def _batch_of(row: ScalingRow) -> str:
    """`64 per worker`, or the global batch if that is fixed."""
    weak = row.setting.scaling == "weak"
    return f"{row.setting.batch_per_worker:,} per worker" if weak else f"{row.setting.global_batch:,}"


def _recommended(
    results: Results, row: ScalingRow, name: Callable[[ScalingRow], str], plural: str, *, lead: str = ""
) -> Iterator[Prose]:
    """Recommend a row among those with as many workers, unless noise leaves the fastest open."""
    others = [
        other
        for other in sorted(results.rows, key=lambda other: -other.samples_per_s.value)
        if other is not row and other.setting.workers == row.setting.workers
    ]
    unit = throughput(results.facts)
    slower = [other for other in others if other.samples_per_s.value <= row.samples_per_s.value]
    ties = [other for other in slower if _is_tie(row.samples_per_s, other.samples_per_s)]
    if not ties:
        yield Prose(role="answer", text=f"Use {lead}{name(row)}.")
    elif len(ties) < MAX_OTHERS:
        yield Prose(role="doubt", text=f"Too close to call: {lead}{either(name(row), *map(name, ties))}.")
    else:
        yield Prose(role="doubt", text=f"Too close to call: {len(ties) + 1} {plural} may be the fastest.")
    achieved = _performance(results, row)
    yield Prose(role="evidence", text=f"Best guess: {lead}{name(row)}. {achieved}" if ties else achieved)
    if others:
        listed = ties or others
        names = [f"{name(other)} ({unit.said(other.samples_per_s.value)})" for other in listed[:MAX_OTHERS]]
        more = len(listed) - MAX_OTHERS
        words = f"{', '.join(names)}{f', and {more} more' if more > 0 else ''}"
        kind = "As fast within the noise" if ties else "Alternatives"
        yield Prose(role="evidence", text=f"{kind}: {words}.{_why_not_faster(results, row, others)}")
    if ties:
        yield _quieter(results, row.repeats)


def _why_not_faster(results: Results, row: ScalingRow, others: Sequence[ScalingRow]) -> str:
    """Say why a faster row is not recommended: the model learned less."""
    faster = others[0]
    if faster.samples_per_s.value <= row.samples_per_s.value or faster.metric is None or row.metric is None:
        return ""
    metric = test_metric(results.facts)
    once = ", from one run each" if row.metric.is_single_run else ""
    return f" The fastest learned less: a {metric.title} of {metric.said(faster.metric.value)}{once}."


def _is_tie(one: Estimate, other: Estimate, close: float = NOISE_OF_ONE_RUN) -> bool:
    """Whether noise may explain the ratio of two values. `close`: largest difference that one run of each leaves open.

    Conservative, because repeats are not paired.
    """
    distance = abs(math.log(one.value / other.value))
    if not (one.has_interval and other.has_interval):
        return distance <= close
    (low, high), (other_low, other_high) = one.ends, other.ends
    if min(low, other_low) <= 0:
        return high >= other_low and other_high >= low
    return distance <= math.hypot(math.log(high / low) / 2, math.log(other_high / other_low) / 2)


def either(*names: str) -> str:
    """`A or B`, `A, B or C`."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


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

    def name(row: ScalingRow) -> str:
        return configuration_of(results, row) or row.setting.strategy.label

    strategies = len({other.setting.strategy for other in results.rows}) > 1
    yield from _recommended(results, row, name, "strategies" if strategies else "settings")


def _best_optimizer(results: Results, _: Outlook | None) -> Iterator[Prose]:
    ranking = next((ranking for ranking in results.variant_rankings if ranking.variants), None)
    if ranking is None:
        yield Prose(role="doubt", text="Nothing has been trained yet.")
        return
    yield from _best_of(results, ranking)
    yield from _divergence(results)
    if ranking.variants[0].repeats == 1:
        why = "each variant ran only once, so the variation between runs is unknown"
        yield _next(results, {"repeats": 3}, "repeats", why)


def _best_of(results: Results, ranking: VariantRanking) -> Iterator[Prose]:
    """Recommend the best variant of a ranking, or say that several are equally good."""
    best = ranking.best_variants[0]
    if best.diverged or best.metric is None:
        yield Prose(role="doubt", text="None of the trained variants learned.")
        return
    names = [_name(variant, ranking) for variant in (best, *ties(ranking))]
    if len(names) > 1:
        yield Prose(role="doubt", text=f"Too close to call: {either(*names)}.")
    else:
        yield Prose(role="answer", text=f"Use {names[0]}.")
    subject = "The first" if len(names) > 1 else "It"
    yield Prose(role="evidence", text=f"{subject} {_achieved(results, best)}. {_compared(results, ranking)}".strip())


def _rivals(ranking: VariantRanking) -> list[VariantSummary]:
    """Return the best variants of the other optimizers; if there is only one optimizer, its other variants."""
    return list((ranking.best_variants if len(ranking.best_variants) > 1 else ranking.variants)[1:])


SIMILAR_STEPS = 0.2
"""Relative difference in the steps of two runs that chance alone may produce."""


def ties(ranking: VariantRanking) -> list[VariantSummary]:
    """Return the rivals of the best variant that may be as good: the noise allows it, or single runs are similar."""
    best = ranking.best_variants[0]
    judged = {difference.variant: difference.within_noise for difference in ranking.differences}
    similar = []
    for rival in _rivals(ranking):
        within_noise = judged.get(rival.variant)
        if within_noise or (within_noise is None and _is_similar(best, rival)):
            similar.append(rival)
    return similar


def _is_similar(best: VariantSummary, rival: VariantSummary) -> bool:
    if rival.diverged or rival.stopped:
        return False
    if best.target is not None and rival.target is not None:
        if not (best.target.always and rival.target.always):
            return best.target.always == rival.target.always
        if best.target.steps is not None and rival.target.steps is not None:
            return _is_tie(best.target.steps, rival.target.steps, SIMILAR_STEPS)
    if best.metric is None or rival.metric is None:
        return False
    if best.metric.has_interval and rival.metric.has_interval:
        return best.metric.ends[0] <= rival.metric.ends[1] and rival.metric.ends[0] <= best.metric.ends[1]
    return abs(best.metric.value - rival.metric.value) <= NOISE_OF_ONE_RUN * abs(best.metric.value)


START_WORDS = {"pretrained": "pretrained weights", "from scratch": "training from scratch"}


def _name(variant: VariantSummary, ranking: VariantRanking) -> str:
    """Return what distinguishes a variant. If all have the same optimizer and learning rate, only the weights do."""
    optimizers = {other.variant.partition(", ")[0] for other in ranking.variants}
    start = START_WORDS.get(variant.variant.partition(", ")[2])
    return start if start and len(optimizers) == 1 else setting_words(variant.variant)


def setting_words(variant: str) -> str:
    """Return the label of a variant as words: `momentum 0.5 with learning rate 1`."""
    return variant.replace(" rate ", " with learning rate ", 1)


def _achieved(results: Results, variant: VariantSummary) -> str:
    """`reaches accuracy 0.9 in 29 steps (28 to 31)`, or the test metric if the study has no target."""
    until = results.spec.train.until if results.spec.train else None
    if variant.target is not None and variant.target.always and variant.target.steps is not None:
        value, _, ends = STEPS.full(variant.target.steps).partition(" (")
        return f"reaches {target_words(until)} in {value} steps{f' ({ends}' if ends else ''}"
    metric = test_metric(results.facts)
    assert variant.metric is not None
    return f"reaches a {metric.title} of {metric.full(variant.metric)}"


def _compared(results: Results, ranking: VariantRanking) -> str:
    """`Best of the others: adam 62 steps (lr 0.3162), sgd 34 steps (lr 1.778).`"""
    metric, descriptions = test_metric(results.facts), []
    is_of_families = len(ranking.best_variants) > 1
    noise = {difference.variant for difference in ranking.differences if difference.within_noise}
    for other in _rivals(ranking)[:MAX_OTHERS]:
        if other.target is not None and other.target.always and other.target.steps is not None:
            result = f"{whole(other.target.steps.value)} steps"
        elif other.target is None and other.metric is not None:
            result = metric.said(other.metric.value)
        else:
            result = "diverged" if other.diverged else "not reached"
        details = [f"lr {rate(other.lr)}"] if is_of_families else []
        details += ["within the noise"] if other.variant in noise else []
        shown = f" ({', '.join(details)})" if details else ""
        name = other.family if is_of_families else f"{_name(other, ranking)}:"
        descriptions.append(f"{name} {result}{shown}")
    if is_of_families:
        return f"Best of the others: {', '.join(descriptions)}." if descriptions else ""
    return f"Others: {'; '.join(descriptions)}." if descriptions else ""


def _divergence(results: Results) -> Iterator[Prose]:
    """Say at which learning rate training diverges, and what theory predicts."""
    codes = ("rate-edge", "rate-edge-theory", "rate-edge-theory-off")
    sentences = [sentence(finding) for finding in results.answer.findings if finding.code in codes]
    if sentences:
        yield Prose(role="evidence", text=" ".join(sentences))


def _best_optimizer_there(results: Results) -> Iterator[Prose]:
    """Name the best optimizer at the recommended setting, if several were trained there."""
    row = results.answer.row
    ranking = next((ranking for ranking in results.variant_rankings if row and ranking.setting == row.setting), None)
    if ranking is not None and len(ranking.variants) > 1 and ranking.variants[0].metric is not None:
        best = ranking.best_variants[0]
        achieved = f", which {_achieved(results, best)}" if best.target is not None else ""
        text = f"Best optimizer for this batch: {setting_words(best.variant)}{achieved}."
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
