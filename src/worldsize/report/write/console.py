"""The console for terminal output, and tables without lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from worldsize.errors import visible

ACCENT = "cyan"


def plain_table(title: str | None = None, *, gap: int = 1) -> Table:
    """Return an empty table without lines. `gap`: spaces between columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=None,
        padding=(0, gap, 0, 0),
        header_style=f"bold {ACCENT}",
    )


class PlainConsole(Console):
    """A console that makes control characters visible in everything it prints, including tables and progress bars."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, without emoji codes and markup. If not a terminal: 120 columns."""
    terminal = PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not terminal.is_terminal:
        terminal.width = 120
    return terminal
