"""The work of one rank in a launch: join the other ranks, then run the trials one by one and write a record of each."""

from __future__ import annotations

import json
import os
import socket
import time

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
from worldsize.worker.measure.memory import free_memory, limit_memory
from worldsize.worker.measure.step_clock import Phases
from worldsize.worker.measure.telemetry import telemetry_of
from worldsize.worker.parallel.team import Crew, Team
from worldsize.worker.probe import probe
from worldsize.worker.process import exit_if_superseded, mark_trial, stop_file
from worldsize.worker.records import Measurements, Recorder, environment, save_arrays


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
        for number, trial in enumerate(trials):
            self._trial_id, self._trainer = trial.id, None
            mark_trial(trial.id)
            team = crew.team(trial.workers)
            if team is not None:
                self._run_trial(number, trial, team, crew)
            # Ranks that are not in the team sleep here until the trial ends.
            crew.wait_for(f"trial/{number}/done")
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

    def _run_trial(self, number: int, trial: TrialSpec, team: Team, crew: Crew) -> None:
        self.phases.enter("preparation")
        phases_before, started_at = self.phases.totals(), time.time()
        if self.launch.memory_limit_gb or team.device.type == "cuda":
            free_memory(team.device)  # leftovers of the last trial must not decide whether this one fits
        self._telemetry.start()
        trainer = self._trainer = self._builder.build(trial, team, self._search_curves.get(trial.search or "", []))
        if trial.largest and team.rank == 0:
            self._recorder.compute_facts(trainer)  # before the search, because its imports take memory
        result = _run(trainer)
        self.phases.enter("saving")
        telemetry = self._telemetry.stop()
        if trial.search is not None:
            curve = search_curve(result.epochs, result.outcome, self.launch.metric, trainer.ending.planned_epochs)
            self._search_curves.setdefault(trial.search, []).append(curve)
        trained_model = trainer.strategy.full_model() if trial.train and trial.train.save_weights else None
        own_arrays = save_arrays(self.folder.trial(trial.id), trainer, result, telemetry)
        if team.rank > 0:
            crew.publish(f"trial/{number}/arrays/{team.rank}", json.dumps(own_arrays))
            return
        others = [json.loads(crew.wait_for(f"trial/{number}/arrays/{rank}")) for rank in range(1, team.workers)]
        hosts = [crew.wait_for(f"host/{rank}") for rank in range(team.workers)]
        facts = environment(team.device, self.launch.backend) | {"hosts": hosts, "commit": self.launch.commit}
        phases_s = {name: total - phases_before.get(name, 0.0) for name, total in self.phases.totals().items()}
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


def _run(trainer: Trainer) -> Result:
    trial = trainer.trial
    if trial.probe is None:
        return train(trainer)
    return search(trainer, trial.probe, trial.largest) if trial.largest else probe(trainer, trial.probe)
