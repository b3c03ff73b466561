"""Read a study folder: its records and the results. Works on any machine, also while the study is running."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from worldsize.analysis.estimate import Estimate, mean_interval, outliers
from worldsize.analysis.learning.larger_batches import BatchStudy, batch_studies
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.variants import (
    DivergenceEdge,
    Goal,
    TrainingRun,
    VariantRanking,
    divergence_edges,
    summaries,
    variant_rankings,
)
from worldsize.analysis.speed.breakdown import StepParts, breakdown
from worldsize.analysis.speed.hardware import Hardware, Stolen, hardware, mfu, stolen
from worldsize.analysis.speed.largest_batch import LargestBatch, largest_batches
from worldsize.analysis.speed.network import Link
from worldsize.analysis.speed.recommend import Answer, recommend
from worldsize.analysis.speed.scaling import ScalingRow, Series, SettingTimes, scaling, setting_times
from worldsize.answer import from_records
from worldsize.answer.as_dict import as_dict, columns, flat
from worldsize.answer.findings import FEW_SHARE, findings
from worldsize.data.catalog import WorkloadFacts, metric_bounds
from worldsize.errors import InputError, StoreError
from worldsize.folder.files import read_model
from worldsize.folder.record import SPANS, TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.plan.grid import at_place
from worldsize.plan.plan import Plan, PlanFile
from worldsize.spec.file import StudyFile
from worldsize.spec.setting import Setting, setting_order
from worldsize.spec.study import StudySpec, TrialSpec


@dataclass(frozen=True)
class Results:
    """The spec of a study, its records so far, and the results computed from them."""

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
    def by_place(self) -> dict[str, Results]:
        """Results by place: different kinds of hardware are never pooled in an answer or a projection."""
        names = dict.fromkeys(trial.place for trial in self.trials.values())
        return {place: self._at_place(place) for place in names} if len(names) > 1 else dict.fromkeys(names, self)

    def _at_place(self, place: str) -> Results:
        trials = {name: trial for name, trial in self.trials.items() if trial.place == place}
        return replace(
            self,
            spec=at_place(self.spec, place),
            plan=Plan(trials=trials, launches=tuple(launch for launch in self.plan.launches if launch.place == place)),
            records={name: record for name, record in self.records.items() if name in trials},
            damaged=tuple(name for name in self.damaged if name in trials),
        )

    @cached_property
    def series(self) -> list[Series]:
        best = {ranking.setting: ranking.variants[0] for ranking in self.variant_rankings}
        return scaling(self.setting_times, best, adaptive=self.spec.adaptive)

    @cached_property
    def setting_times(self) -> list[SettingTimes]:
        """Step times of each setting, by repeat."""
        return setting_times(from_records.measured(self.folder, self._ended))

    @cached_property
    def rows(self) -> list[ScalingRow]:
        """Rows of the scaling table, series by series."""
        return [row for series in self.series for row in series.rows]

    @cached_property
    def largest(self) -> list[LargestBatch]:
        """Results of searches for the largest batch. Empty if the study lists its batches."""
        search = self.spec.axes.largest
        if search is None:
            return []
        attempts = [
            attempt
            for name, record in self.records.items()
            for attempt in from_records.batch_tries(self.trials[name], record)
        ]
        paces = {row.setting: row.samples_per_s for row in self.rows}
        return largest_batches(attempts, paces, train_samples=self.facts.train_samples, most=search.max)

    @cached_property
    def variant_rankings(self) -> list[VariantRanking]:
        """Trained variants of each setting, the best first."""
        better, bounds = self.facts.higher_is_better, metric_bounds(self.facts.metric)
        variants = summaries(self._trained, higher_is_better=better, target=self.goal, bounds=bounds)
        rankings = variant_rankings(variants, higher_is_better=better, by_target=self.goal is not None)
        return sorted(rankings, key=lambda ranking: setting_order(ranking.setting))

    @cached_property
    def edges(self) -> dict[tuple[Setting, str, str], DivergenceEdge]:
        """Learning rate above which training diverges, by setting, optimizer family and label without the rate."""
        return divergence_edges(self._trained)

    @cached_property
    def answer(self) -> Answer:
        """The recommendation. With several places, the one with the highest throughput; see `by_place` for all."""
        if len(self.by_place) > 1:
            answers = [results.answer for results in self.by_place.values()]
            return max(answers, key=lambda answer: answer.row.samples_per_s.value if answer.row else 0.0)
        answer = recommend(
            self._compared,
            higher_is_better=self.facts.higher_is_better,
            trained=self.spec.train is not None and bool(self._trained) and not self.left(),
            target=self.goal is not None,
        )
        return replace(answer, findings=(*answer.findings, *findings(self, answer)))

    @property
    def _compared(self) -> list[Series]:
        """Series to recommend from. A search can try different batches at each count, and a batch tried at one count
        says nothing about scaling. With a single count, use the smallest batch that is about as fast as the fastest."""
        if self.spec.axes.largest is None:
            return self.series
        multi_count = [series for series in self.series if len(series.rows) > 1]
        sufficient = {replace(batch.setting, batch_per_worker=batch.enough) for batch in self.largest if batch.enough}
        return multi_count or [series for series in self.series if series.rows[0].setting in sufficient] or self.series

    @cached_property
    def steps(self) -> list[StepParts]:
        """Breakdown of a step for each setting, in the order of the scaling table."""
        timed_trials = from_records.probes_first(
            (trial, record) for trial, record in self._ended if record.outcome != "diverged" and record.spans
        )
        return [self._parts(row.setting, timed_trials[row.setting]) for row in self.rows]

    @cached_property
    def hardware(self) -> list[tuple[Setting, Hardware]]:
        """Load and memory use of the hardware for each setting."""
        with_telemetry = [(trial, record) for trial, record in self._ended if record.telemetry]
        rows = []
        for setting, pairs in sorted(
            from_records.probes_first(with_telemetry).items(), key=lambda entry: setting_order(entry[0])
        ):
            if usages := from_records.usages(self.folder, pairs):
                load = hardware(usages, setting.global_batch)
                rows.append((setting, self._with_memory(setting, load, with_telemetry)))
        return rows

    def _with_memory(self, setting: Setting, load: Hardware, pairs: list[from_records.TrialResult]) -> Hardware:
        """Probes that take turns share their processes, so the memory of a setting is that of its training."""
        if load.process_memory_bytes is not None or load.gpu_memory_bytes is not None:
            return load
        training = [pair for pair in pairs if pair[0].setting == setting and pair[0].kind == "train"]
        trained = hardware(from_records.usages(self.folder, training), setting.global_batch)
        return replace(
            load, process_memory_bytes=trained.process_memory_bytes, gpu_memory_bytes=trained.gpu_memory_bytes
        )

    @cached_property
    def stolen(self) -> list[Stolen]:
        """CPU time that the hypervisor withheld during each trial, for the trials that recorded it."""
        with_telemetry = [(self.trials[name], record) for name, record in self.records.items() if record.telemetry]
        return [withheld for ranks in from_records.usages(self.folder, with_telemetry) if (withheld := stolen(ranks))]

    @cached_property
    def crowded(self) -> list[float]:
        """Share of the cores that other processes used during each trial, 0 if they left enough cores free. Only for
        trials on a single host that recorded it."""
        pairs = [(self.trials[name], record) for name, record in self.records.items() if record.telemetry]
        return list(from_records.crowded_shares(self.folder, pairs))

    @property
    def is_crowded(self) -> bool:
        """Whether other processes used the cores that the study needed. Then no limit is derived from its timings."""
        crowded = [share for share in self.crowded if share > 0]
        return len(crowded) > max(1, FEW_SHARE * len(self.crowded))

    @cached_property
    def mfus(self) -> dict[Setting, Estimate]:
        """Model FLOPs utilization of the settings whose cost per sample and peak rate are known.

        Values above 1 are omitted, because the assumed peak must be wrong.
        """
        shares = {}
        compute = {trial.setting: record.compute for trial, record in self._ended if record.compute}
        for row in self.rows:
            facts: dict[str, Any] = dict(compute.get(row.setting, {}))
            flop, peak = facts.get("flop_per_sample"), facts.get("peak_flop_s")
            if flop and peak:
                workers = row.setting.workers
                shares[row.setting] = mfu(row.samples_per_s, flop_per_sample=flop, workers=workers, peak_flop_s=peak)
        return {setting: share for setting, share in shares.items() if share.value <= 1}

    @cached_property
    def noise_scales(self) -> list[tuple[Setting, str, NoiseScale]]:
        return from_records.noise_scales(self.folder, self._ended)

    @cached_property
    def batch_studies(self) -> list[BatchStudy]:
        """Effect of a larger batch: steps to the target, or epochs until stable and the metric."""
        return self.batch_studies_for(self.goal)

    def batch_studies_for(self, target: Goal | None, variant: str | None = None) -> list[BatchStudy]:
        """Return `batch_studies` for another target of the same metric. `variant` limits them to one variant, because a
        search has hundreds."""
        runs = [run for run in self._trained if variant is None or run.variant == variant]
        runs = runs if target == self.goal else [replace(run, goal=None) for run in runs]
        return batch_studies(
            runs,
            target=target,
            noise_scales=self.noise_scales,
            max_metric=metric_bounds(self.facts.metric)[1],
        )

    @cached_property
    def links(self) -> list[tuple[str, Link]]:
        places = {trial.place for trial in self.trials.values()}
        return [(kind, link) for kind, link in from_records.links(self.folder) if link.place in places]

    @property
    def goal(self) -> Goal | None:
        until = self.spec.train.until if self.spec.train else None
        return None if until is None else Goal(value=until.value, at_least=until.at_least is not None)

    def table(self) -> list[dict[str, Any]]:
        """The scaling table, one dict per row: workers, batches, step time, samples/s, speedup, efficiency, metric."""
        return [flat(row) for row in self.rows]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the scaling table as flat rows, for pandas: `speedup`, `speedup_low`, `speedup_high`, ..."""
        return [columns(row) for row in self.table()]

    def learning(self) -> list[dict[str, Any]]:
        """Trained variants, one dict each: setting, metric, steps to the target, epochs until stable, gap."""
        return [flat(variant) for ranking in self.variant_rankings for variant in ranking.variants]

    def step_s(self) -> dict[Setting, float]:
        """Median step time of each setting."""
        return {row.setting: row.step_s.value for row in self.rows}

    def left(self) -> list[str]:
        return [trial_id for trial_id in self.trials if trial_id not in self.records]

    def failed(self) -> list[TrialRecord]:
        return [record for record in self.records.values() if record.outcome == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the answer, the tables and the outcome of every trial."""
        return as_dict(self)

    @cached_property
    def _ended(self) -> list[from_records.TrialResult]:
        return [
            pair
            for trial_id, record in self.records.items()
            for pair in from_records.usable_trials(self.trials[trial_id], record)
        ]

    @cached_property
    def _trained(self) -> list[TrainingRun]:
        return [
            from_records.trained(trial, record, self.facts.metric)
            for trial, record in self._ended
            if trial.kind == "train"
        ]

    def _parts(self, setting: Setting, pairs: list[from_records.TrialResult]) -> StepParts:
        repeats = from_records.spans(self.folder, pairs)
        exposed, totals, traffic = from_records.exchange(self.folder, pairs, setting.workers)
        slowest = [spans.sum(axis=2).max(axis=1) for spans in repeats.values()]
        return StepParts(
            setting=setting,
            parts=breakdown(SPANS, repeats),
            outlier_share=float(np.mean(np.concatenate([outliers(step_s) for step_s in slowest]))),
            by_subtraction_s=self._by_subtraction(setting),
            exposed=exposed,
            total_s=mean_interval(totals).clipped(0.0, math.inf) if totals else None,
            traffic=traffic,
        )

    def _by_subtraction(self, setting: Setting) -> float | None:
        """Step time minus that of one worker with the same batch per worker, a common estimate of communication."""
        step_s = self.step_s()
        one_worker_s = step_s.get(replace(setting, workers=1))
        if setting.workers == 1 or setting.scaling == "strong" or one_worker_s is None:
            return None
        return step_s[setting] - one_worker_s


def load(folder: Path | str) -> Results:
    """Read a study folder, finished or not, on any machine. Damaged records are listed but never used."""
    home = StudyFolder.existing(Path(folder))
    spec = read_study(home)
    records, damaged = {}, []
    stored = read_plan(home)
    plan = stored.plan
    if unknown_places := {trial.place for trial in plan.trials.values()} - spec.places.keys():
        raise StoreError(
            f"{home.plan_file} has trials for the place {min(unknown_places)!r}, which {home.study_file} lacks; "
            "restore both files from the same study, or use a new folder"
        )
    for trial_id in plan.trials:
        try:
            record = home.record(trial_id)
        except ValueError:
            damaged.append(trial_id)
            continue
        if record is not None:
            records[trial_id] = record
    return Results(home, spec, stored.facts, plan, records, tuple(damaged))


def as_results(study: Results | Path | str) -> Results:
    """Return results as they are, or load them from a study folder."""
    return study if isinstance(study, Results) else load(study)


def read_study(home: StudyFolder) -> StudySpec:
    """Return the study as it was run, with all defaults filled in."""
    try:
        spec = StudyFile.read(home.study_file).spec()
        if spec.is_resolved:
            return spec
        reason = "it lacks defaults that this version fills in when a study is run"
    except InputError as error:
        reason = str(error.problems[0])
    raise StoreError(
        f"{home.study_file} is damaged or of another version ({reason}); use the version that made the folder, or a "
        "new folder"
    )


def read_plan(home: StudyFolder) -> PlanFile:
    try:
        return read_model(home.plan_file, PlanFile)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{home.plan_file} is missing, damaged or of another version ({type(error).__name__}); "
            "use the version that made the folder, or a new folder"
        ) from error
