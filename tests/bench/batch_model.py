"""How well two trained batches predict the steps of two larger ones: an MLP on digits, with four learning-rate rules.

python -m tests.bench.batch_model [FOLDER]     about 8 minutes on one core; a folder with finished trials is only read

Seven batches, three seeds, 20 epochs. Each four neighboring batches are a case for each target: the model sees the
smaller two and predicts the larger two, and is compared with "epochs stay constant". Cases are left out if a trained
batch meets the target within the first epoch, where the exact step is unknown, or misses it in some runs. The constants
of the model were chosen on seeds 0 to 2 of the same study; this benchmark uses other seeds.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import worldsize
from worldsize.analysis.learning.larger_batches import batch_studies
from worldsize.analysis.learning.steps_to_target import target_runs
from worldsize.analysis.learning.variants import Goal, TrainingRun
from worldsize.answer import from_records
from worldsize.answer.results import Results

STUDY = """\
name: batches
workload: {name: digits, model: mlp}
axes:
  workers: [1]
  global_batch: [32, 64, 128, 256, 512, 1024, 2048]
  optimizer:
    - {name: momentum, lr: 0.005, lr_rule: [linear, sqrt]}
    - {name: adam, lr: 0.0005, lr_rule: sqrt}
    - {name: sgd, lr: 0.02, lr_rule: linear}
probe: false
train: {epochs: 20, base_batch: 32}
repeats: 3
seed: 10
"""
TARGETS = (0.92, 0.93, 0.94, 0.95, 0.96)
VAGUE = 0.2
"""A doubt of log(steps) above this means that the first evaluation met the target."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    doublings: float
    """Doublings from the largest batch that the model saw."""
    error: float | None
    """Relative error of the prediction. None if there is no prediction, or if some runs missed the target."""
    constant_epochs: float
    """Relative error of "epochs stay constant"."""
    covered: float
    """Share of the runs within the 80 % interval. NaN if there is no error."""


def curves(results: Results) -> list[TrainingRun]:
    return [
        from_records.trained(results.trials[name], record, results.facts.metric)
        for name, record in results.records.items()
        if record.outcome != "failed" and results.trials[name].kind == "train"
    ]


def held_out(trained: Sequence[TrainingRun], target: Goal) -> list[HeldOut]:
    """Return the cases of one variant at four batches. Empty if the steps of the smaller two batches are unknown."""
    batches = sorted({curve.setting.global_batch for curve in trained})
    seen = [curve for curve in trained if curve.setting.global_batch in batches[:2]]
    if any(run.steps is None or run.doubt > VAGUE for run in target_runs(seen, target)):
        return []
    (study,) = batch_studies(seen, target=target)
    assert study.steps is not None
    last = study.steps.batches[-1]
    assert last.steps is not None
    predictions = []
    for batch in batches[2:]:
        runs = target_runs([curve for curve in trained if curve.setting.global_batch == batch], target)
        steps = np.array([run.steps for run in runs if run.steps is not None])
        predicted = study.steps.predict(batch).steps
        known = predicted is not None and len(steps) == len(runs)
        measured = math.exp(float(np.log(steps).mean())) if known else math.nan
        predictions.append(
            HeldOut(
                doublings=math.log2(batch / batches[1]),
                error=abs(predicted.value / measured - 1) if predicted and known else None,
                constant_epochs=abs(last.steps * batches[1] / batch / measured - 1),
                covered=float(np.mean((predicted.ends[0] <= steps) & (steps <= predicted.ends[1])))
                if predicted and known
                else math.nan,
            )
        )
    return predictions


def cases(trained: Sequence[TrainingRun]) -> list[HeldOut]:
    """Return the cases of one variant: all targets, all groups of four neighboring batches."""
    batches = sorted({curve.setting.global_batch for curve in trained})
    all_cases: list[HeldOut] = []
    for first in range(len(batches) - 3):
        four = [curve for curve in trained if curve.setting.global_batch in batches[first : first + 4]]
        for value in TARGETS:
            all_cases += held_out(four, Goal(value=value, at_least=True))
    return all_cases


def medians(cases: Iterable[HeldOut]) -> tuple[float, float]:
    """Return the median errors of the model and of "epochs stay constant"."""
    known = [case for case in cases if case.error is not None]
    return float(np.median([case.error for case in known])), float(np.median([case.constant_epochs for case in known]))


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "batches"
    trained = curves(worldsize.Study.from_text(STUDY, folder=folder).run())
    for variant in dict.fromkeys(curve.variant for curve in trained):
        of_variant = cases([curve for curve in trained if curve.variant == variant])
        for doublings in (1, 2):
            selected = [case for case in of_variant if case.doublings == doublings]
            known = [case for case in selected if case.error is not None]
            ours, constant = medians(selected)
            covered = np.mean([case.covered for case in known])
            print(
                f"{variant}, {2**doublings} x the batch: {len(known)} of {len(selected)} cases, median error "
                f"{ours:.0%}, constant epochs {constant:.0%}; {covered:.0%} of runs in the 80 % interval"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
