"""Groups the timed trials by setting, and computes speedup and efficiency relative to a baseline, with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import Estimate, Floats, Sample, mean_of_blocks, warmup_end
from worldsize.analysis.learning.variants import VariantSummary
from worldsize.spec.setting import SeriesKey, Setting, setting_order


@dataclass(frozen=True, kw_only=True)
class TimedTrial:
    """The step times of one finished trial."""

    setting: Setting
    kind: Literal["probe", "train"]
    repeat: int
    launch: str
    step_s: Floats
    """Times of the steps that count, one row per step, one column per rank."""
    blocks: npt.NDArray[np.int64] | None = None
    """Number of the block of each step. None: the steps ran one after another, without turns of other settings."""
    like_a_probe: bool = True
    """Whether its steps do the same work as those of a probe."""


@dataclass(frozen=True, kw_only=True)
class SettingTimes:
    setting: Setting
    repeats: dict[int, Floats]
    """Step times of the slowest rank, by repeat number: the median of each block of steps."""
    launches: dict[int, str]
    """The launch of each repeat."""
    trained: frozenset[int] = frozenset()
    """Repeats that are training trials, in addition to probes. They follow the repeats of the probes."""


def setting_times(trials: Iterable[TimedTrial]) -> list[SettingTimes]:
    """Return the step times of each setting. Probes and training are one body of evidence: the n-th training trials of
    all settings are one more repeat, if they last long enough. Without probes, all training trials count."""
    by_setting: dict[Setting, list[TimedTrial]] = defaultdict(list)
    for trial in trials:
        if len(trial.step_s):
            by_setting[trial.setting].append(trial)
    probed = [trial.repeat for group in by_setting.values() for trial in group if trial.kind == "probe"]
    after_probes = max(probed, default=-1) + 1
    points = []
    for setting, group in by_setting.items():
        group.sort(key=lambda trial: trial.repeat)
        probes = [trial for trial in group if trial.kind == "probe"]
        training = [trial for trial in group if trial.kind == "train"]
        timed = {trial.repeat: trial for trial in probes or training}
        repeats, trained = _repeats(probes or training), {}
        if probes:
            trained = {
                after_probes + repeat: blocks
                for repeat, blocks in _repeats([trial for trial in training if trial.like_a_probe]).items()
                if len(blocks) >= MIN_TRAINING_BLOCKS
            }
            timed |= {after_probes + trial.repeat: trial for trial in training}
        repeats |= trained
        points.append(
            SettingTimes(
                setting=setting,
                repeats=repeats,
                launches={repeat: timed[repeat].launch for repeat in repeats},
                trained=frozenset(trained),
            )
        )
    return sorted(points, key=lambda point: setting_order(point.setting))


BLOCK_S = 0.1
BLOCK_STEPS = 3
"""Steps that ran one after another are cut into blocks of this duration, and of at least this many steps."""
MIN_TRAINING_BLOCKS = 10
"""Training that is shorter says little about the speed of a setting beside its probes."""
WARM_S = 0.5
"""Caches and clocks settle at least this long. Training that is not longer than four times this is not cut."""


def _repeats(trials: list[TimedTrial]) -> dict[int, Floats]:
    """Return the medians of the blocks by repeat. Trials of one repeat that differ only in their variant run at the
    same speed, so their blocks are pooled."""
    by_repeat: dict[int, list[Floats]] = defaultdict(list)
    for trial in trials:
        # A step ends when its slowest rank ends, so rank 0 alone would hide a straggler.
        slowest = trial.step_s.max(axis=1)
        if trial.blocks is None:
            slowest = slowest[max(warmup_end(slowest), _settling(slowest)) :]
        by_repeat[trial.repeat].append(block_medians(slowest, trial.blocks))
    return {repeat: np.concatenate(steps) for repeat, steps in by_repeat.items()}


def _settling(step_s: Floats) -> int:
    """Return the number of first steps in which the machine settles."""
    ends = np.cumsum(step_s)
    return int(np.searchsorted(ends, WARM_S)) if ends[-1] > 4 * WARM_S else 0


def block_medians(step_s: Floats, blocks: npt.NDArray[np.int64] | None = None) -> Floats:
    """Return the median step of each block.

    The median ignores a hiccup of a few steps. The mean over blocks does not ignore that a machine is slow for seconds
    at a time: such times count by how long they last, as they do in training.
    """
    if blocks is None:
        length = max(BLOCK_STEPS, round(BLOCK_S / float(np.median(step_s))))
        blocks = np.minimum(np.arange(len(step_s)) // length, max(len(step_s) // length - 1, 0))
    edges = np.flatnonzero(np.diff(blocks)) + 1
    return np.array([np.median(block) for block in np.split(step_s, edges)])


def period_means(step_s: Floats, period: int) -> Floats:
    """Return the means of `period` consecutive steps. If only one step in `period` exchanges gradients, a median of
    single steps would miss the exchange."""
    if period == 1 or not len(step_s):
        return step_s
    blocks = max(len(step_s) // period, 1)
    kept = step_s[: blocks * period]
    return np.asarray(kept.reshape(blocks, -1, step_s.shape[1]).mean(axis=1))


class LaunchFit:
    """Fit of log step = setting + launch + noise, by least squares over all repeats of a series.

    Each round of an adaptive study is a separate launch, and the speed of the machine differs between launches.
    Settings that ran in the same launch show by how much, so that the effects of launches cancel in the ratio of two
    settings: difference = c x, error^2 = variance c (A'A)^+ c', with repeats - rank degrees of freedom. In a grid, the
    passes over all settings, one per repeat, take the place of launches.
    """

    squares: float
    """Sum of the squared residuals: how much runs differ beyond what their launch has in common."""
    freedom: float
    """Degrees of freedom of the residuals."""

    def __init__(self, steps: Mapping[Setting, Sample], launches: Mapping[Setting, Mapping[int, str]]) -> None:
        self._steps = steps
        self._columns = {setting: column for column, setting in enumerate(steps)}
        names = {name: len(steps) + index for index, name in enumerate(sorted(_launch_names(launches)))}
        logs = [(setting, repeat, log) for setting, step in steps.items() for repeat, log in step.repeats.items()]
        design = np.zeros((len(logs), len(steps) + len(names)))
        for row, (setting, repeat, _) in enumerate(logs):
            design[row, [self._columns[setting], names[launches[setting][repeat]]]] = 1
        inverse, observed = np.linalg.pinv(design), np.array([log for *_, log in logs])
        self._estimable = inverse @ design
        self._effects = inverse @ observed
        self.freedom = float(len(logs) - np.linalg.matrix_rank(design))
        residuals = observed - design @ self._effects
        self.squares = float(residuals @ residuals)
        self._covariance = (self.squares / self.freedom if self.freedom else 0.0) * inverse @ inverse.T

    def difference(self, setting: Setting, other: Setting) -> Sample:
        """Return log step of `setting` minus log step of `other`."""
        contrast = np.zeros(len(self._effects))
        contrast[self._columns[setting]] += 1
        contrast[self._columns[other]] -= 1
        step, other_step = self._steps[setting], self._steps[other]
        if not np.allclose(contrast @ self._estimable, contrast):  # no chain of common launches connects the two
            return step.minus_unpaired(other_step)
        return Sample(
            value=float(contrast @ self._effects),
            error=math.sqrt(max(float(contrast @ self._covariance @ contrast), 0.0)),
            freedom=self.freedom,
            floor=math.hypot(step.floor, other_step.floor),
        )


def _launch_names(launches: Mapping[Setting, Mapping[int, str]]) -> set[str]:
    return {name for of_repeats in launches.values() for name in of_repeats.values()}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The speed of one setting, as samples of logarithms. Any two settings of a series can be compared."""

    setting: Setting
    baseline: Setting
    step: Sample
    speedup: Sample
    fit: LaunchFit
    """If side by side: the fit over this count and all smaller ones, by pass. Otherwise: over the series, by launch."""
    trained: frozenset[int] = frozenset()
    """Repeats that are training trials, not probes."""
    side_by_side: bool
    """Whether repeats with the same number ran side by side. Otherwise they are spread over several launches."""

    def training_gain_over(self, other: Pace) -> tuple[Sample, Sample] | None:
        """Return the throughput relative to `other` as probes saw it, and as training saw it; None without both."""
        batches = math.log(self.setting.global_batch / other.setting.global_batch)
        common = self.step.repeats.keys() & other.step.repeats.keys()
        gains = {repeat: other.step.repeats[repeat] - self.step.repeats[repeat] + batches for repeat in sorted(common)}
        probed = {repeat: gain for repeat, gain in gains.items() if repeat not in self.trained}
        trained = {repeat: gain for repeat, gain in gains.items() if repeat in self.trained & other.trained}
        return (Sample.of(probed), Sample.of(trained)) if probed and trained else None

    @property
    def noise_of_one_probe(self) -> float:
        """Standard deviation of log step between probes, each in processes of its own; 0 for a single one."""
        probed = [log for repeat, log in self.step.repeats.items() if repeat not in self.trained]
        return float(np.std(probed, ddof=1)) if len(probed) > 1 else 0.0

    @property
    def throughput(self) -> Sample:
        """Samples per second."""
        return self.step.negated().plus(math.log(self.setting.global_batch))

    @property
    def efficiency(self) -> Sample:
        return self.speedup.plus(math.log(self.baseline.workers / self.setting.workers))

    def gain_over(self, other: Pace) -> Sample:
        """Return the throughput relative to `other`.

        If the repeats ran side by side, their pairs show the noise. The noise of the other counts, up to the larger of
        the two, weighs as much as one more pair. Counts larger than both may be far noisier.
        """
        if self.side_by_side:
            gain, fit = other.step.minus(self.step), max(self, other, key=lambda pace: pace.setting.workers).fit
            other_squares, freedom = fit.squares - gain.squares / 2, fit.freedom - gain.freedom
            gain = gain.with_prior(2 * other_squares / freedom) if freedom >= 1 else gain
        else:
            gain = self.fit.difference(other.setting, self.setting)
        return gain.plus(math.log(self.setting.global_batch / other.setting.global_batch))


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One line of the scaling table."""

    setting: Setting
    baseline_workers: int
    step_s: Estimate
    samples_per_s: Estimate
    speedup: Estimate
    efficiency: Estimate
    repeats: int
    pace: Pace
    """The samples behind the four intervals."""
    trained: bool = False
    metric: Estimate | None = None
    """Metric of the best variant, averaged over its repeats. None if nothing was trained, or if a repeat diverged or
    missed the target."""
    metric_sample: Sample | None = None
    """The sample behind the metric."""
    variant: str | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows that differ only in workers, with equal batches per worker (weak scaling) or global batches (strong)."""

    rows: tuple[ScalingRow, ...]


def scaling(
    points: Iterable[SettingTimes],
    best: Mapping[Setting, VariantSummary] = MappingProxyType({}),
    *,
    adaptive: bool = False,
) -> list[Series]:
    """Return speedup(n) = throughput(n) / throughput(baseline) and efficiency = speedup * baseline / n of each series.

    With a baseline of one worker, the speedup is T(1)/T(n) for a fixed global batch, and n * T(1)/T(n) for a fixed
    batch per worker. `best`: the best trained variant of each setting. `adaptive`: whether the counts were probed in
    several launches.
    """
    groups = paces(points, adaptive=adaptive)
    return [Series(rows=tuple(_row(pace, best.get(pace.setting)) for pace in group)) for group in groups]


def paces(points: Iterable[SettingTimes], *, adaptive: bool = False) -> list[list[Pace]]:
    """Group the settings that differ only in workers, each group in the order of its counts."""
    groups: dict[SeriesKey, list[SettingTimes]] = defaultdict(list)
    for point in points:
        groups[point.setting.series].append(point)
    return [_paces(sorted(group, key=lambda point: point.setting.workers), adaptive) for group in groups.values()]


def _paces(group: list[SettingTimes], adaptive: bool) -> list[Pace]:
    steps = {point.setting: mean_of_blocks(point.repeats) for point in group}
    launches = {point.setting: point.launches for point in group}
    trained = {point.setting: point.trained for point in group}
    probed = {
        point.setting: {repeat: name for repeat, name in point.launches.items() if repeat not in point.trained}
        for point in group
    }
    side_by_side = not adaptive or len(_launch_names(probed)) == 1
    if side_by_side:
        passes = {setting: {repeat: str(repeat) for repeat in step.repeats} for setting, step in steps.items()}
        fits = {setting: LaunchFit(dict(list(steps.items())[:count]), passes) for count, setting in enumerate(steps, 1)}
    else:
        fits = dict.fromkeys(steps, LaunchFit(steps, launches))
    base, *others = [
        Pace(
            setting=setting,
            baseline=group[0].setting,
            step=step,
            speedup=Sample(value=0.0),
            fit=fits[setting],
            side_by_side=side_by_side,
            trained=trained[setting],
        )
        for setting, step in steps.items()
    ]
    return [base, *(replace(pace, speedup=pace.gain_over(base)) for pace in others)]


def _row(pace: Pace, best: VariantSummary | None) -> ScalingRow:
    return ScalingRow(
        setting=pace.setting,
        baseline_workers=pace.baseline.workers,
        step_s=pace.step.exp(),
        samples_per_s=pace.throughput.exp(),
        speedup=pace.speedup.exp(),
        efficiency=pace.efficiency.exp(),
        repeats=len(pace.step.repeats),
        pace=pace,
        trained=best is not None,
        **_learned(best),
    )


def _learned(best: VariantSummary | None) -> dict[str, Any]:
    if best is None or best.metric is None or best.diverged or (best.target is not None and not best.target.always):
        return {}
    return {
        "metric": best.metric,
        "metric_sample": Sample.of(best.metrics),
        "variant": best.variant,
    }
