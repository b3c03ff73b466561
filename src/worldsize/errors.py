"""The errors that worldsize raises on purpose: each gives the value, the rule it breaks and the fix."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class WorldsizeError(Exception):
    """An error that the user can fix. The command line prints it on one line and exits with `exit_code`."""

    exit_code = 2


class InputError(WorldsizeError):
    """Input that cannot be used as written, such as a study or a table. Raised before anything is written to disk."""

    def __init__(self, problems: list[Problem] | str) -> None:
        self.problems = [Problem(problems)] if isinstance(problems, str) else problems
        super().__init__("\n".join(str(problem) for problem in self.problems))


class StoreError(WorldsizeError):
    """A study folder that cannot be used: it is locked, belongs to another study, or is not a study folder."""


class DataError(WorldsizeError):
    """Data that is missing or damaged."""


class ReportError(WorldsizeError):
    """A report that cannot be written because a library is missing."""

    exit_code = 1


class DiskFullError(WorldsizeError):
    """A disk that filled up while a study ran. Finished trials are kept, and the same command continues the study."""

    exit_code = 1


class OutputError(WorldsizeError):
    """An output path that already holds something else. Raised before anything is written to disk."""


class LaunchError(WorldsizeError):
    """Worker processes that could not be started at all."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """A mistake in a study or a table, and its location."""

    text: str
    where: str = ""
    """`study.yaml, line 7`, or the command-line option that set the value."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def visible(text: str) -> str:
    """Escape characters in outside text (names, log lines, messages) that control a terminal, change the text direction
    or cannot be encoded."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")
        else f"\\x{ord(character):02x}"
        for character in text
    )


class DamagedError(StoreError, ValueError):
    """A file in a study folder that is not as this program wrote it. The record it belongs to counts as damaged."""


def shorten(value: Any) -> str:
    """Format a value for an error message: JSON, which is also YAML, on one line of at most 60 characters."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a key that JSON does not allow, or a list that contains itself
        text = repr(value)
    text = visible(text)
    return text if len(text) <= 60 else text[:57] + "..."


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "") -> str:
    """Suggest the nearest known name, as a sentence. If none is close: `otherwise`, or a list of all known names."""
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f'Did you mean "{matches[0]}"?' if matches else otherwise or f"Choose one of: {', '.join(names)}."
