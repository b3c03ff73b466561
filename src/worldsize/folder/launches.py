"""What the folder of a launch holds: how the launch ended, and what a Slurm job says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from worldsize.folder.study_folder import is_name, json_lines, read_text

Reason = Literal["", "interrupted", "cancelled", "time limit", "node failure", "preempted", "lost", "setup failed"]
"""Why a launch ended, where it was not its own processes that ended it."""


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    wall_s: float
    started_at: float
    returncode: int | None
    hung: bool
    patience_s: float
    last_step: int | None
    reason: Reason = ""
    queued_s: float | None = None
    """In a queue before it began; no part of `wall_s`."""
    attempts: int = 1
    """Starts of one job: a scheduler may put it back into its queue."""
    job: str | None = None


def queued_s(job: dict[str, Any], events: list[dict[str, Any]]) -> float | None:
    """From submission to the first start; unknown for a job that was submitted by hand."""
    start = next((event for event in events if event["event"] == "start"), None)
    if start is None or job["submitted_at"] is None:
        return None
    return max(0.0, float(start["at"]) - float(job["submitted_at"]))


def job_events(launch: Path) -> list[dict[str, Any]]:
    """What the job has said of itself; a line cut short by a kill is no event."""
    try:
        text = read_text(launch / "job-events.jsonl")
    except FileNotFoundError:
        return []
    return [
        event for event in json_lines(text) if is_name(event.get("job")) and isinstance(event.get("at"), int | float)
    ]
