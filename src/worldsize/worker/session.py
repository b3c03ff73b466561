"""The work of one rank in a launch: join the other ranks, run the trials alone or in turns, and write their records."""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import torch
import torch._dynamo  # takes seconds to load; otherwise the first optimizer would load it during the first trial

from worldsize.folder.launches import InterconnectFile, LaunchFolder, PhasesFile
from worldsize.folder.record import ArrayFile, search_curve
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.study import TrialSpec
from worldsize.worker.build import Builder
from worldsize.worker.largest_batch import search
from worldsize.worker.loop import Result, Trainer, train
from worldsize.worker.measure.links import measure_links
from worldsize.worker.measure.memory import free_bytes, free_memory, limit_memory
from worldsize.worker.measure.step_clock import Phases
from worldsize.worker.measure.telemetry import TurnTelemetry, telemetry_of
from worldsize.worker.parallel.team import Crew, Team
from worldsize.worker.probe import Probing, whole_batches
from worldsize.worker.process import exit_if_superseded, mark_trial, stop_file
from worldsize.worker.records import Measurements, Recorder, environment, save_arrays
from worldsize.worker.turns import BLOCK_S, Schedule, Turn

BYTES_PER_PARAMETER = 24
"""Memory that a model keeps between its turns, per parameter, rounded up: weights, gradients, their copies in buckets,
and up to two values of the optimizer, in fp32."""
MODELS_SHARE = 0.1
"""Share of the free memory that the models of a group may keep. It is small, so that a batch that fits alone also fits
beside the other models."""


