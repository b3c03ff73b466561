"""Name, unit, format and explanation of every quantity. The only place where a number becomes text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import Estimate
from worldsize.data.catalog import WorkloadFacts
from worldsize.report.words.glossary import meaning
from worldsize.report.words.numbers import Value, duration, integer, metric_value, number, percents, rate, whole


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A kind of number. Tables, sentences, tiles, axes, hover texts and CSV headers all use the same quantities."""

    key: str
    """Name in CSV and JSON, including the stored unit, such as step_s."""
    title: str
    """Name in headings, axes and tiles."""
    short: str = ""
    """Heading in a terminal, where space is scarce. Default: the title."""
    unit: str = ""
    """Unit shown to the reader, such as ms."""
    factor: float = 1.0
    """Converts the stored unit to the unit shown."""
    digits: Callable[[float], str] = number
    """Formats a value in the unit shown."""
    about: str = ""
    """One sentence that explains the quantity. The page shows it at the heading of a column."""

    @property
    def heading(self) -> str:
        """The title with its unit: `step time, ms`."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def text(self, value: Value) -> str:
        """Return a value without its unit: `17.4`. Empty if it is unknown; text is unchanged."""
        if value is None or isinstance(value, str):
            return value or ""
        return "0" if value == 0 else self.digits(value * self.factor)

    def said(self, value: float) -> str:
        """Return a value with its unit: `17.4 ms`, `1.29x`."""
        return self.text(value) + self._unit

    def range(self, estimate: Estimate) -> str:
        """Return the interval. Empty without an interval, or if all runs gave the same value."""
        low, high = estimate.ends
        separator = "–" if low >= 0 else " to "  # a dash before a minus sign is hard to read
        return separator.join(map(self.text, estimate.ends)) if low < high else ""

    def full(self, estimate: Estimate) -> str:
        """Return a value and its interval: `1.29x (1.07x to 1.56x)`, `17.4 ms (16.2 to 18.0 ms)`."""
        low, high = estimate.ends
        if low == high:
            return self.said(estimate.value)
        first = self.text(low) + (self.unit if self.unit in GLUED else "")
        return f"{self.said(estimate.value)} ({first} to {self.said(high)})"

    @property
    def _unit(self) -> str:
        return self.unit if self.unit in GLUED else f" {self.unit}"

    def titled(self, title: str, *, short: str = "") -> Quantity:
        """Return the same quantity under another name."""
        return replace(self, title=title, short=short)


def explained(quantities: Iterable[Quantity]) -> str:
    """Return the explanations of quantities, as a note below their table."""
    texts = (f"{quantity.title}: {quantity.about}" for quantity in quantities if quantity.about)
    return " ".join(text[0].upper() + text[1:] for text in texts)


GLUED = ("", "x")
"""Units without a space before them."""

WORKERS = Quantity(key="workers", title="workers", digits=integer, about=meaning("worker"))
BATCH_PER_WORKER = Quantity(
    key="batch_per_worker",
    title="batch per worker",
    short="batch/\nworker",
    digits=integer,
    about=meaning("batch per worker"),
)
GLOBAL_BATCH = Quantity(
    key="global_batch", title="global batch", short="global\nbatch", digits=integer, about=meaning("global batch")
)
RUNS = Quantity(key="repeats", title="runs", digits=integer, about="Number of runs behind the values of a row.")
STEP_TIME = Quantity(
    key="step_s",
    title="step time",
    unit="ms",
    factor=1e3,
    about="Median over steps of the time that the slowest worker takes.",
)
STEP = Quantity(
    key="step_s",
    title="step",
    unit="ms",
    factor=1e3,
    about="Mean over all workers and the middle 90 % of steps, so that the parts of a step add up to it.",
)
EPOCH_TIME = Quantity(
    key="epoch_s", title="epoch", digits=duration, about="Time spent in steps in one pass over the training data."
)
SPEEDUP = Quantity(key="speedup", title="speedup", unit="x", about=meaning("speedup"))
EFFICIENCY = Quantity(
    key="efficiency",
    title="efficiency",
    unit="%",
    factor=100,
    digits=percents,
    about=meaning("efficiency"),
)
SHARE = Quantity(key="share", title="share", unit="%", factor=100, digits=percents)
SECONDS = Quantity(key="seconds", title="time", digits=duration)
STEPS = Quantity(key="steps", title="steps", digits=whole)
VARIANT = Quantity(key="variant", title="trained with")
LEARNING_RATE = Quantity(key="peak_lr", title="learning rate", short="lr", digits=rate)


def throughput(facts: WorkloadFacts) -> Quantity:
    """Return throughput in samples per second or tokens per second, depending on the workload."""
    return Quantity(
        key="samples_per_s",
        title="throughput",
        short=f"{facts.unit}/s",
        unit=f"{facts.unit}/s",
        factor=facts.units_per_sample,
    )


def test_metric(facts: WorkloadFacts) -> Quantity:
    """Return the quantity of the metric that is measured on test samples."""
    return Quantity(
        key=f"test_{facts.metric}", title=f"test {facts.metric}", short=f"test\n{facts.metric}", digits=metric_value
    )
