"""One rank's way through a launch: join the others, then trial after trial, each ending in a record."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch._dynamo  # the first optimiser would load it, seconds long, in the middle of the first trial
from pydantic import JsonValue
from torch import nn

from worldsize.folder.launches import InterconnectFile, LaunchFolder, PhasesFile
from worldsize.folder.record import SPANS, ArrayFile, TrialRecord, rival_curve
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import StrategySpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models, workloads
from worldsize.worker.augment import generator_for
from worldsize.worker.ending import Ending
from worldsize.worker.environment import environment
from worldsize.worker.journal import Journal
from worldsize.worker.largest_batch import search
from worldsize.worker.loop import Course, Result, train
from worldsize.worker.measure.flops import count_flop, peak_flops
from worldsize.worker.measure.links import measure_links
from worldsize.worker.measure.memory import free_memory, limit_memory
from worldsize.worker.measure.step_clock import Phases, laps_for
from worldsize.worker.measure.telemetry import COLUMNS, telemetry_of
from worldsize.worker.optimizers import rate_of_step
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.gradient_noise import meter_for
from worldsize.worker.parallel.team import Crew, Team
from worldsize.worker.probe import probe
from worldsize.worker.process import leave_if_superseded, mark_trial, stop_file
from worldsize.worker.workloads.base import batch


class Session:
    """What stays from trial to trial: the crew, the data, the clock of the launch."""

    def __init__(self, folder: StudyFolder, launch_id: str) -> None:
        self.folder, self.launch_id = folder, launch_id
        self.files = LaunchFolder(folder.launch(launch_id))
        self.launch = self.files.prepared()
        self.stop_file = stop_file(self.files.path)
        # A job has waited in a queue since the launch was prepared: it says itself when it began.
        launched_at = float(os.environ.get("WORLDSIZE_LAUNCHED_AT", self.launch.launched_at))
        self.phases = Phases("process start", already_s=max(0.0, time.time() - launched_at))
        self._trial_id: str | None = None
        self._course: Course | None = None
        self._left_out: tuple[str, ...] = ()
        self._places = workloads.Places(data=Path(self.launch.data), cache=Path(self.launch.cache))
        self._loaded: dict[str, workloads.Workload] = {}
        self._computes: dict[str, dict[str, JsonValue]] = {}
        self._rivals = {search: [list(curve) for curve in curves] for search, curves in self.launch.rivals.items()}
        torch.set_num_threads(self.launch.threads)

    def position(self) -> tuple[str | None, int | None]:
        """The trial under way and its steps so far, for a failure that must say where it happened."""
        return self._trial_id, self._course.step if self._course else None

    def run(self) -> None:
        trials = [self.folder.trial_spec(trial_id) for trial_id in self.launch.trials]
        crew = Crew(self.launch.device, self.launch.backend, sorted({trial.workers for trial in trials}))
        left = self._left(crew)
        trials = [trial for trial in trials if trial.id in left]
        crew.tell(f"host/{crew.rank}", environment(crew.device, self.launch.backend)["host"])
        self._measure_interconnect(crew)
        limit_memory(self.launch.memory_limit_gb, crew.device)
        self._telemetry = telemetry_of(crew, lambda: self._course.samples if self._course else 0)
        for number, trial in enumerate(trials):
            self._trial_id, self._course = trial.id, None
            mark_trial(trial.id)
            team = crew.team(trial.workers)
            if team is not None:
                self._run_trial(number, trial, team, crew)
            # A rank outside the trial sleeps here until it is over.
            crew.hear(f"trial/{number}/done")
        self._trial_id = self._course = None
        if crew.rank == 0:
            self.files.write(PhasesFile(phases_s=self.phases.totals(), ended_at=time.time()))
        crew.leave()

    def _left(self, crew: Crew) -> list[str]:
        """A job that was put back into its queue finds records of its first attempt. Rank 0 looks for all: on a shared
        file system ranks may not see the same."""
        if crew.rank == 0:
            left = [name for name in self.launch.trials if not self.folder.has_record(name)]
            crew.tell("left", json.dumps(left))
        found: list[str] = json.loads(crew.hear("left"))
        return found

    def _measure_interconnect(self, crew: Crew) -> None:
        """What the link between the ranks can do, before anybody trains on it; raw, in the folder of the launch."""
        if crew.workers == 1 or not self.launch.interconnect_s:
            return
        self.phases.enter("interconnect")
        hosts = [crew.hear(f"host/{rank}") for rank in range(crew.workers)]
        sweep = measure_links(crew.rank, hosts, crew.device, budget_s=self.launch.interconnect_s)
        if crew.rank == 0 and sweep is not None:
            self.files.write(InterconnectFile(hosts=tuple(hosts), sweep=sweep))

    def _run_trial(self, number: int, trial: TrialSpec, team: Team, crew: Crew) -> None:
        self.phases.enter("preparation")
        before, started_at = self.phases.totals(), time.time()
        if self.launch.memory_limit_gb or team.device.type == "cuda":
            free_memory(team.device)  # what the last trial left must not decide whether this one fits
        self._telemetry.start()
        course = self._course = self._prepare(trial, team)
        if trial.largest and team.rank == 0:
            self._compute(trial, course)  # what counting imports must not make the next search find less room
        result = _run(course)
        self.phases.enter("saving")
        watched = self._telemetry.stop()
        if trial.search is not None:
            shown = rival_curve(result.epochs, result.outcome, self.launch.metric, course.ending.planned_epochs)
            self._rivals.setdefault(trial.search, []).append(shown)
        trained = course.strategy.whole() if trial.train and trial.train.save else None
        kept = {
            "spans": None if trial.largest else course.laps.spans(),
            **{f"spans-b{size}": spans for size, spans in result.spans_of_tries.items()},
            "exposed": result.exposed,
            "noise": course.noise.rows() if trial.train and trial.train.noise_scale else None,
            "telemetry": watched,
        }
        own = self._save_arrays(trial, team.rank, kept)
        if team.rank > 0:
            crew.tell(f"trial/{number}/arrays/{team.rank}", json.dumps(own))
            return
        others = [json.loads(crew.hear(f"trial/{number}/arrays/{rank}")) for rank in range(1, team.workers)]
        arrays = {name: tuple(ArrayFile(**each[name]) for each in (own, *others)) for name in own}
        hosts = [crew.hear(f"host/{rank}") for rank in range(team.workers)]
        facts = environment(team.device, self.launch.backend) | {"hosts": hosts, "commit": self.launch.commit}
        phases_s = {name: total - before.get(name, 0.0) for name, total in self.phases.totals().items()}
        phases_s = {name: seconds for name, seconds in phases_s.items() if seconds > 0}
        leave_if_superseded(self.stop_file)
        self.folder.write_record(self._record(trial, course, result, trained, arrays, phases_s, started_at, facts))
        course.journal.say("end", outcome=result.outcome)
        crew.tell(f"trial/{number}/done", json.dumps(trial.id))

    def _save_arrays(
        self, trial: TrialSpec, rank: int, arrays: dict[str, npt.NDArray[Any] | None]
    ) -> dict[str, dict[str, Any]]:
        """Of this rank; what it does not have is left out, on every rank alike."""
        folder = self.folder.trial(trial.id)
        return {
            name: save_array(folder / f"{name}-rank{rank:02d}.npy", rank, array).model_dump(mode="json")
            for name, array in arrays.items()
            if array is not None
        }

    def _prepare(self, trial: TrialSpec, team: Team) -> Course:
        """Same seed, same model: every rank builds it, so a run can be repeated to the bit."""
        workload = self._workload(trial.workload, team.device)
        torch.manual_seed(trial.seed)
        module = workload.build_model()
        self._left_out = self._transfer(module, trial.workload)
        if team.device.type == "cuda":
            # What its convolutions are fastest in. (torch's own type hints leave this form out.)
            module = module.to(team.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.manual_seed(trial.seed * 100_003 + team.rank + 1)  # from here on, ranks must not draw the same numbers
        noise = meter_for(trial, module, team)
        events = self.folder.trial(trial.id) / "events.jsonl" if team.rank == 0 else None
        return Course(
            trial=trial,
            workload=workload,
            team=team,
            strategy=make_strategy(_strategy(trial), trial.optimizer, module, team, noise),
            noise=noise,
            rate=rate_of_step(trial, len(workload.train)),
            ending=self._ending(trial, len(workload.train)),
            laps=laps_for(team.device),
            draws=generator_for(trial.seed, team.rank, 0),
            phases=self.phases,
            journal=Journal(events, self.stop_file),
        )

    def _ending(self, trial: TrialSpec, samples: int) -> Ending:
        if trial.train is None:
            return Ending(train=None)
        return Ending(
            train=trial.train,
            metric=self.launch.metric,
            higher_is_better=self.launch.higher_is_better,
            planned_epochs=trial.train.planned_epochs(samples, trial.global_batch),
            rivals=self._rivals.get(trial.search or "", []) if trial.stop_hopeless else None,
        )

    def _compute(self, trial: TrialSpec, course: Course) -> dict[str, JsonValue]:
        """What a sample costs and what the device can do: found once a launch, by rank 0, after the trial was timed."""
        key = f"{trial.precision} {trial.workload.model_dump_json()}"
        if key not in self._computes:
            workload = course.workload
            inputs, targets = batch(workload.train, torch.arange(min(4, len(workload.train))), course.team.device)
            flop = count_flop(course.strategy.module, workload.loss, workload.prepare(inputs), targets)
            peak = peak_flops(course.team.device, trial.precision, flop.in_convolutions)
            learning = [each for each in course.strategy.module.parameters() if each.requires_grad]
            found: dict[str, JsonValue] = {
                "flop_per_sample": flop.per_sample,
                "flop_unknown": flop.reason,
                "gradient_bytes": sum(each.numel() * each.element_size() for each in learning),
            }
            if peak is not None:
                found |= {"peak_flop_s": peak.flop_s, "peak_source": peak.source}
            self._computes[key] = found
        return self._computes[key]

    def _workload(self, spec: WorkloadSpec, device: torch.device) -> workloads.Workload:
        """Loaded once a launch: trials of one study differ in how they train, rarely in what."""
        key = spec.model_copy(update={"pretrained": None, "freeze": None, "unfreeze_epoch": None}).model_dump_json()
        if key not in self._loaded:
            self._loaded.clear()
            self._loaded[key] = workloads.load(spec, self._places).on(device)
        return self._loaded[key]

    def _transfer(self, module: nn.Module, spec: WorkloadSpec) -> tuple[str, ...]:
        """Weights to begin with, and what of the model learns. Returns what was left out, and why."""
        left_out: tuple[str, ...] = ()
        if spec.pretrained is not None:
            if spec.pretrained == "torchvision":
                loaded = models.load_torchvision_weights(module, spec.model or "")
            else:
                loaded = models.load_pretrained(module, self._weights_file(spec.pretrained))
            left_out = tuple(f"{name}: {why}" for name, why in loaded.left_out)
            print(f"{len(loaded.loaded)} of {len(module.state_dict())} entries begin with {spec.pretrained}")
            for line in left_out:
                print(f"left out {line}")
        models.freeze(module, spec.freeze)
        return left_out

    def _weights_file(self, pretrained: str) -> Path:
        """Weights that a trial of this study made, or a file of the user's."""
        made_here = self.folder.path / pretrained
        return made_here if made_here.is_file() else Path(pretrained).expanduser()

    def _save_weights(self, trial: TrialSpec, trained: nn.Module | None, result: Result) -> ArrayFile | None:
        if trained is None or result.outcome == "diverged":
            return None
        path = self.folder.trial(trial.id) / "weights.pt"
        models.save_weights(trained, path)
        return ArrayFile(rank=0, name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())

    def _record(
        self,
        trial: TrialSpec,
        course: Course,
        result: Result,
        trained: nn.Module | None,
        arrays: dict[str, tuple[ArrayFile, ...]],
        phases_s: dict[str, float],
        started_at: float,
        facts: dict[str, Any],
    ) -> TrialRecord:
        losses = np.concatenate([np.zeros(0, np.float32), *course.losses])
        tries = [
            each.model_copy(update={"spans": arrays.get(f"spans-b{each.batch_per_worker}", ())})
            for each in result.tries
        ]
        return TrialRecord(
            trial=trial.id,
            outcome=result.outcome,
            launch=self.launch_id,
            started_at=started_at,
            wall_s=sum(phases_s.values()),
            phases_s=phases_s,
            columns=SPANS,
            warmup_steps=result.warmup_steps,
            spans=arrays.get("spans", ()),
            tries=tuple(tries),
            exposed=arrays.get("exposed", ()),
            noise=arrays.get("noise", ()),
            compute=self._compute(trial, course) if trial.kind == "probe" else {},
            telemetry=arrays["telemetry"],
            telemetry_columns=COLUMNS,
            exchange=course.strategy.exchange_facts() if "exposed" in arrays else {},
            losses=save_array(self.folder.trial(trial.id) / "losses.npy", 0, losses),
            weights=self._save_weights(trial, trained, result),
            transfer=self._left_out,
            known=course.workload.known,
            samples=course.samples,
            epochs=result.epochs,
            diverged_at_step=result.diverged_at_step,
            precision_reached=result.precision_reached,
            environment=facts,
        )


def _run(course: Course) -> Result:
    trial = course.trial
    if trial.probe is None:
        return train(course)
    return search(course, trial.probe, trial.largest) if trial.largest else probe(course, trial.probe)


def _strategy(trial: TrialSpec) -> StrategySpec:
    """A probe is about the steps that most of training is made of: PowerSGD must have begun."""
    if trial.kind == "probe" and trial.strategy.name == "powersgd":
        return trial.strategy.model_copy(update={"start_step": 2})
    return trial.strategy