class Session:
    """Runs the trials of a launch. Keeps what they share: the data, the telemetry, and the clock of the launch."""

    def __init__(self, folder: StudyFolder, launch_id: str) -> None:
        self.folder = folder
        self.files = LaunchFolder(folder.launch(launch_id))
        self.launch = self.files.prepared()
        self.stop_file = stop_file(self.files.path)
        # A Slurm job may wait in the queue after the launch was prepared, so its script sets the start time.
        launched_at = float(os.environ.get("WORLDSIZE_LAUNCHED_AT", self.launch.launched_at))
        self.phases = Phases("process start", already_s=max(0.0, time.time() - launched_at))
        self._trial_id: str | None = None
        self._trainer: Trainer | None = None
        self._search_curves = {
            search: [list(curve) for curve in curves] for search, curves in self.launch.search_curves.items()
        }
        self._builder = Builder(folder, self.launch, self.phases, self.stop_file)
        self._recorder = Recorder(folder, launch_id)
        torch.set_num_threads(self.launch.threads)

    def position(self) -> tuple[str | None, int | None]:
        """Return the current trial and its number of steps so far, to report where a failure happened."""
        return self._trial_id, self._trainer.step if self._trainer else None

    def run(self) -> None:
        trials = [self.folder.trial_spec(trial_id) for trial_id in self.launch.trials]
        crew = Crew(self.launch.device, self.launch.backend, sorted({trial.workers for trial in trials}))
        unfinished = self._unfinished_trials(crew)
        trials = [trial for trial in trials if trial.id in unfinished]
        crew.publish(f"host/{crew.rank}", socket.gethostname())
        self._measure_interconnect(crew)
        limit_memory(self.launch.memory_limit_gb, crew.device)
        self._telemetry = telemetry_of(crew, lambda: self._trainer.samples if self._trainer else 0)
        numbered = list(enumerate(trials))
        for _, group in itertools.groupby(numbered, key=lambda entry: _turns_key(entry[1])):
            members = list(group)
            if _turns_key(members[0][1]) is None:
                for number, trial in members:
                    self._run_alone(number, trial, crew)
            else:
                while members:
                    members = self._run_in_turns(members, crew)
        self._trial_id = self._trainer = None
        if crew.rank == 0:
            self.files.write(PhasesFile(phases_s=self.phases.totals(), ended_at=time.time()))
        crew.leave()

    def _unfinished_trials(self, crew: Crew) -> list[str]:
        """Return the trials without a record: a requeued job skips those that its earlier attempt finished.

        Rank 0 looks for all ranks, because ranks may see different states of a shared file system.
        """
        if crew.rank == 0:
            without_record = [name for name in self.launch.trials if not self.folder.has_record(name)]
            crew.publish("unfinished", json.dumps(without_record))
        unfinished: list[str] = json.loads(crew.wait_for("unfinished"))
        return unfinished

    def _measure_interconnect(self, crew: Crew) -> None:
        """Measure the links between ranks before training, and write the raw times to the launch folder."""
        if crew.workers == 1 or not self.launch.interconnect_probe_s:
            return
        self.phases.enter("interconnect")
        hosts = [crew.wait_for(f"host/{rank}") for rank in range(crew.workers)]
        sweep = measure_links(crew.rank, hosts, crew.device, budget_s=self.launch.interconnect_probe_s)
        if crew.rank == 0 and sweep is not None:
            self.files.write(InterconnectFile(hosts=tuple(hosts), sweep=sweep))

    def _run_alone(self, number: int, trial: TrialSpec, crew: Crew) -> None:
        team = crew.team(trial.workers)
        self._enter(trial, None)
        if team is not None:
            self.phases.enter("preparation")
            phases_before, started_at = self.phases.totals(), time.time()
            self._telemetry.start()
            trainer = self._trainer = self._build(trial, team)
            if trial.largest and team.rank == 0:
                self._recorder.compute_facts(trainer)  # before the search, because its imports take memory
            result = search(trainer, trial.probe, trial.largest) if trial.probe and trial.largest else train(trainer)
            self.phases.enter("saving")
            telemetry = self._telemetry.stop()
            if trial.search is not None:
                curve = search_curve(result.epochs, result.outcome, self.launch.metric, trainer.ending.planned_epochs)
                self._search_curves.setdefault(trial.search, []).append(curve)
            totals = self.phases.totals()
            phases_s = {name: total - phases_before.get(name, 0.0) for name, total in totals.items()}
            self._save(number, trainer, result, telemetry, crew, started_at, phases_s)
        # Ranks that are not in the team sleep here until the trial ends.
        crew.wait_for(f"trial/{number}/done")

    def _run_in_turns(self, members: list[tuple[int, TrialSpec]], crew: Crew) -> list[tuple[int, TrialSpec]]:
        """Run probes in turns: build all of them, measure blocks of steps in random order, then save them.

        If the models of all do not fit into memory at once, only the first one runs. Return those that are left.
        """
        began_s = sum(self.phases.totals().values())
        probings: list[Probing | None] = []
        later: list[tuple[int, TrialSpec]] = []
        for number, trial in members:
            team = crew.team(trial.workers)
            self._enter(trial, None)
            probings.append(None if team is None else self._probing(trial, team, alone=len(members) == 1))
            if len(probings) == 1 and len(members) > 1 and not self._fit_together(probings[0], members, crew):
                later = members[1:]
                break
            self._wait_for_first(f"trial/{number}/built", crew)
        members = members[: len(probings)]
        schedule = None
        if crew.rank == 0:
            trials = [trial for _, trial in members]
            schedule = Schedule(
                [trial.probe for trial in trials if trial.probe],
                [trial.strategy.period for trial in trials],
                block_s=BLOCK_S[crew.device.type],
                seed=trials[0].seed,
            )
        while (turn := next_turn(schedule, crew)) is not None:
            if (probing := probings[turn.probe]) is not None:
                self._enter(probing.trainer.trial, probing.trainer)
                step_s, disturbed = probing.run(turn)
                if schedule is not None:
                    schedule.report(step_s, disturbed=disturbed)
        results = []
        for index, ((number, trial), probing) in enumerate(zip(members, probings, strict=True)):
            if probing is not None:
                self._enter(trial, probing.trainer)
                reached = schedule.reached[index] if schedule is not None else None
                results.append((number, probing, probing.result(precision_reached=reached)))
            self._wait_for_first(f"trial/{number}/measured", crew)
        # Time between the turns belongs to no probe, so each gets an equal part of it.
        group_s = sum(self.phases.totals().values()) - began_s
        for number, probing, result in results:
            self._enter(probing.trainer.trial, probing.trainer)
            between_s = (group_s - sum(sum(each.phases_s.values()) for _, each, _ in results)) / len(results)
            phases_s = {**probing.phases_s, "gaps": probing.phases_s.get("gaps", 0.0) + between_s}
            self._save(number, probing.trainer, result, probing.telemetry.rows(), crew, probing.started_at, phases_s)
        for number, _ in members:
            crew.wait_for(f"trial/{number}/done")
        return later

    def _fit_together(self, first: Probing | None, members: Sequence[tuple[int, TrialSpec]], crew: Crew) -> bool:
        """Return whether the models of all members fit into memory at once, as judged by the first on every rank."""
        number, _ = members[0]
        fits = True
        if first is not None:
            parameters = sum(parameter.numel() for parameter in first.trainer.strategy.module.parameters())
            kept = len(members) * BYTES_PER_PARAMETER * parameters
            limit = self.launch.memory_limit_gb
            free = min(free_bytes(crew.device, crew.ranks_sharing_memory), math.inf if limit is None else limit * 1e9)
            fits = kept < MODELS_SHARE * free
        crew.publish(f"trial/{number}/fits/{crew.rank}", str(int(fits)))
        return all(crew.wait_for(f"trial/{number}/fits/{rank}") == "1" for rank in range(crew.workers))

    def _wait_for_first(self, key: str, crew: Crew) -> None:
        """Wait until rank 0 comes here too. It is in every team, so the other ranks sleep while it works."""
        if crew.rank == 0:
            crew.publish(key, "")
        crew.wait_for(key)

    def _enter(self, trial: TrialSpec, trainer: Trainer | None) -> None:
        """From now on, this rank works on this trial."""
        if self._trial_id != trial.id:
            mark_trial(trial.id)
        self._trial_id, self._trainer = trial.id, trainer

    def _build(self, trial: TrialSpec, team: Team) -> Trainer:
        if self.launch.memory_limit_gb or team.device.type == "cuda":
            free_memory(team.device)  # leftovers of the last trial must not decide whether this one fits
        return self._builder.build(trial, team, self._search_curves.get(trial.search or "", []))

    def _probing(self, trial: TrialSpec, team: Team, *, alone: bool) -> Probing:
        assert trial.probe is not None
        started_at = time.time()
        self.phases.enter("preparation")
        trainer = self._trainer = self._build(trial, team)
        preparation_s = self.phases.enter("gaps")
        trainer.journal.say("start", seconds=trial.probe.max_seconds)
        return Probing(
            trainer=trainer,
            telemetry=TurnTelemetry(self._telemetry, alone=alone),
            shares=whole_batches(trainer),
            started_at=started_at,
            phases_s={"preparation": preparation_s},
        )

    def _save(
        self,
        number: int,
        trainer: Trainer,
        result: Result,
        telemetry: npt.NDArray[np.float64],
        crew: Crew,
        started_at: float,
        phases_s: Mapping[str, float],
    ) -> None:
        """Save the arrays of this rank, and on rank 0 the record."""
        trial, team = trainer.trial, trainer.team
        self.phases.enter("saving")
        trained_model = trainer.strategy.full_model() if trial.train and trial.train.save_weights else None
        own_arrays = save_arrays(self.folder.trial(trial.id), trainer, result, telemetry)
        if team.rank > 0:
            crew.publish(f"trial/{number}/arrays/{team.rank}", json.dumps(own_arrays))
            return
        others = [json.loads(crew.wait_for(f"trial/{number}/arrays/{rank}")) for rank in range(1, team.workers)]
        hosts = [crew.wait_for(f"host/{rank}") for rank in range(team.workers)]
        facts = environment(team.device, self.launch.backend) | {"hosts": hosts, "commit": self.launch.commit}
        measured = Measurements(
            result=result,
            arrays={name: tuple(ArrayFile(**files[name]) for files in (own_arrays, *others)) for name in own_arrays},
            trained_model=trained_model,
            started_at=started_at,
            phases_s={name: seconds for name, seconds in phases_s.items() if seconds > 0},
            environment=facts,
        )
        exit_if_superseded(self.stop_file)
        self.folder.write_record(self._recorder.record(trainer, measured))
        trainer.journal.say("end", outcome=result.outcome)
        crew.publish(f"trial/{number}/done", json.dumps(trial.id))


def _turns_key(trial: TrialSpec) -> int | None:
    """Return the repeat of a probe that takes turns with the others of its repeat, or None for a trial that runs alone.

    A search for the largest batch fills the memory, so it runs alone.
    """
    return trial.repeat if trial.probe is not None and trial.largest is None else None


def next_turn(schedule: Schedule | None, crew: Crew) -> Turn | None:
    """Return the next turn, which rank 0 chooses. None: there are no more."""
    chosen = schedule.next() if schedule is not None else None
    text = crew.announce(json.dumps(asdict(chosen)) if chosen is not None else "null")
    fields = json.loads(text)
    return None if fields is None else Turn(**fields)
