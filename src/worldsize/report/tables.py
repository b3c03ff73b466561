"""What all tables of the terminal have in common: their look, and how they tell settings apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.table import Table

from worldsize.analysis.points import Setting
from worldsize.report.words import counted

ACCENT = "cyan"
HOW: dict[str, Callable[[Setting], str]] = {
    "strategy": lambda setting: setting.strategy,
    "precision": lambda setting: setting.precision,
    "accumulation": lambda setting: f"in {setting.accumulation} parts",
    "on": lambda setting: f"on {setting.on}",
}
WHERE: dict[str, Callable[[Setting], str]] = {
    "workers": lambda setting: counted(setting.workers, "worker"),
    "global_batch": lambda setting: f"batch {setting.global_batch}",
    **HOW,
}


def plain_table(title: str | None = None, *, gap: int = 1) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=None,
        padding=(0, gap, 0, 0),
        header_style=f"bold {ACCENT}",
    )


def how(setting: Setting, among: Iterable[Setting]) -> str:
    """Strategy, precision, accumulation and target, as far as they differ among these settings."""
    return _differing(HOW, setting, among)


def where(setting: Setting, among: Iterable[Setting]) -> str:
    """All that tells this setting from the others."""
    return _differing(WHERE, setting, among)


def _differing(facts: dict[str, Callable[[Setting], str]], setting: Setting, among: Iterable[Setting]) -> str:
    others = list(among)
    return ", ".join(say(setting) for name, say in facts.items() if len({getattr(other, name) for other in others}) > 1)
