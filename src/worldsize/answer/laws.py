"""Descriptive fits: classical scaling laws, and steps to the target as a function of the batch.

Projections (`predict`) use spans and links instead of these fits: a law with two or three parameters would claim more
certainty than the data support.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from worldsize.analysis.learning.larger_batches import BatchStudy
from worldsize.analysis.learning.steps_to_target import BatchModel
from worldsize.analysis.projection.classical_laws import LawFit, fit_amdahl, fit_gustafson, fit_usl, karp_flatts
from worldsize.analysis.speed.scaling import Series
from worldsize.answer.results import Results
from worldsize.spec.setting import Setting

MIN_COUNTS = 3
"""Each of these laws can pass through any two points."""
FITS = (fit_amdahl, fit_gustafson, fit_usl)


@dataclass(frozen=True, kw_only=True)
class LawRow:
    """A law fitted to a series, or the serial share by Karp and Flatt at one of its counts."""

    setting: Setting
    """Setting of the smallest count in the series."""
    counts: int
    """Number of counts in the series."""
    law: str
    workers: int | None = None
    """Worker count of a serial share by Karp and Flatt; None for a law, which describes all counts."""
    as_meant: bool = True
    """False if the law assumes the other kind of scaling (weak or strong); then it only describes the curve."""
    serial_fraction: float | None = None
    contention: float | None = None
    coherence: float | None = None
    peak_workers: float | None = None
    residual: float | None = None
    """Root mean square of fitted / measured throughput - 1."""


def scaling_laws(results: Results) -> list[LawRow]:
    """Return the fits for each series with at least three counts: a row per law, and one per count for Karp-Flatt."""
    long_series = [series for series in results.series if len(series.rows) >= MIN_COUNTS]
    return [row for series in long_series for row in _series_rows(series)]


def _series_rows(series: Series) -> list[LawRow]:
    setting = series.rows[0].setting
    counts = [row.setting.workers for row in series.rows]
    rates = [row.samples_per_s.value for row in series.rows]
    fits = [fit(counts, rates, setting.scaling) for fit in FITS]
    rows = [_law_row(fit, setting, len(counts)) for fit in fits if fit.converged]
    shares = karp_flatts(counts, rates).items()
    return rows + [
        LawRow(setting=setting, counts=len(counts), law="karp-flatt", workers=workers, serial_fraction=share)
        for workers, share in shares
    ]


def _law_row(fit: LawFit, setting: Setting, counts: int) -> LawRow:
    parameters = {name: value for name, value in fit.parameters.items() if math.isfinite(value)}
    return LawRow(
        setting=setting,
        counts=counts,
        law=fit.law,
        as_meant=fit.fits_mode,
        serial_fraction=parameters.get("serial_fraction"),
        contention=parameters.get("contention"),
        coherence=parameters.get("coherence"),
        peak_workers=parameters.get("peak_workers"),
        residual=fit.rms_relative_residual,
    )


@dataclass(frozen=True, kw_only=True)
class VariantBatchModel:
    """How the number of steps to the target decreases with the batch, for one variant."""

    setting: Setting
    """One worker with the smallest batch that reached the target. The model covers all settings of this method."""
    variant: str
    lr_power: float | None
    """The learning rate is proportional to batch^lr_power."""
    largest_batch: int
    """The largest batch that reached the target."""
    model: BatchModel

    @property
    def runs(self) -> int:
        return sum(batch.runs for batch in self.model.batches)


def batch_models(results: Results) -> list[VariantBatchModel]:
    """Return S_min and B_crit of the variants that reached the target at two or more batches."""
    if results.goal is None:
        return []
    return [
        _variant_model(study, study.steps)
        for study in results.batch_studies
        if study.steps and study.steps.basis == "batches"
    ]


def _variant_model(study: BatchStudy, model: BatchModel) -> VariantBatchModel:
    batches_reached = [batch.global_batch for batch in model.batches if batch.steps is not None]
    method = study.method
    return VariantBatchModel(
        setting=Setting(
            workers=1,
            batch_per_worker=batches_reached[0],
            accumulation=method.accumulation,
            scaling=method.scaling,
            strategy=method.strategy,
            precision=method.precision,
            place=method.place,
        ),
        variant=study.variant,
        lr_power=study.lr_power,
        largest_batch=batches_reached[-1],
        model=model,
    )
