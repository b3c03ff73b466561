"""The built-in studies in the terminal: what each asks, and what it takes to run it here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from worldsize.report.views.plan import workers_words
from worldsize.report.words.numbers import rough_duration
from worldsize.report.write.console import ACCENT
from worldsize.study.builtin import BuiltinStudy

LONG_S = 3600.0
"""For studies that take longer, the small version is suggested."""


def studies_view(studies: Sequence[BuiltinStudy]) -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style=f"bold {ACCENT}")
    table.add_column()
    for study in studies:
        table.add_row(study.name, Text.assemble(_question(study.about), "\n", ("; ".join(_needs(study)), "dim")))
    end = "Run one with `worldsize run NAME`, or see its plan with `worldsize plan NAME`. Times are rough estimates."
    return Group(table, Text(""), Text(end))


def _question(about: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.?]) (?=[A-Z0-9])", about, maxsplit=1)[0]


def _needs(study: BuiltinStudy) -> Iterator[str]:
    if study.wall_s is not None and study.small_wall_s is not None:
        counts = workers_words(study.workers)
        time = f"about {rough_duration(study.wall_s)} on {counts}"
        if study.left_out:
            time += f" ({workers_words(study.left_out)} would not fit)"
        small = rough_duration(study.small_wall_s)
        yield f"{time}, or {small} with --small" if study.wall_s > LONG_S else time
    if study.path:
        yield f"needs your data: `--data FOLDER` with {study.path}, or `--set workload.path=PATH`"
    for dataset in study.fetch:
        yield f"first `worldsize data fetch {dataset}`"
