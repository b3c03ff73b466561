"""Where data are looked for, and where decoded images are kept."""

from __future__ import annotations

import os
from pathlib import Path

from worldsize.errors import DataError
from worldsize.spec import WorkloadSpec


def find_path(spec: WorkloadSpec, root: Path) -> Path:
    """`path` of a workload: from the current folder, then from the data folder."""
    assert spec.path is not None
    places = [Path(spec.path).expanduser().absolute(), root / spec.path]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in dict.fromkeys(places))
    raise DataError(
        f"path={spec.path!r} of the workload {spec.name} is not there (looked at {looked}); correct it, or give the "
        "folder that holds it with --data DIR or WORLDSIZE_DATA"
    )


def cache_root() -> Path:
    """$WORLDSIZE_CACHE, else the user's cache folder."""
    if given := os.environ.get("WORLDSIZE_CACHE"):
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "worldsize" / "decoded"
