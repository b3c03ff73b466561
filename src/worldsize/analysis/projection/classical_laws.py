"""Fits classical scaling laws to a series: Amdahl, Gustafson, USL. Also computes the Karp-Flatt metric.

All laws are written for the rate X(n). In a strong series (one global batch), T(n) is proportional to 1 / X(n); in a
weak series (one batch per worker), to n / X(n). The speedup is X(n) / X(1) in both. Amdahl's f is the serial share of a
fixed amount of work, Gustafson's that of an amount that grows with n. Each law also describes the other mode, but there
its f has another meaning (see `LawFit.fits_mode`). Written for 1/X, n/X or X, each law is linear in its parameters, so
it is fitted by non-negative least squares of relative residuals. That needs no starting point and has no local minima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from worldsize.analysis.estimate import Floats, fit_nonnegative

Mode = Literal["strong", "weak", "unknown"]


@dataclass(frozen=True, kw_only=True)
class LawFit:
    law: str
    mode: Mode
    fits_mode: bool
    """Whether the law assumes this mode. Otherwise its parameters only describe the curve."""
    parameters: Mapping[str, float]
    rms_relative_residual: float
    """sqrt(mean((fitted / measured - 1)^2)) of the rates."""
    converged: bool
    """False if the solver gave up, or there were fewer counts than parameters. Then the parameters are unreliable."""
    throughput: Callable[[float], float]
    """Returns the samples per second at any count."""


def karp_flatt(speedup: float, workers: int) -> float:
    """Return e = (1/S - 1/n) / (1 - 1/n), for n > 1.

    If it rises with n, an overhead such as communication grows. If it is flat, there is a serial part. If it is
    negative, the speedup is superlinear.
    """
    return (1 / speedup - 1 / workers) / (1 - 1 / workers)


def karp_flatts(workers: Sequence[int], samples_per_s: Sequence[float]) -> dict[int, float]:
    """Return the serial share at each count above 1, in ascending order; empty if one worker was not measured."""
    rates = dict(sorted(zip(workers, samples_per_s, strict=True)))
    return {n: karp_flatt(rate / rates[1], n) for n, rate in rates.items() if n > 1} if 1 in rates else {}


def fit_amdahl(workers: Sequence[int], samples_per_s: Sequence[float], mode: Mode = "strong") -> LawFit:
    """Fit X(n) = X1 / (f + (1 - f) / n), that is, 1/X = a + c / n with f = a / (a + c), X1 = 1 / (a + c)."""
    n, x = _arrays(workers, samples_per_s)
    (a, c), converged = _fit(n, [np.ones_like(n), 1 / n], 1 / x)
    total = a + c
    parameters = {"serial_fraction": _ratio(a, total), "rate_1": _ratio(1.0, total)}
    return _described("amdahl", mode, mode != "weak", parameters, n, x, converged, lambda m: _ratio(1.0, a + c / m))


def fit_gustafson(workers: Sequence[int], samples_per_s: Sequence[float], mode: Mode = "weak") -> LawFit:
    """Fit X(n) = X1 (n - f (n - 1)), that is, X = p n + q with X1 = p + q, f = q / (p + q)."""
    n, x = _arrays(workers, samples_per_s)
    (p, q), converged = _fit(n, [n, np.ones_like(n)], x)
    parameters = {"serial_fraction": _ratio(q, p + q), "rate_1": float(p + q)}
    return _described("gustafson", mode, mode != "strong", parameters, n, x, converged, lambda m: float(p * m + q))


def fit_usl(workers: Sequence[int], samples_per_s: Sequence[float], mode: Mode = "unknown") -> LawFit:
    """Fit X(n) = l n / (1 + s (n - 1) + k n (n - 1)): contention s, coherence k, peak at n = sqrt((1 - s) / k)."""
    n, x = _arrays(workers, samples_per_s)
    (a, b, c), converged = _fit(n, [np.ones_like(n), n - 1, n * (n - 1)], n / x)
    contention, coherence = _ratio(b, a), _ratio(c, a)
    parameters = {"contention": contention, "coherence": coherence, "rate_1": _ratio(1.0, a)}
    if coherence > 0 and contention < 1:
        parameters["peak_workers"] = math.sqrt((1 - contention) / coherence)

    def rate(m: float) -> float:
        return _ratio(m, a + b * (m - 1) + c * m * (m - 1))

    return _described("usl", mode, True, parameters, n, x, converged, rate)


def _arrays(workers: Sequence[int], samples_per_s: Sequence[float]) -> tuple[Floats, Floats]:
    n, x = np.array(workers, dtype=np.float64), np.array(samples_per_s, dtype=np.float64)
    if len(n) != len(x) or not len(n) or n.min() < 1 or not np.all(np.isfinite(x)) or x.min() <= 0:
        raise ValueError(
            f"workers={list(workers)}, samples_per_s={list(samples_per_s)}: a law needs one positive, finite rate per "
            "worker count; use worker counts of at least 1"
        )
    return n, x


def _fit(n: Floats, terms: Sequence[Floats], values: Floats) -> tuple[Floats, bool]:
    """Return the coefficients, and whether the counts determine them and the solver converged."""
    fit = fit_nonnegative(np.stack(terms, axis=1), values, weights=1 / values)
    return fit.coefficients, fit.converged and len(np.unique(n)) >= len(terms)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else math.inf


def _described(
    law: str,
    mode: Mode,
    fits_mode: bool,
    parameters: Mapping[str, float],
    n: Floats,
    x: Floats,
    converged: bool,
    rate: Callable[[float], float],
) -> LawFit:
    residuals = np.array([rate(float(count)) for count in n]) / x - 1
    return LawFit(
        law=law,
        mode=mode,
        fits_mode=fits_mode,
        parameters=parameters,
        rms_relative_residual=float(np.sqrt(np.mean(residuals**2))),
        converged=converged,
        throughput=rate,
    )
