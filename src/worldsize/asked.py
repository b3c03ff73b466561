"""What is typed on the command line: worker counts, durations. The rule is in the error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from worldsize.errors import SpecError

SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")
MOST_WORKERS = 10_000_000


def counts_of(text: str) -> tuple[int, ...]:
    """`8,16,1024`."""
    found = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,8}\s*", part) or not 0 < int(part) <= MOST_WORKERS:
            raise SpecError(f"workers={text!r}: {part.strip()!r} is no count of workers; write --workers 8,16,1024")
        found.append(int(part))
    return tuple(sorted(set(found)))


def seconds_of(text: str) -> float:
    """`90 min`, `1h30min`, `2d`."""
    parts = PART.findall(text.strip())
    if not parts or PART.sub("", text).strip() or not sum(float(number) for number, _ in parts):
        raise SpecError(f"{text!r} is no duration; write 45s, 90min, 1h30min or 2d")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def refuse_infinite(given: Mapping[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and not math.isfinite(value):
            raise SpecError(f"{name}={value} is no finite number; write one, like --{name} 2.5")


def refuse_for_tables(given: Mapping[str, object]) -> None:
    """A table holds neither parts of a step nor what training costs."""
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"--{name} needs a study folder: a table has throughput or times alone; leave it out")
