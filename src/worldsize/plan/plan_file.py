"""plan.json: the plan of a study as it is stored, what it was made for, and what it was to cost."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from worldsize.data.catalog import WorkloadFacts
from worldsize.plan.cost import Cost
from worldsize.plan.plan import Launch, Plan
from worldsize.spec.base import Frozen
from worldsize.spec.study import TrialSpec


class PlanFile(Frozen):
    launches: tuple[Launch, ...]
    trials: dict[str, TrialSpec]
    """By id."""
    device: str | dict[str, str]
    """What it computes on; of several targets, each of them."""
    facts: WorkloadFacts
    estimate: Cost

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        for key, trial in self.trials.items():
            if key != trial.id:
                raise ValueError(f"the trial {trial.id} is called {key!r}")
        for launch in self.launches:
            if unknown := [trial_id for trial_id in launch.trials if trial_id not in self.trials]:
                raise ValueError(f"a launch has the trial {unknown[0]!r}, which is none")
        return self

    @property
    def plan(self) -> Plan:
        return Plan(trials=self.trials, launches=self.launches)

    def grown(self, plan: Plan) -> PlanFile:
        """With the trials and launches that a search has added."""
        return self.model_copy(update={"trials": dict(plan.trials), "launches": plan.launches})
