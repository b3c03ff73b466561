"""Arithmetic of positive quantities with intervals, in logarithms."""

from __future__ import annotations

import math

from worldsize.analysis.stats import Interval

NARROWER = 0.78
"""An 80 % interval over a 90 % one, in logarithms: rows of a study carry the wider, projections the narrower."""


def narrower(interval: Interval) -> Interval:
    """90 % -> 80 %."""
    down, up = interval.value / interval.low, interval.high / interval.value
    return Interval(interval.value, interval.value / down**NARROWER, interval.value * up**NARROWER)


def over(factor: float, interval: Interval) -> Interval:
    return Interval(factor / interval.value, factor / interval.high, factor / interval.low)


def times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def plus(one: Interval, other: Interval) -> Interval:
    """Errors that know nothing of each other add up as squares."""
    value = one.value + other.value
    down = math.hypot(one.value - one.low, other.value - other.low)
    up = math.hypot(one.high - one.value, other.high - other.value)
    return Interval(value, value - down, value + up)


def product(one: Interval, other: Interval) -> Interval:
    """Errors that know nothing of each other add up as squares, in logarithms."""
    value = one.value * other.value
    down = math.hypot(math.log(one.value / one.low), math.log(other.value / other.low))
    up = math.hypot(math.log(one.high / one.value), math.log(other.high / other.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))
