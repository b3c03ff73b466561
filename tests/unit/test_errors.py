"""The words that errors share."""

from __future__ import annotations

from worldsize.errors import did_you_mean, shorten


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("wrokers", ["batch", "workers"]) == 'Did you mean "workers"?'


def test_where_nothing_is_near_all_that_is_known_is_listed() -> None:
    assert did_you_mean("zzz", ["batch", "workers"]) == "Choose one of: batch, workers."
    assert did_you_mean("zzz", ["batch", "workers"], otherwise="Leave it out.") == "Leave it out."


def test_a_value_is_shown_as_a_study_file_has_it() -> None:
    assert shorten({"name": "größe", "on": True, "at": [1, 0.5]}) == '{"name": "größe", "on": true, "at": [1, 0.5]}'


def test_a_long_value_is_cut() -> None:
    assert shorten("x" * 100) == f'"{"x" * 56}...'


def test_any_value_can_be_shown_and_none_steers_a_terminal() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert shorten(endless) == "[[...]]"
    assert shorten({(1, 2): 3}) == "{(1, 2): 3}"
    assert "\x1b" not in shorten("\x1b[31m\x9b")
    assert "\x9b" not in shorten("\x1b[31m\x9b")
