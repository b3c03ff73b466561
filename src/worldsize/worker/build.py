"""Build the Trainer of a trial from its spec: data, model, initial weights, strategy, schedule and ending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from worldsize.folder.launches import LaunchFile
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import StrategySpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models, workloads
from worldsize.worker.augment import generator_for
from worldsize.worker.ending import Ending
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Trainer
from worldsize.worker.measure.step_clock import Phases, step_clock_for
from worldsize.worker.optimizers import lr_of_step
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.gradient_noise import meter_for
from worldsize.worker.parallel.team import Team


class Builder:
    """Builds a Trainer for each trial of a launch. Keeps the data between trials, but no part of a Trainer."""

    def __init__(self, folder: StudyFolder, launch: LaunchFile, phases: Phases, stop_file: Path) -> None:
        self._folder, self._launch = folder, launch
        self._phases, self._stop_file = phases, stop_file
        self._data_folders = workloads.DataFolders(data=Path(launch.data), cache=Path(launch.cache))
        self._loaded: dict[str, workloads.Workload] = {}

    def build(self, trial: TrialSpec, team: Team, search_curves: Sequence[Sequence[float]]) -> Trainer:
        """Build the Trainer. Every rank builds the model from the same seed, so training can be repeated bit for bit.

        `search_curves` are the curves of the other trials of the search.
        """
        workload = self._workload(trial.workload, team.device)
        torch.manual_seed(trial.seed)
        module = workload.build_model()
        left_out = self._transfer(module, trial.workload)
        if team.device.type == "cuda":
            # Convolutions are fastest in this layout. (torch's type hints omit this form of the call.)
            module = module.to(team.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.manual_seed(trial.seed * 100_003 + team.rank + 1)  # from now on, ranks must not draw the same numbers
        noise = meter_for(trial, module, team)
        events = self._folder.trial(trial.id) / "events.jsonl" if team.rank == 0 else None
        return Trainer(
            trial=trial,
            workload=workload,
            team=team,
            strategy=make_strategy(_strategy(trial), trial.optimizer, module, team, noise),
            noise=noise,
            lr=lr_of_step(trial, len(workload.train)),
            ending=self._ending(trial, len(workload.train), search_curves),
            clock=step_clock_for(team.device),
            augmentation_rng=generator_for(trial.seed, team.rank, 0),
            phases=self._phases,
            journal=Journal(events, self._stop_file),
            left_out=left_out,
        )

    def _workload(self, spec: WorkloadSpec, device: torch.device) -> workloads.Workload:
        """Load the workload, or reuse the last one: trials of a study rarely differ in their data."""
        key = spec.model_copy(update={"pretrained": None, "freeze": None, "unfreeze_epoch": None}).model_dump_json()
        if key not in self._loaded:
            self._loaded.clear()
            self._loaded[key] = workloads.load(spec, self._data_folders).on(device)
        return self._loaded[key]

    def _transfer(self, module: nn.Module, spec: WorkloadSpec) -> tuple[str, ...]:
        """Load pretrained weights and freeze layers. Return the entries that were left out, and why."""
        left_out: tuple[str, ...] = ()
        if spec.pretrained is not None:
            if spec.pretrained == "torchvision":
                loaded = models.load_torchvision_weights(module, spec.model or "")
            else:
                loaded = models.load_pretrained(module, self._weights_file(spec.pretrained))
            left_out = tuple(f"{name}: {why}" for name, why in loaded.left_out)
            print(f"loaded {len(loaded.loaded)} of {len(module.state_dict())} entries from {spec.pretrained}")
            for line in left_out:
                print(f"left out {line}")
        models.freeze(module, spec.freeze)
        return left_out

    def _weights_file(self, pretrained: str) -> Path:
        """Return the path of the weights: a file in this study folder if it exists, else the user's own file."""
        from_this_study = self._folder.path / pretrained
        return from_this_study if from_this_study.is_file() else Path(pretrained).expanduser()

    def _ending(self, trial: TrialSpec, samples: int, search_curves: Sequence[Sequence[float]]) -> Ending:
        if trial.train is None:
            return Ending(train=None)
        return Ending(
            train=trial.train,
            metric=self._launch.metric,
            higher_is_better=self._launch.higher_is_better,
            planned_epochs=trial.train.planned_epochs(samples, trial.global_batch),
            search_curves=search_curves if trial.prune else None,
        )


def _strategy(trial: TrialSpec) -> StrategySpec:
    """Return the strategy. In a probe, PowerSGD starts as early as torch allows, since most training steps use it."""
    if trial.kind == "probe" and trial.strategy.name == "powersgd":
        return trial.strategy.model_copy(update={"start_step": 2})
    return trial.strategy
