"""A pytest plugin: fail a test if the test or one of its fixtures leaves os.environ changed.

It uses hooks instead of a fixture. Session and module fixtures are set up before the fixtures of a test, so a fixture
would not see their changes.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

CHANGED_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
"""pytest sets the first for each test, and torch the second when the first optimizer is created."""
before = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[before] = _environment()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    expected, actual = item.stash[before], _environment()
    changed = sorted(name for name, _ in expected.items() ^ actual.items())
    if changed:
        # Restore the environment, so that only this test fails.
        for name in changed:
            os.environ.pop(name, None)
        os.environ.update({name: expected[name] for name in changed if name in expected})
        names = ", ".join(dict.fromkeys(changed))
        pytest.fail(f"os.environ was left changed: {names}; set variables with monkeypatch.setenv", pytrace=False)
    return result


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CHANGED_BY_OTHERS}
