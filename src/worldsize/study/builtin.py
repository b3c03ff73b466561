"""Which built-in studies can run on this machine, how long they would take, and what they need first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worldsize.data.catalog import WORKLOADS
from worldsize.data.sets import DATASETS, missing_or_damaged
from worldsize.errors import DataError
from worldsize.machine import Machine
from worldsize.plan.cost import estimate
from worldsize.spec.file import StudyFile, builtin_studies
from worldsize.spec.study import StudySpec
from worldsize.study.study import Study


@dataclass(frozen=True, kw_only=True)
class BuiltinStudy:
    """A built-in study, and what it would take to run it here."""

    name: str
    about: str
    """The first line of its file."""
    data: Literal["included", "present", "to fetch", "your own"]
    """to fetch: `worldsize data fetch` downloads it. your own: it cannot be downloaded, and is not in the folder."""
    fetch: tuple[str, ...]
    """Data sets that are missing, but can be fetched."""
    path: str
    """The data that nobody can download, as the study names it; empty if there is none or it is present."""
    workers: tuple[int, ...]
    """Worker counts that would run here; empty if the study cannot be planned without its data."""
    left_out: tuple[int, ...]
    """Worker counts that do not fit on this machine."""
    wall_s: float | None
    """Rough estimate; None if the study cannot be planned without its data."""
    small_wall_s: float | None
    """The same for the small version."""


def builtin_on(machine: Machine, data: Path) -> list[BuiltinStudy]:
    """Return the built-in studies as they would run on this machine, with the data sets in `data`."""
    return [_on(name, path, machine, data) for name, path in builtin_studies().items()]


def _on(name: str, path: Path, machine: Machine, data: Path) -> BuiltinStudy:
    spec = StudyFile.read(path).spec()
    datasets = _datasets(spec)
    missing = tuple(dataset for dataset in datasets if missing_or_damaged(DATASETS[dataset], data, deep=False))
    full, small = (_planned(name, machine, data, small=is_small) for is_small in (False, True))
    own = full is None
    return BuiltinStudy(
        name=name,
        about=path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "),
        data="your own" if own else "to fetch" if missing else "present" if datasets or _has_path(spec) else "included",
        fetch=missing,
        path=str(spec.workload.path) if own else "",
        workers=full.spec.axes.workers if full else (),
        left_out=full.left_out if full else (),
        wall_s=_wall_s(full),
        small_wall_s=_wall_s(small),
    )


def _planned(name: str, machine: Machine, data: Path, *, small: bool) -> Study | None:
    """Return the study, or None if it needs data that is not in the data folder to be planned."""
    try:
        return Study(name, small=small, data=data, machine=machine)
    except DataError:
        return None


def _wall_s(study: Study | None) -> float | None:
    return None if study is None else estimate(study.sites, study.plan, study.facts, {}).wall_s


def _datasets(spec: StudySpec) -> tuple[str, ...]:
    workloads = [spec.workload, *([spec.pretrain.workload] if spec.pretrain else [])]
    entries = (WORKLOADS.get(workload.name) for workload in workloads)
    return tuple(dict.fromkeys(entry.dataset for entry in entries if entry is not None and entry.dataset is not None))


def _has_path(spec: StudySpec) -> bool:
    return spec.workload.path is not None
