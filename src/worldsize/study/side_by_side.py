"""Runs two studies in turn, launch by launch, so that drift of the machine affects both alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

from worldsize.answer.results import Results, load, read_plan
from worldsize.errors import InputError
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.target import Progress
from worldsize.spec.place import OnSlurm
from worldsize.study.study import Study

DONE = object()


def run_side_by_side(studies: Sequence[Study], progress: Sequence[Progress]) -> list[Results]:
    """Run each study in its own folder, one launch at a time: A B, B A, A B, ...

    The study with the fewest finished launches is next, and among equals the order alternates. Whose turn it is
    follows from the folders alone, so the same call continues where an earlier one stopped. Where a study has more
    launches than the other, its last ones run without a counterpart.
    """
    _require_turns(studies)
    with ExitStack() as stack:
        turns = [
            stack.enter_context(closing(study.turns(progress=shown)))
            for study, shown in zip(studies, progress, strict=True)
        ]
        waiting = [index for index in range(len(studies)) if _advance(turns[index])]  # the first turn starts nothing
        while waiting:
            index = next_turn({index: _launches_done(studies[index]) for index in waiting})
            if not _advance(turns[index]):
                waiting.remove(index)
    return [load(study.folder) for study in studies]


def next_turn(launches_done: Mapping[int, int]) -> int:
    """Return which study is next, from the number of finished launches of each one that is not complete."""
    fewest = min(launches_done.values())
    behind = [index for index, done in launches_done.items() if done == fewest]
    return behind[0] if fewest % 2 == 0 else behind[-1]


def _advance(turn: Iterator[None]) -> bool:
    """Go on to the next launch of a study, and return whether there is one."""
    return next(turn, DONE) is not DONE


def _launches_done(study: Study) -> int:
    home = StudyFolder(study.folder)
    launches = read_plan(home).plan.launches
    return sum(all(home.has_record(trial_id) for trial_id in launch.trials) for launch in launches)


def _require_turns(studies: Sequence[Study]) -> None:
    """Refuse studies that this machine cannot run one launch at a time, before anything is written."""
    lacks = [problem for study in studies for problem in study.lacks]
    if lacks:
        raise InputError(lacks)
    for study in studies:
        if any(isinstance(place, OnSlurm) for place in study.spec.places.values()):
            raise InputError(
                f"{study.spec.name} runs on Slurm, but only launches on this machine can take turns; set "
                "`run_on: local`, or run each study by itself and compare the two folders"
            )
