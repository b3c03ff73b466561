"""One rank's way through a launch: join the others, then trial after trial, each ending in a record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldsize.record import SpanFile, TrialRecord
from worldsize.spec import TrialSpec
from worldsize.store import StudyFolder, read_json, save_array, write_json
from worldsize.worker import workloads
from worldsize.worker.clock import Phases, laps_for
from worldsize.worker.environment import environment
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Course, Result, probe, train
from worldsize.worker.optim import make_optimizer, rate_of_step
from worldsize.worker.parallel import Crew, Team
from worldsize.worker.process import mark_trial


class Session:
    """What stays from trial to trial: the crew, the data, the clock of the launch."""

    def __init__(self, folder: StudyFolder, launch_id: str) -> None:
        self.folder, self.launch_id = folder, launch_id
        self.launch: dict[str, Any] = read_json(folder.launch(launch_id) / "launch.json")
        self.stop_file: Path = folder.launch(launch_id) / "stop"
        self.phases = Phases("process start", already_s=max(0.0, time.time() - self.launch["launched_at"]))
        self._trial_id: str | None = None
        self._course: Course | None = None
        self._loaded: dict[str, workloads.Workload] = {}
        torch.set_num_threads(self.launch["threads"])

    def position(self) -> tuple[str | None, int | None]:
        """The trial under way and its steps so far, for a failure that must say where it happened."""
        return self._trial_id, self._course.step if self._course else None

    def run(self) -> None:
        trials = [self.folder.trial_spec(trial_id) for trial_id in self.launch["trials"]]
        crew = Crew(self.launch["device"], self.launch["backend"], sorted({trial.workers for trial in trials}))
        crew.tell(f"host/{crew.rank}", environment(crew.device, self.launch["backend"])["host"])
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
            phases = {"phases_s": self.phases.totals(), "ended_at": time.time()}
            write_json(self.folder.launch(self.launch_id) / "phases.json", phases)
        crew.leave()

    def _run_trial(self, number: int, trial: TrialSpec, team: Team, crew: Crew) -> None:
        self.phases.enter("preparation")
        before, started_at = self.phases.totals(), time.time()
        course = self._course = self._prepare(trial, team)
        result = probe(course, trial.probe) if trial.probe else train(course)
        self.phases.enter("saving")
        spans = save_array(
            self.folder.trial(trial.id) / f"spans-rank{team.rank:02d}.npy", team.rank, course.laps.spans()
        )
        if team.rank > 0:
            crew.tell(f"trial/{number}/spans/{team.rank}", spans.model_dump_json())
            return
        others = [crew.hear(f"trial/{number}/spans/{rank}") for rank in range(1, team.workers)]
        all_spans = (spans, *(SpanFile.model_validate_json(text) for text in others))
        hosts = [crew.hear(f"host/{rank}") for rank in range(team.workers)]
        facts = environment(team.device, self.launch["backend"]) | {"hosts": hosts, "commit": self.launch["commit"]}
        phases_s = {name: total - before.get(name, 0.0) for name, total in self.phases.totals().items()}
        phases_s = {name: seconds for name, seconds in phases_s.items() if seconds > 0}
        self.folder.write_record(self._record(trial, course, result, all_spans, phases_s, started_at, facts))
        course.journal.say("end", outcome="finished" if result.diverged_at_step is None else "diverged")
        crew.tell(f"trial/{number}/done", json.dumps(trial.id))

    def _prepare(self, trial: TrialSpec, team: Team) -> Course:
        """Same seed, same model: every rank builds it, so a run can be repeated to the bit."""
        name = trial.workload.name
        if name not in self._loaded:
            self._loaded[name] = workloads.load(name).on(team.device)
        workload = self._loaded[name]
        torch.manual_seed(trial.seed)
        module = workload.build_model().to(team.device)
        torch.manual_seed(trial.seed * 100_003 + team.rank + 1)  # from here on, ranks must not draw the same numbers
        events = self.folder.trial(trial.id) / "events.jsonl" if team.rank == 0 else None
        return Course(
            trial=trial,
            workload=workload,
            team=team,
            module=module,
            model=team.wrap(module),
            optimizer=make_optimizer(trial.optimizer, module),
            rate=rate_of_step(trial, len(workload.train)),
            laps=laps_for(team.device),
            phases=self.phases,
            journal=Journal(events, self.stop_file),
        )

    def _record(
        self,
        trial: TrialSpec,
        course: Course,
        result: Result,
        spans: tuple[SpanFile, ...],
        phases_s: dict[str, float],
        started_at: float,
        facts: dict[str, Any],
    ) -> TrialRecord:
        losses = np.concatenate(course.losses)
        return TrialRecord(
            trial=trial.id,
            outcome="finished" if result.diverged_at_step is None else "diverged",
            launch=self.launch_id,
            started_at=started_at,
            wall_s=sum(phases_s.values()),
            phases_s=phases_s,
            warmup_steps=result.warmup_steps,
            spans=spans,
            losses=save_array(self.folder.trial(trial.id) / "losses.npy", 0, losses),
            samples=course.samples,
            epochs=result.epochs,
            diverged_at_step=result.diverged_at_step,
            precision_reached=result.precision_reached,
            environment=facts,
        )
