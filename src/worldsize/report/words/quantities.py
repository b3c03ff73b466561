"""What numbers are: name, unit and digits of every quantity. The only place where a number becomes text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import Estimate
from worldsize.data.catalog import WorkloadFacts
from worldsize.report.words.numbers import Value, duration, integer, metric_value, number, percents, rate, whole


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A kind of number: tables, sentences, tiles, axes, hover texts and CSV headers all take it from here."""

    key: str
    """Name in CSV and JSON, with the stored unit: step_s."""
    title: str
    """Heading, axis, tile."""
    short: str = ""
    """Heading in a terminal, where it must be short; default: the title."""
    unit: str = ""
    """Unit shown to the reader: ms."""
    factor: float = 1.0
    """Converts the stored unit to the unit shown."""
    digits: Callable[[float], str] = number
    about: str = ""
    """One sentence that explains it."""

    @property
    def heading(self) -> str:
        """With its unit: `step time, ms`."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def text(self, value: Value) -> str:
        """`17.4`; empty if it is unknown. Text stays as it is."""
        if value is None or isinstance(value, str):
            return value or ""
        return "0" if value == 0 else self.digits(value * self.factor)

    def said(self, value: float) -> str:
        """With its unit: `17.4 ms`, `1.29x`."""
        return self.text(value) + self._unit

    def range(self, estimate: Estimate) -> str:
        """Both ends; empty without an interval, or if all runs gave the same. "to" before a negative number."""
        low, high = estimate.ends
        dash = "–" if low >= 0 else " to "
        return dash.join(map(self.text, estimate.ends)) if low < high else ""

    def full(self, estimate: Estimate) -> str:
        """`1.29x (1.07x to 1.56x)`, `17.4 ms (16.2 to 18.0 ms)`; only the value without an interval."""
        low, high = estimate.ends
        if low == high:
            return self.said(estimate.value)
        first = self.text(low) + (self.unit if self.unit in GLUED else "")
        return f"{self.said(estimate.value)} ({first} to {self.said(high)})"

    @property
    def _unit(self) -> str:
        return self.unit if self.unit in GLUED else f" {self.unit}"

    def titled(self, title: str, *, short: str = "") -> Quantity:
        """The same under another name."""
        return replace(self, title=title, short=short)


def explained(quantities: Iterable[Quantity]) -> str:
    """What they are, in a note below their table."""
    texts = (f"{quantity.title}: {quantity.about}" for quantity in quantities if quantity.about)
    return " ".join(text[0].upper() + text[1:] for text in texts)


GLUED = ("", "x")
"""Units without a space before them."""

WORKERS = Quantity(key="workers", title="workers", digits=integer)
BATCH_PER_WORKER = Quantity(key="batch_per_worker", title="batch per worker", short="batch/\nworker", digits=integer)
GLOBAL_BATCH = Quantity(key="global_batch", title="global batch", short="global\nbatch", digits=integer)
RUNS = Quantity(key="repeats", title="runs", digits=integer, about="Repeats behind the numbers of a row.")
STEP_TIME = Quantity(
    key="step_s", title="step time", unit="ms", factor=1e3, about="Median over steps, of the slowest worker in each."
)
STEP = Quantity(
    key="step_s",
    title="step",
    unit="ms",
    factor=1e3,
    about="Mean over ranks and the middle 90 % of steps, so that its parts add up to it.",
)
EPOCH_TIME = Quantity(
    key="epoch_s", title="epoch", digits=duration, about="One pass over the training data: its steps, nothing else."
)
SPEEDUP = Quantity(key="speedup", title="speedup", unit="x", about="Throughput relative to the smallest worker count.")
EFFICIENCY = Quantity(
    key="efficiency",
    title="efficiency",
    unit="%",
    factor=100,
    digits=percents,
    about="Speedup divided by the growth of workers: 100 % is perfect scaling.",
)
SHARE = Quantity(key="share", title="share", unit="%", factor=100, digits=percents)
SECONDS = Quantity(key="seconds", title="time", digits=duration)
STEPS = Quantity(key="steps", title="steps", digits=whole)
VARIANT = Quantity(key="variant", title="trained with")
LEARNING_RATE = Quantity(key="peak_lr", title="learning rate", short="lr", digits=rate)


def throughput(facts: WorkloadFacts) -> Quantity:
    """Samples or tokens per second, whichever the workload counts."""
    return Quantity(
        key="samples_per_s",
        title="throughput",
        short=f"{facts.unit}/s",
        unit=f"{facts.unit}/s",
        factor=facts.units_per_sample,
    )


def test_metric(facts: WorkloadFacts) -> Quantity:
    return Quantity(
        key=f"test_{facts.metric}", title=f"test {facts.metric}", short=f"test\n{facts.metric}", digits=metric_value
    )
