"""Bare tables -> projections in their own unit: `worldsize.project`, without torch and without files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from worldsize.analysis.projection.bare import Projected, crossing_cost, project_series
from worldsize.analysis.projection.series_law import TableSeries
from worldsize.answer.predict.question import default_counts
from worldsize.answer.predict.table import MOST_WORKERS, GivenSeries, MeasurementTable, Unit, table_of, whole
from worldsize.errors import InputError, Problem, shorten


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What is to be expected at one count, in the unit that the measurements came in."""

    workers: int
    samples_per_s: float
    """Tokens a second where these were given; where only times were given, without a batch, runs of the same work a
    second."""
    low: float
    high: float
    """80 % of what is measured later should lie between `low` and `high`."""
    unit: Unit
    """In which the measurements came."""
    value: float
    """The same in that unit, from `value_low` to `value_high`."""
    value_low: float
    value_high: float
    measured: bool
    """The count was among the measurements: the values are theirs."""
    notes: tuple[str, ...]
    series_id: str = ""


def project(points: Iterable[Mapping[str, object]], workers: Iterable[int]) -> list[Projection]:
    """Rates at counts never run, from a few that were.

    `points` are mappings with `workers` and one of samples_per_s, tokens_per_s, step_s, epoch_s, train_s; optional are
    series_id, mode ('weak' or 'strong'; step_s needs it), batch_per_worker, workers_per_node and repeat. Ordered by
    series, then as `workers` asks.
    """
    return project_table(table_of(points), _counts(workers))


def project_table(table: MeasurementTable, workers: Sequence[int], *, measured_too: bool = False) -> list[Projection]:
    """Series of the same stack (hardware, interconnect, framework) inform each other about leaving a node.
    `measured_too`: each series also with the counts that it was measured at, in order."""
    found = []
    for given, crossings in zip(table.series, crossings_of_others([each.series for each in table.series]), strict=True):
        counts = sorted({*workers, *given.series.workers}) if measured_too else workers
        found += [_in_unit(given, one) for one in project_series(given.series, counts, crossings)]
    return found


def crossings_of_others(series: Sequence[TableSeries]) -> Iterator[list[float]]:
    """For each, what leaving a node of the same size cost the others of its stack; none where that has no name."""
    known: dict[tuple[str, int | None], dict[int, float]] = defaultdict(dict)
    for index, one in enumerate(series):
        if one.stack and (cost := crossing_cost(one)) is not None:
            known[one.stack, one.workers_per_node][index] = cost
    for index, one in enumerate(series):
        costs = known.get((one.stack, one.workers_per_node), {})
        yield [cost for other, cost in costs.items() if other != index]


def further(table: MeasurementTable) -> list[int]:
    """Every count of the table, and the default counts of each series."""
    largest = {given.series.largest for given in table.series}
    measured = {count for given in table.series for count in given.series.workers}
    return sorted(measured.union(*map(default_counts, largest)))


def _in_unit(given: GivenSeries, projected: Projected) -> Projection:
    bounds = [given.value(projected.workers, rate) for rate in (projected.low, projected.high)]
    return Projection(
        workers=projected.workers,
        samples_per_s=projected.samples_per_s,
        low=projected.low,
        high=projected.high,
        unit=given.unit,
        value=given.value(projected.workers, projected.samples_per_s),
        value_low=min(bounds),
        value_high=max(bounds),
        measured=projected.measured,
        notes=projected.notes,
        series_id=given.series.name,
    )


def _counts(workers: Iterable[int]) -> list[int]:
    if not isinstance(workers, Iterable) or isinstance(workers, str | bytes):
        raise InputError(f"workers={shorten(workers)} is no list of counts; write workers=[16, 32], say")
    found = []
    for index, count in enumerate(workers):
        number = whole(count)
        if number is None:
            text = f"{shorten(count)} is not a whole number from 1 to {MOST_WORKERS:,}; write workers=[16, 32], say"
            raise InputError([Problem(text, f"workers[{index}]")])
        found.append(number)
    if not found:
        raise InputError("workers=[] asks for nothing; name at least one count")
    return found
