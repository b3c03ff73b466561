"""A study folder, read: its records, and what follows from them. Works on any machine, on a folder that still grows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from worldsize.analysis.bests import Contest, contests
from worldsize.analysis.breakdown import StepParts, Traffic, breakdown, exposed, straggler
from worldsize.analysis.large_batch import regained
from worldsize.analysis.learning import RateEdge, Target, Trained, mean_interval, rate_edges, summaries
from worldsize.analysis.link import Link, fit_link
from worldsize.analysis.mfu import mfu
from worldsize.analysis.noise_scale import NoiseScale, noise_scale, of_ranks
from worldsize.analysis.points import Measured, Setting, block_means, points, setting_order
from worldsize.analysis.recommend import Answer, Finding, recommend
from worldsize.analysis.scaling import Series, scaling
from worldsize.analysis.stats import Interval, outliers
from worldsize.analysis.telemetry import Hardware, Usage, hardware, usage
from worldsize.catalog import WorkloadFacts, facts_from
from worldsize.errors import StoreError
from worldsize.optimizer_spec import OptimizerSpec
from worldsize.plan import Plan
from worldsize.record import TrialRecord
from worldsize.spec import StudySpec, TrialSpec
from worldsize.store import StudyFolder, read_json
from worldsize.studyfile import StudyFile

SHARP_EDGE = 1.25
"""An edge is a number while the two rates around it differ by no more than this factor; else it is a range."""
GAP_SHARE = 0.02
"""A gap between training and test metric below this share of the metric is not worth a word."""


@dataclass(frozen=True)
class Results:
    """Its spec, the records so far, and what follows from them."""

    folder: StudyFolder
    spec: StudySpec
    facts: WorkloadFacts
    plan: Plan
    records: dict[str, TrialRecord]
    damaged: tuple[str, ...]

    @property
    def trials(self) -> Mapping[str, TrialSpec]:
        return self.plan.trials

    @cached_property
    def series(self) -> list[Series]:
        best = {contest.setting: contest.variants[0] for contest in self.contests}
        return scaling(points(self._measured()), best)  # type: ignore[arg-type]  # settings, all of them

    @cached_property
    def contests(self) -> list[Contest]:
        """What was trained, setting by setting, the best first."""
        found = summaries(self._trained, higher_is_better=self.facts.higher_is_better, target=self.target)
        met = contests(found, higher_is_better=self.facts.higher_is_better, by_target=self.target is not None)
        return sorted(met, key=lambda contest: setting_order(contest.setting))  # type: ignore[arg-type]

    @cached_property
    def edges(self) -> dict[tuple[Any, str], RateEdge]:
        """Above which rate training diverges, by setting and optimiser."""
        return rate_edges(self._trained)

    @cached_property
    def answer(self) -> Answer:
        answer = recommend(
            self.series,
            higher_is_better=self.facts.higher_is_better,
            trained=self.spec.train is not None and bool(self._trained) and not self.left(),
            target=self.target is not None,
        )
        return replace(answer, findings=(*answer.findings, *self._findings(answer)))

    @cached_property
    def steps(self) -> list[StepParts]:
        """Where a step goes, setting by setting, in the order of the scaling table; from probes where there are any."""
        by_setting: dict[Setting, list[tuple[TrialSpec, TrialRecord]]] = defaultdict(list)
        for trial, record in self._ended():
            if record.outcome != "diverged" and record.spans:
                by_setting[setting_of(trial)].append((trial, record))
        found = []
        for row in (row for series in self.series for row in series.rows):
            here = by_setting[row.setting]
            probes = [pair for pair in here if pair[0].kind == "probe"] or here
            found.append(self._parts(row.setting, probes))
        return found

    @cached_property
    def mfus(self) -> dict[Setting, Interval]:
        """Of settings whose probes know what a sample costs and what the device can do.

        More than 1 is not told: the peak is then not what it was held against (torch's convolutions use TF32 for fp32).
        """
        found = {}
        known = {setting_of(trial): record.compute for trial, record in self._ended() if record.compute}
        for row in (row for series in self.series for row in series.rows):
            facts: dict[str, Any] = dict(known.get(row.setting, {}))
            if facts.get("flop_per_sample") and facts.get("peak_flop_s"):
                found[row.setting] = mfu(
                    row.samples_per_s,
                    flop_per_sample=facts["flop_per_sample"],
                    workers=row.setting.workers,
                    peak_flop_s=facts["peak_flop_s"],
                )
        return {setting: share for setting, share in found.items() if share.value <= 1}

    @cached_property
    def noise_scales(self) -> list[tuple[Setting, str, NoiseScale]]:
        """Of each variant trained with `noise_scale`, over the second half of its steps and all its repeats."""
        rows: dict[tuple[Setting, str], list[Any]] = defaultdict(list)
        for trial, record in self._ended():
            if record.noise and record.outcome != "diverged":
                small, big = of_ranks(self.folder.noise(record))
                half = len(big) // 2
                rows[setting_of(trial), labels(trial, len(self.spec.starts))[1]].append((small[half:], big[half:]))
        return [
            (
                setting,
                variant,
                noise_scale(
                    np.concatenate([small for small, _ in each]),
                    np.concatenate([big for _, big in each]),
                    setting.global_batch / each[0][0].shape[1],
                ),
            )
            for (setting, variant), each in rows.items()
        ]

    @cached_property
    def hardware(self) -> list[tuple[Setting, Hardware]]:
        """How busy and how full the hardware was, setting by setting; of probes where there are any."""
        by_setting: dict[Setting, dict[bool, list[list[Usage]]]] = defaultdict(lambda: {True: [], False: []})
        for trial, record in self._ended():
            if record.telemetry:
                rows = self.folder.telemetry(record)
                ranks = [usage(rank, record.telemetry_columns, each) for rank, each in enumerate(rows)]
                by_setting[setting_of(trial)][trial.kind == "probe"].append(ranks)
        ordered = sorted(by_setting.items(), key=lambda item: setting_order(item[0]))
        return [(setting, hardware(kinds[True] or kinds[False])) for setting, kinds in ordered]

    @cached_property
    def links(self) -> list[tuple[str, Link]]:
        """What the links between ranks can do, by kind (inside a node, across nodes, all), over all launches."""
        times: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for launch in self.folder.launches():
            path = launch / "interconnect.json"
            for row in read_json(path)["sweep"]["times"] if path.exists() else []:
                times[row["kind"], row["workers"]][row["size_bytes"]] += row["seconds"]
        found = [(kind, fit_link(workers, sizes)) for (kind, workers), sizes in sorted(times.items())]
        return [(kind, link) for kind, link in found if link is not None]

    def _parts(self, setting: Setting, here: list[tuple[TrialSpec, TrialRecord]]) -> StepParts:
        columns = here[0][1].columns
        repeats: dict[int, Any] = {}
        for trial, record in here:
            if record.columns == columns:
                spans = self.folder.span_s(record)
                known = repeats.get(trial.repeat)
                repeats[trial.repeat] = spans if known is None else np.concatenate([known, spans])
        slowest = [spans.sum(axis=2).max(axis=1) for spans in repeats.values()]
        blocks = [self.folder.exposed(record) for _, record in here if record.exposed]
        totals = [record.exchange["total_s"] for _, record in here if record.exchange.get("total_s")]
        size = next((record.exchange["bytes"] for _, record in here if "bytes" in record.exchange), None)
        return StepParts(
            setting=setting,
            parts=breakdown(columns, repeats),
            outlier_share=float(np.mean(np.concatenate([outliers(step_s) for step_s in slowest]))),
            by_subtraction_s=self._by_subtraction(setting),
            exposed=exposed([steps for _, steps in blocks], [kinds for kinds, _ in blocks]),
            total_s=mean_interval(totals) if totals else None,
            traffic=Traffic(bytes=size, seconds=float(np.mean(totals)), workers=setting.workers)
            if size and totals
            else None,
        )

    def _by_subtraction(self, setting: Setting) -> float | None:
        """Its step less that of one worker with the same batch a worker: what people take for communication."""
        rows = {row.setting: row.step_s.value for series in self.series for row in series.rows}
        alone = rows.get(replace(setting, workers=1))
        if setting.workers == 1 or setting.scaling == "strong" or alone is None:
            return None
        return rows[setting] - alone

    @property
    def target(self) -> Target | None:
        until = self.spec.train.until if self.spec.train else None
        if until is None:
            return None
        value = until.at_most if until.at_least is None else until.at_least
        assert value is not None
        return Target(value=value, at_least=until.at_least is not None)

    def contest(self, setting: Setting) -> Contest | None:
        return next((contest for contest in self.contests if contest.setting == setting), None)

    def table(self) -> list[dict[str, Any]]:
        """The scaling table, a dict a row: workers, batches, step time, samples/s, speedup, efficiency, metric."""
        return [flat_row(row) for series in self.series for row in series.rows]

    def learning(self) -> list[dict[str, Any]]:
        """What was trained, a dict a variant: its setting, metric, steps to the target, epochs until stable, gap."""
        return [
            {**_flat(contest.setting), **{key: value for key, value in asdict(variant).items() if key != "setting"}}
            for contest in self.contests
            for variant in contest.variants
        ]

    def step_s(self) -> dict[tuple[int, int], float]:
        """Measured median step time by (workers, samples that a worker computes in a step)."""
        rows = [row for series in self.series for row in series.rows]
        return {(row.setting.workers, row.setting.worker_batch): row.step_s.value for row in rows}

    def left(self) -> list[str]:
        return [trial_id for trial_id in self.trials if trial_id not in self.records]

    def failed(self) -> list[TrialRecord]:
        return [record for record in self.records.values() if record.outcome == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """For machines: the answer, the tables, and how every trial ended."""
        row = self.answer.row
        return {
            "study": self.spec.name,
            "workload": self.spec.workload.name,
            "scaling": self.spec.axes.scaling,
            "metric": self.facts.metric,
            "unit": self.facts.unit,
            "units_per_sample": self.facts.units_per_sample,
            "answer": {
                "verdict": self.answer.verdict,
                "setting": flat_row(row) if row else None,
                "findings": [asdict(finding) for finding in self.answer.findings],
            },
            "table": self.table(),
            "steps": [asdict(each) for each in self.steps],
            "hardware": [{**_flat(setting), **asdict(found)} for setting, found in self.hardware],
            "links": [_link(kind, link) for kind, link in self.links],
            "mfu": [{**_flat(setting), **asdict(found)} for setting, found in self.mfus.items()],
            "noise_scale": [
                {**_flat(setting), "variant": variant, **asdict(found)} for setting, variant, found in self.noise_scales
            ],
            "learning": self.learning(),
            "comparisons": [
                {**_flat(contest.setting), **asdict(comparison)}
                for contest in self.contests
                for comparison in contest.comparisons
            ],
            "trials": {
                trial_id: self.records[trial_id].outcome if trial_id in self.records else "left"
                for trial_id in self.trials
            },
        }

    def _ended(self) -> Iterator[tuple[TrialSpec, TrialRecord]]:
        for trial_id, record in self.records.items():
            if record.outcome != "failed" and self.trials[trial_id].kind != "pretrain":
                yield self.trials[trial_id], record

    def _measured(self) -> Iterator[Measured]:
        for trial, record in self._ended():
            yield Measured(
                setting=setting_of(trial),
                kind="probe" if trial.kind == "probe" else "train",
                repeat=trial.repeat,
                step_s=block_means(
                    self.folder.step_s(record)[: 0 if record.outcome == "diverged" else None], trial.strategy.period
                ),
            )

    @cached_property
    def _trained(self) -> list[Trained]:
        return [self._curve(trial, record) for trial, record in self._ended() if trial.kind == "train"]

    def _curve(self, trial: TrialSpec, record: TrialRecord) -> Trained:
        metric, until = self.facts.metric, trial.train.until if trial.train else None
        epochs = [epoch for epoch in record.epochs if metric in epoch.test]
        assert record.outcome != "failed"
        kin, variant = labels(trial, len(self.spec.starts))
        return Trained(
            setting=setting_of(trial),
            variant=variant,
            kin=kin,
            family=trial.optimizer.family,
            rate=trial.optimizer.rate,
            scaled=trial.peak_rate / trial.optimizer.rate,
            repeat=trial.repeat,
            outcome=record.outcome,
            steps=np.cumsum([epoch.steps for epoch in epochs], dtype=np.float64),
            samples=np.cumsum([epoch.samples for epoch in epochs], dtype=np.float64),
            seconds=np.cumsum([epoch.train_s for epoch in epochs], dtype=np.float64),
            metric=np.array([epoch.test[metric] for epoch in epochs]),
            train_metric=np.array([epoch.train[metric] for epoch in epochs if metric in epoch.train]),
            final=None if record.outcome == "diverged" else record.metrics.get(metric),
            goal=np.array([epoch.test.get(until.metric, np.nan) for epoch in epochs]) if until else None,
        )

    def _findings(self, answer: Answer) -> Iterator[Finding]:
        outcomes = [record.outcome for record in self.records.values()]
        for outcome in ("failed", "diverged", "stopped"):
            if outcome in outcomes:
                yield Finding(code=f"trials-{outcome}", numbers={"trials": outcomes.count(outcome)})
        yield from self._target_findings()
        yield from self._soonest(answer)
        known = {name: value for record in self.records.values() for name, value in record.known.items()}
        for (setting, kin), edge in self.edges.items():
            numbers = {"rate": edge.estimate, "held": edge.held, "diverged": edge.diverged}
            names = {"optimizer": kin if len(self.contests) == 1 else f"{kin} (global batch {setting.global_batch})"}
            sharp = edge.diverged <= edge.held * SHARP_EDGE
            yield Finding(code="rate-edge" if sharp else "rate-edge-wide", numbers=numbers, names=names)
            if sharp and kin == "sgd" and "largest_stable_rate" in known:
                theory = known["largest_stable_rate"]
                percent = (edge.estimate / theory - 1) * 100
                yield Finding(code="rate-edge-theory", numbers={"theory": theory, "percent": percent})
            if not edge.monotone:
                numbers = {"diverged": edge.diverged, "held": edge.highest_held}
                yield Finding(code="rate-edge-blurred", numbers=numbers, names=names)
        yield from self._edges_not_found()
        equal_epochs = self.spec.train is not None and self.spec.train.epochs is not None
        for each in regained(self.contests, higher_is_better=self.facts.higher_is_better) if equal_epochs else []:
            numbers = {"batch": each.global_batch, "factor": each.global_batch / each.base_batch}
            names = {"metric": self.facts.metric, "unscaled": each.unscaled, "variant": each.variant}
            share = {"percent": each.share.value * 100}
            if each.share.low is not None and each.share.high is not None:
                share |= {"low": each.share.low * 100, "high": each.share.high * 100}
            numbers |= {"lost": each.lost.value, **share}
            yield Finding(code="large-batch", numbers=numbers, names=names)
        for step in self.steps:
            slow = straggler(step.parts)
            if slow is not None:
                numbers = {"workers": step.setting.workers, "rank": slow[0], "extra_ms": slow[1] * 1e3}
                yield Finding(code="straggler", numbers=numbers)
        if answer.row is not None:
            yield from self._gap_finding(answer.row.setting)
        imprecise = sum(record.precision_reached is False for record in self.records.values())
        if imprecise and self.spec.probe:
            yield Finding(
                code="precision-not-reached", numbers={"trials": imprecise, "percent": self.spec.probe.precision * 100}
            )
        if self.left():
            yield Finding(code="trials-left", numbers={"trials": len(self.left())})

    def _edges_not_found(self) -> Iterator[Finding]:
        if self.left():
            return
        for entry in self.spec.axes.optimizer:
            search = entry.searched().get("rate")
            families = {setting.family for setting in entry.settings()}
            if search and search.edge and not any(kin.split()[0] in families for _, kin in self.edges):
                low, high = search.search
                yield Finding(code="no-rate-edge", numbers={"low": low, "high": high}, names={"optimizer": entry.name})

    def _soonest(self, answer: Answer) -> Iterator[Finding]:
        """Throughput alone would hide that a larger batch needs more epochs to the same target."""
        times = {
            contest.setting: seconds.value
            for contest in self.contests
            if (target := contest.variants[0].target) and target.always and (seconds := target.seconds)
        }
        soonest: Any = min(times, key=lambda setting: times[setting], default=None)
        if answer.row is not None and soonest is not None and soonest != answer.row.setting:
            numbers = {"workers": soonest.workers, "batch": soonest.global_batch, "seconds": times[soonest]}
            yield Finding(code="soonest-target", numbers=numbers)

    def _target_findings(self) -> Iterator[Finding]:
        targets = [variant.target for contest in self.contests for variant in contest.variants if variant.target]
        early = [v.diverged + v.stopped + v.plateaued for c in self.contests for v in c.variants if v.target]
        missed = sum(target.repeats - target.reached for target in targets) - sum(early)
        if missed > 0 and self.spec.train and self.spec.train.until:
            numbers = {"trials": missed, "of": sum(target.repeats for target in targets)}
            epochs = float(self.spec.train.until.max_epochs)
            yield Finding(
                code="target-not-reached",
                numbers={**numbers, "value": targets[0].target.value, "epochs": epochs},
                names={
                    "metric": self.spec.train.until.metric,
                    "sign": "at least" if targets[0].target.at_least else "at most",
                },
            )

    def _gap_finding(self, setting: Setting) -> Iterator[Finding]:
        contest = self.contest(setting)
        best = contest.variants[0] if contest else None
        if best is None or best.gap is None or best.metric is None:
            return
        # One run cannot say how runs differ: then only a gap that is large beside the metric itself counts.
        low = best.gap.low if best.gap.low is not None else best.gap.value / 2
        if low > GAP_SHARE * abs(best.metric.value):
            numbers = {"gap": best.gap.value, "value": best.metric.value}
            yield Finding(code="overfitting", numbers=numbers, names={"metric": self.facts.metric})


def load(folder: Path | str) -> Results:
    """Reads a study folder, finished or not, on any machine. Damaged records are named, never used."""
    home = StudyFolder.existing(Path(folder))
    spec = StudyFile.read(home.study_file).spec()
    records, damaged = {}, []
    plan, facts = read_plan(home)
    for trial_id in plan.trials:
        try:
            record = home.record(trial_id)
        except ValueError:
            damaged.append(trial_id)
            continue
        if record is not None:
            records[trial_id] = record
    return Results(home, spec, facts, plan, records, tuple(damaged))


def read_plan(home: StudyFolder) -> tuple[Plan, WorkloadFacts]:
    try:
        stored = read_json(home.plan_file)
        return Plan.from_dict(stored), facts_from(stored["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{home.plan_file} is missing, damaged or of another version ({type(error).__name__}); "
            "use the version that made the folder, or a new folder"
        ) from error


def setting_of(trial: TrialSpec) -> Setting:
    return Setting(
        workers=trial.workers,
        batch_per_worker=trial.batch_per_worker,
        accumulation=trial.accumulation,
        scaling=trial.scaling,
        strategy=trial.strategy.label,
        precision=trial.precision,
    )


def labels(trial: TrialSpec, starts: int) -> tuple[str, str]:
    """What tells trials of one setting apart in what they learn, without the rate and with it.

    `momentum 0.9, linear rule` and `momentum 0.9 rate 0.05, linear rule`.
    """
    optimizer = trial.optimizer
    name = optimizer.family + (f" {optimizer.momentum:g}" if optimizer.momentum else "")
    extra = "".join(f", {words}" for words in _settings(optimizer))
    if starts > 1:
        extra += ", pretrained" if trial.workload.pretrained else ", from scratch"
    return name + extra, f"{name} rate {optimizer.rate:.9g}{extra}"


def _settings(optimizer: OptimizerSpec) -> Iterable[str]:
    """Every value that it brings itself: two that differ in anything must not look alike."""
    if optimizer.trust != OptimizerSpec.model_fields["trust"].default:
        yield f"trust {optimizer.trust:.9g}"
    if optimizer.weight_decay:
        yield f"decay {optimizer.weight_decay:.9g}"
    if optimizer.rate_rule is not None:
        yield "unscaled" if optimizer.rate_rule == "none" else f"{optimizer.rate_rule} rule"
    if optimizer.warmup_epochs is not None:
        yield f"warm-up {optimizer.warmup_epochs:.9g}" if optimizer.warmup_epochs else "no warm-up"


def flat_row(row: Any) -> dict[str, Any]:
    flat = asdict(row)
    del flat["setting"]
    return {**_flat(row.setting), **flat}


def _link(kind: str, link: Link) -> dict[str, Any]:
    """Strict JSON has no infinity: a bandwidth that no size showed is None."""
    flat = asdict(link)
    flat["bandwidth_bytes_per_s"] = {
        key: value if math.isfinite(value) else None for key, value in flat["bandwidth_bytes_per_s"].items()
    }
    return {"kind": kind, **flat, "poor": link.is_poor}


def _flat(setting: Any) -> dict[str, Any]:
    return {**asdict(setting), "global_batch": setting.global_batch}
