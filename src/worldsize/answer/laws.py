"""Descriptive fits: classical scaling laws, and steps to the target as a function of the batch.

Projections do not use them: those are built from spans and links (`predict`). A law with two or three parameters would
claim more certainty than the data support.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worldsize.analysis.learning.larger_batches import BatchStudy
from worldsize.analysis.projection.classical_laws import Mode, fit_amdahl, fit_gustafson, fit_usl, karp_flatts
from worldsize.analysis.speed.scaling import Series
from worldsize.answer.as_dict import plain, plain_setting
from worldsize.answer.results import Results

LEAST_COUNTS = 3
"""Any of these curves passes through two points."""
FITS = (fit_amdahl, fit_gustafson, fit_usl)


def scaling_laws(results: Results) -> list[dict[str, Any]]:
    """Fits for each series with at least three counts: an entry per law, and one per count for Karp-Flatt."""
    long = [series for series in results.series if len(series.rows) >= LEAST_COUNTS]
    return [entry for series in long for entry in _of_series(series)]


def _of_series(series: Series) -> list[dict[str, Any]]:
    first = series.rows[0].setting
    counts = [row.setting.workers for row in series.rows]
    rates = [row.samples_per_s.value for row in series.rows]
    mode: Mode = "strong" if first.scaling == "strong" else "weak"
    where = {
        **{key: value for key, value in plain_setting(first).items() if key != "workers"},
        "batch_per_worker": first.batch_per_worker if mode == "weak" else None,
        "global_batch": first.global_batch if mode == "strong" else None,
        "counts": len(counts),
    }
    fits = [fit(counts, rates, mode) for fit in FITS]
    entries = [
        {
            **where,
            "law": fit.law,
            "workers": None,
            "as_meant": fit.fits_mode,
            **_law_parameters(fit.parameters),
            "residual": fit.rms_relative_residual,
        }
        for fit in fits
        if fit.converged
    ]
    entries += [
        {
            **where,
            "law": "karp-flatt",
            "workers": workers,
            "as_meant": True,
            **_law_parameters({"serial_fraction": share}),
            "residual": None,
        }
        for workers, share in karp_flatts(counts, rates).items()
    ]
    return entries


def _law_parameters(parameters: Mapping[str, float]) -> dict[str, float | None]:
    return {name: parameters.get(name) for name in ("serial_fraction", "contention", "coherence", "peak_workers")}


def batch_models(results: Results) -> list[dict[str, Any]]:
    """S_min and B_crit of the variants that reached the target at two or more batches."""
    if results.goal is None:
        return []
    return [_of_variant(study) for study in results.batch_studies if study.steps and study.steps.basis == "batches"]


def _of_variant(study: BatchStudy) -> dict[str, Any]:
    model = study.steps
    assert model is not None
    reached = [batch for batch in model.batches if batch.steps is not None]
    return {
        "variant": study.variant,
        "strategy": study.method.strategy.label,
        "precision": study.method.precision,
        "place": study.method.place,
        "rate_power": study.lr_power,
        "smallest_batch": reached[0].global_batch,
        "largest_batch": reached[-1].global_batch,
        "batches": [plain(batch) for batch in model.batches],
        "runs": sum(batch.runs for batch in model.batches),
        "law": model.law,
        "least_steps": plain(model.least_steps),
        "critical_batch": plain(model.critical_batch),
        "fails_from": model.fails_from,
    }
