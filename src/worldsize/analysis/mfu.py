"""Model FLOP utilisation: how much of what the devices could compute goes into the model."""

from __future__ import annotations

from worldsize.analysis.stats import Interval


def mfu(samples_per_s: Interval, *, flop_per_sample: float, workers: int, peak_flop_s: float) -> Interval:
    """MFU = samples/s * flop of a sample / (workers * peak of one).

    The interval is that of the throughput. More than 1 says that the peak is not this device's at this precision.
    """
    factor = flop_per_sample / (workers * peak_flop_s)
    return Interval(samples_per_s.value * factor, samples_per_s.low * factor, samples_per_s.high * factor)
