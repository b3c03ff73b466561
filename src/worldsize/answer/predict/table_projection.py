"""Projects tables of measurements, in their own unit. Needs neither torch nor files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.bare import Projected, crossing_cost, project_series
from worldsize.analysis.projection.choice import Knee, choose_knee
from worldsize.analysis.projection.series_law import TableSeries
from worldsize.analysis.speed.recommend import WIDEST
from worldsize.answer.predict.question import default_counts
from worldsize.answer.predict.table import MOST_WORKERS, GivenSeries, MeasurementTable, Unit, table_of, whole
from worldsize.errors import InputError, Problem, shorten


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Expected performance at one worker count, in the unit of the measurements."""

    workers: int
    samples_per_s: Estimate
    """Tokens per second if those were given; a relative rate if times were given without a batch. The interval should
    contain 80 % of later measurements."""
    expected: Estimate
    """The same value in the unit of the measurements."""
    unit: Unit
    measured: bool
    """Whether this count was measured. If so, the values are the measured ones."""
    notes: tuple[str, ...]
    series_id: str = ""

    @property
    def time_s(self) -> float:
        """Seconds per sample."""
        return 1 / self.samples_per_s.value

    @property
    def sure(self) -> bool:
        """Whether it is certain enough to act on."""
        return self.measured or self.samples_per_s.relative_width <= WIDEST


def project(points: Iterable[Mapping[str, object]], workers: Iterable[int]) -> list[Projection]:
    """Project rates to worker counts that were never run, from a few that were.

    `points` are mappings with `workers` and one of samples_per_s, tokens_per_s, step_s, epoch_s, train_s. Optional are
    series_id, mode ('weak' or 'strong'; required for step_s), batch_per_worker, workers_per_node and repeat. The
    projections are ordered by series, then as in `workers`.
    """
    return project_table(table_of(points), _counts(workers))


def project_table(table: MeasurementTable, workers: Sequence[int], *, measured_too: bool = False) -> list[Projection]:
    """Project every series of a table. `measured_too`: include the measured counts of each series.

    Series of the same stack (hardware, interconnect, framework) share their cost of leaving a node.
    """
    projections = []
    others = crossings_of_others([given.series for given in table.series])
    for given, crossings in zip(table.series, others, strict=True):
        counts = sorted({*workers, *given.series.workers}) if measured_too else workers
        projections += [_in_unit(given, projected) for projected in project_series(given.series, counts, crossings)]
    return projections


def crossings_of_others(series: Sequence[TableSeries]) -> Iterator[list[float]]:
    """Yield for each series what leaving such a node cost others of its stack; empty if the stack has no name."""
    known: dict[tuple[str, int | None], dict[int, float]] = defaultdict(dict)
    for index, member in enumerate(series):
        if member.stack and (cost := crossing_cost(member)) is not None:
            known[member.stack, member.workers_per_node][index] = cost
    for index, member in enumerate(series):
        costs = known.get((member.stack, member.workers_per_node), {})
        yield [cost for other, cost in costs.items() if other != index]


def choose_in_series(rows: Sequence[Projection]) -> Knee[Projection]:
    """Choose the largest count that pays, from the smallest measured one on. `rows`: one series, in order."""
    smallest = next(row.workers for row in rows if row.measured)
    return choose_knee([row for row in rows if row.workers >= smallest])


def further(table: MeasurementTable) -> list[int]:
    """Return every measured count of the table, and the default counts of each series."""
    largest = {given.series.largest for given in table.series}
    measured = {count for given in table.series for count in given.series.workers}
    return sorted(measured.union(*map(default_counts, largest)))


def _in_unit(given: GivenSeries, projected: Projected) -> Projection:
    rate = projected.samples_per_s
    return Projection(
        workers=projected.workers,
        samples_per_s=rate,
        expected=rate.map(lambda end: given.value(projected.workers, end)),
        unit=given.unit,
        measured=projected.measured,
        notes=projected.notes,
        series_id=given.series.name,
    )


def _counts(workers: Iterable[int]) -> list[int]:
    if not isinstance(workers, Iterable) or isinstance(workers, str | bytes):
        raise InputError(f"workers={shorten(workers)} is not a list of counts; use a list such as workers=[16, 32]")
    counts = []
    for index, count in enumerate(workers):
        number = whole(count)
        if number is None:
            text = f"{shorten(count)} is not a whole number from 1 to {MOST_WORKERS:,}; use counts such as [16, 32]"
            raise InputError([Problem(text, f"workers[{index}]")])
        counts.append(number)
    if not counts:
        raise InputError("workers=[] is empty; give at least one count")
    return counts
