"""Spend more time on a study that is finished: more repeats of the probes that leave the answer open."""

from __future__ import annotations

from worldsize.answer.reruns import pass_s
from worldsize.answer.results import Results
from worldsize.errors import InputError
from worldsize.plan.grid import StudyPoint, study_points
from worldsize.plan.plan import Plan, with_probes
from worldsize.spec.setting import Setting
from worldsize.spec.study import StudySpec
from worldsize.study.checks import JobOptions

MOST_PASSES = 100


def check_more_time(spec: StudySpec, seconds: float, jobs: JobOptions) -> None:
    """Raise InputError if more time cannot be spent on a study."""
    if spec.probe is None or spec.axes.largest is not None:
        why = "this study has none" if spec.probe is None else "this study searches for the largest batch"
        raise InputError(
            f"time={seconds:g}: more time adds repeats of probes, but {why}; raise `repeats` and use a new folder"
        )
    if jobs.detach:
        raise InputError(f"time={seconds:g}: more time follows the jobs of the study; leave out --detach")


def with_more_time(spec: StudySpec, plan: Plan, results: Results, seconds: float) -> Plan:
    """Return the plan with as many more passes over the open counts as fit into this time, but at least one."""
    points = [
        point
        for at_place in results.by_place.values()
        for point in _points(study_points(spec), open_settings(at_place))
    ]
    if not points:
        raise InputError(f"time={seconds:g}: no trial has been measured; look into the failures first")
    passes = max(1, min(round(seconds / pass_s(results)), MOST_PASSES))
    return with_probes(plan, spec, [points] * passes)


def open_settings(results: Results) -> list[Setting]:
    """Return the settings whose comparison decides the answer: those of a close call, else the recommended series."""
    row = results.answer.row
    if row is None:
        return [other.setting for other in results.rows]
    series = [other.setting for other in results.rows if other.setting.series == row.setting.series]
    close = next((finding for finding in results.answer.findings if finding.code == "close-call"), None)
    counts = {row.setting.workers, close.numbers["workers"]} if close else {setting.workers for setting in series}
    return [setting for setting in series if setting.workers in counts]


def _points(points: list[StudyPoint], settings: list[Setting]) -> list[StudyPoint]:
    """Return one point for each setting. Points that differ only in what is trained share a probe."""
    by_setting = {point.setting: point for point in reversed(points)}
    return [by_setting[setting] for setting in settings if setting in by_setting]
