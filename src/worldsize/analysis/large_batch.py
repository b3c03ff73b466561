"""What a larger batch costs at an unscaled rate, and how much of that a rate rule or another optimiser wins back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldsize.analysis.bests import Contest
from worldsize.analysis.estimates import Estimate, mean_interval
from worldsize.analysis.learning import VariantSummary
from worldsize.analysis.points import Setting


@dataclass(frozen=True, kw_only=True)
class Regained:
    base_batch: int
    global_batch: int
    unscaled: str
    """The variant whose rate stayed what it was."""
    lost: Estimate
    """Metric at the base batch less that of `unscaled`, positive where it got worse."""
    variant: str
    """The best of the others at this batch."""
    share: Estimate
    """Of the loss that it wins back: 1 is all of it."""


def regained(contests: Sequence[Contest], *, higher_is_better: bool) -> list[Regained]:
    """share = (m - u) / (b - u), repeat by repeat: m the metric of the variant, u unscaled, b at the base batch.

    Only where the loss is clear (its interval is above 0), since a share of no loss means nothing.
    """
    base_batch = min((contest.setting.global_batch for contest in contests), default=0)
    sign = 1 if higher_is_better else -1
    found = []
    for contest in contests:
        setting = contest.setting
        if setting.global_batch == base_batch:
            continue
        base = next((other for other in contests if _base_of(other, setting, base_batch)), None)
        plain = next((variant for variant in contest.variants if variant.scaled == 1 and _learned(variant)), None)
        best = next((variant for variant in contest.variants if variant.scaled != 1 and _learned(variant)), None)
        before = _same(plain, base) if plain and base else None
        if before is None or plain is None or best is None or not _learned(before):
            continue
        b, u, m = (variant.metrics for variant in (before, plain, best))
        lost = {key: sign * (b[key] - u[key]) for key in sorted(b.keys() & u.keys() & m.keys())}
        if lost and _clear(list(lost.values())):
            found.append(
                Regained(
                    base_batch=base_batch,
                    global_batch=setting.global_batch,
                    unscaled=plain.variant,
                    lost=mean_interval(list(lost.values())),
                    variant=best.variant,
                    share=mean_interval(_shares(m, u, lost, sign)),
                )
            )
    return found


def _shares(m: Mapping[int, float], u: Mapping[int, float], lost: Mapping[int, float], sign: int) -> list[float]:
    return [sign * (m[key] - u[key]) / loss for key, loss in lost.items()]


def _clear(lost: list[float]) -> bool:
    """One repeat cannot tell a loss from noise; in each of several, and on the whole, it must be one."""
    return len(lost) > 1 and min(lost) > 0 and (mean_interval(lost).low or 0.0) > 0


def _learned(variant: VariantSummary) -> bool:
    return bool(variant.metrics) and not variant.diverged and not variant.stopped


def _same(plain: VariantSummary, base: Contest) -> VariantSummary | None:
    """The same at the base batch, or the best of its family there: another optimiser would be another loss."""
    named = [variant for variant in base.variants if variant.variant == plain.variant]
    return next(iter(named or [variant for variant in base.variants if variant.family == plain.family]), None)


def _base_of(contest: Contest, setting: Setting, base_batch: int) -> bool:
    """The same workers where the study has them, so that nothing but the batch differs."""
    other = contest.setting
    return other.kind == setting.kind and other.global_batch == base_batch
