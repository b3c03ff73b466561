"""Whether a folder holds the study that is to run: what differs, value by value."""

from __future__ import annotations

from typing import Any

from worldsize.on_spec import OnSlurm
from worldsize.spec import StudySpec

MAY_CHANGE = {"time", "max_jobs", "account", "qos", "setup", "extra"}
"""Of `on.slurm`: how jobs get their turn, not what they run on."""


def changes_between(stored: StudySpec, wanted: StudySpec) -> list[str]:
    """`train.epochs: 2 -> 3`, one line a changed value."""
    return differences(_compared(stored), _compared(wanted))


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _compared(spec: StudySpec) -> dict[str, Any]:
    """What must be the same to continue a study."""
    dumped = spec.model_dump(mode="json")
    places = {
        on: {key: value for key, value in place.slurm.model_dump(mode="json").items() if key not in MAY_CHANGE}
        if isinstance(place, OnSlurm)
        else place
        for on, place in spec.targets.items()
    }
    dumped["on"] = places if isinstance(spec.on, dict) else places[""]
    return dumped


def _short(value: Any) -> str:
    return "nothing" if value is None else str(value)
