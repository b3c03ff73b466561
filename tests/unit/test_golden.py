"""A change that is not meant to change an answer changes no report, projection, comparison, table or figure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from tests.golden import GOLDEN_STUDIES, path_of, produce

NUMBER = re.compile(r"-?\d+\.\d{6,}(?:e-?\d+)?")


@pytest.mark.parametrize("name", GOLDEN_STUDIES)
def test_a_study_says_what_it_said(name: str) -> None:
    kept = json.loads(path_of(name).read_text(encoding="utf-8"))
    assert differences(kept, produce(name)) == [], "if this is meant: python -m tests.golden"


def differences(kept: Any, now: Any, where: str = "") -> list[str]:
    """The places where two documents differ by more than the last digits of a number."""
    if isinstance(kept, dict) and isinstance(now, dict):
        keys = [f"{where}.{key}: only {'kept' if key in kept else 'now'}" for key in kept.keys() ^ now.keys()]
        inner = [
            text for key in kept.keys() & now.keys() for text in differences(kept[key], now[key], f"{where}.{key}")
        ]
        return sorted(keys) + inner
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [
            text
            for place, pair in enumerate(zip(kept, now, strict=True))
            for text in differences(*pair, f"{where}.{place}")
        ]
    if isinstance(kept, str) and isinstance(now, str) and _numbers_in(kept) and kept != now:
        # A row of a table: its numbers may differ in the last digits from one kind of processor to another.
        same = NUMBER.split(kept) == NUMBER.split(now)
        inner = differences(_numbers_in(kept), _numbers_in(now)) if same else [kept]
        return [f"{where}: {kept!r} is now {now!r}"] if inner else []
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (kept, now))
    same = math.isclose(kept, now, rel_tol=1e-9, abs_tol=1e-12) if numbers else (type(kept), kept) == (type(now), now)
    return [] if same else [f"{where}: {kept!r} is now {now!r}"]


def _numbers_in(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def test_differences_are_seen() -> None:
    assert differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-12, "x"]}) == []
    assert differences({"a": [1.0]}, {"a": [1.001]}) == [".a.0: 1.0 is now 1.001"]
    assert differences({"a": 1}, {"b": 1}) == [".a: only kept", ".b: only now"]
    assert differences([1], [1, 2]) == [": [1] is now [1, 2]"]
    assert differences(True, 1) == [": True is now 1"]
    assert differences("a,0.13032249271869,4", "a,0.13032249271868,4") == []
    assert (
        len(differences("a,0.13032249,4", "a,0.13032250,4")) == len(differences("a,0.1303224,4", "b,0.1303224,4")) == 1
    )
