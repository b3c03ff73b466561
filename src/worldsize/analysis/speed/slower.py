"""Judges whether a study is slower than another one at any setting: the gate of `compare --fail-on slower`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.compare import THROUGHPUT, Compared, Difference

Verdict = Literal["slower", "not_slower", "cannot_tell"]
RESOLUTION = 0.1
"""Without a margin, noise that could hide a slowdown above this leaves a setting undecided."""


@dataclass(frozen=True, kw_only=True)
class JudgedSetting:
    """The change in step time at one setting, relative to the first study."""

    difference: Difference
    change: Estimate
    """Step time / step time of the first study - 1: 0.05 means that a step takes 5 % longer."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Gate:
    margin: float
    """Slowdown that is allowed, as a share of the step time of the first study."""
    settings: tuple[JudgedSetting, ...]
    """All settings that the first study shares with another one."""

    @property
    def verdict(self) -> Verdict:
        """A single slower setting fails the gate. Otherwise, a single undecided one leaves it undecided."""
        verdicts = {judged.verdict for judged in self.settings}
        if "slower" in verdicts:
            return "slower"
        return "not_slower" if verdicts == {"not_slower"} else "cannot_tell"

    @property
    def deciding(self) -> tuple[JudgedSetting, ...]:
        """The settings with the verdict of the gate, largest slowdown first; if undecided, largest possible one."""
        verdict = self.verdict

        def slowdown(judged: JudgedSetting) -> float:
            return judged.change.ends[1] if verdict == "cannot_tell" else judged.change.value

        return tuple(
            sorted((judged for judged in self.settings if judged.verdict == verdict), key=slowdown, reverse=True)
        )


def gate_slower(compared: Compared, margin: float = 0.0) -> Gate:
    """Judge the speed at every common setting.

    A setting is slower if its difference in throughput is significant, after the correction for all differences of the
    comparison, and the best estimate of its step time is more than `margin` above that of the first study.
    """
    speeds = (difference for difference in compared.differences if difference.quantity == THROUGHPUT)
    return Gate(margin=margin, settings=tuple(_judged(difference, margin) for difference in speeds))


def _judged(difference: Difference, margin: float) -> JudgedSetting:
    change = difference.estimate.map(lambda throughput: 1 / throughput - 1)
    return JudgedSetting(difference=difference, change=change, verdict=_verdict(difference, change, margin))


def _verdict(difference: Difference, change: Estimate, margin: float) -> Verdict:
    if difference.significant is None:
        return "cannot_tell"
    if difference.significant:
        return "slower" if change.value > margin else "not_slower"
    low, high = change.ends
    # The interval is of one difference alone, so it can exclude 0 although the corrected test finds nothing.
    return "cannot_tell" if high > (margin or RESOLUTION) or low > margin else "not_slower"
