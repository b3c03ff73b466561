"""The public names of the package."""

from __future__ import annotations

import worldsize


def test_dir_shows_exactly_the_public_names() -> None:
    assert dir(worldsize) == sorted(worldsize.__all__)
    assert {*worldsize.HOMES, "__version__"} == set(worldsize.__all__)


def test_every_public_name_loads() -> None:
    for name in worldsize.__all__:
        assert getattr(worldsize, name) is not None
