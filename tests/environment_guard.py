"""A pytest plugin: the test that leaves os.environ changed fails, whether the test did it or a fixture set up for it.

Hooks, not a fixture: a fixture of the session or the module is set up before any fixture of the test, so a fixture of
the test would take what it changed for granted.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

CHANGED_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
"""pytest sets the first for each test, torch the second when it is first asked for an optimizer."""
before = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[before] = _environment()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    expected, found = item.stash[before], _environment()
    changed = sorted(name for name, _ in expected.items() ^ found.items())
    if changed:
        # Put back, so that only the test that did it fails.
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: expected[name] for name in changed if name in expected})
        names = ", ".join(dict.fromkeys(changed))
        pytest.fail(f"os.environ was left changed: {names}; set variables with monkeypatch.setenv", pytrace=False)
    return result


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CHANGED_BY_OTHERS}
