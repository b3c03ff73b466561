"""StudySpec describes a whole study, and TrialSpec one of its trials.

Both are frozen and strict, and refuse unknown keys. `spec/file.py` reads a StudySpec from YAML and turns pydantic's
errors into problems with line numbers; `plan/plan.py` expands it into TrialSpecs.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PositiveFloat,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_serializer,
    model_validator,
)

from worldsize.spec.base import (
    LIST,
    LIST_OR_SEARCH,
    SEARCH,
    Count,
    Epochs,
    FileName,
    Frozen,
    NonNegativeFloat,
    as_list,
    as_list_unless_searched,
    as_name,
    or_say,
)
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec
from worldsize.spec.place import OnSlurm, PlaceOrNone, PlaceSpec, RunOn, SlurmSpec
from worldsize.spec.setting import Setting
from worldsize.spec.training import Schedule, ScheduleSpec, StrategySpec, TrainSpec
from worldsize.spec.workload import WorkloadSpec

LEAST = 2
"""Smallest batch, in samples. Batch norm cannot train on a single sample."""


class LargestSpec(Frozen):
    """`batch_per_worker: {largest: true}`: a search for the largest batch that fits into memory."""

    largest: bool
    first: Annotated[int, Field(ge=LEAST)] = 32
    """First batch to try. The search doubles it while it fits, then narrows down the limit."""
    max: Count | None = None
    """Largest batch to try. Default: the largest one for which the training data fills a global batch."""
    stop_early: bool = True
    """Stop when throughput no longer rises: if the last two doublings together gained less than 5 %."""

    @model_validator(mode="after")
    def _is_a_search(self) -> Self:
        if not self.largest:
            raise ValueError("largest=false has no meaning; write largest: true, or list the batches, like [32, 64]")
        return self


def _false_as_none(value: Any) -> Any:
    """Turn `false` into None, so that `probe: false` means a study without probes."""
    return None if value is False else value


Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
    or_say("is not a valid name; use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"),
]
"""Name of a study, which is also used as the name of its folder and its jobs."""

MOST_TRIALS = 100_000
"""Limit on the trials of a study. More would take minutes to plan and years to run."""
Batches = Annotated[tuple[Count, ...], Field(min_length=1)]


BatchAxis = Annotated[Annotated[Batches, LIST] | Annotated[LargestSpec, SEARCH], LIST_OR_SEARCH]
Precision = Literal["fp32", "bf16"]
Start = Literal["scratch", "pretrained"]
Device = Literal["auto", "cpu", "cuda"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _auto_as_empty(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return () if value == "auto" or value in (["auto"], ("auto",)) else validate(value)


class AxesSpec(Frozen):
    """The axes of a study. Each is a list of values; the points of the study are all combinations."""

    workers: Annotated[tuple[Count, ...], BeforeValidator(as_list), Field(min_length=1), WrapValidator(_auto_as_empty)]
    """Worker counts. `auto` means 1, 2, 4, ... up to the capacity of the machine, with `adaptive: true`; it is empty
    until `plan.grid.resolve` fills it in."""
    batch_per_worker: Annotated[BatchAxis | None, BeforeValidator(as_list_unless_searched)] = None
    """Batches for weak scaling, where the global batch grows with the number of workers. `{largest: true}` searches for
    the largest batch that fits into memory."""
    global_batch: Annotated[Batches | None, BeforeValidator(as_list)] = None
    """Batches for strong scaling, where the same global batch is divided among the workers."""
    accumulation: Annotated[tuple[Count, ...], BeforeValidator(as_list), Field(min_length=1)] = (1,)
    """Number of batches that each worker processes per step, before gradients are exchanged once."""
    optimizer: Annotated[
        tuple[Annotated[OptimizerAxis, BeforeValidator(as_name)], ...], BeforeValidator(as_list), Field(min_length=1)
    ] = (OptimizerAxis.model_validate({}),)
    strategy: Annotated[
        tuple[Annotated[StrategySpec, BeforeValidator(as_name)], ...], BeforeValidator(as_list), Field(min_length=1)
    ] = (StrategySpec(),)
    precision: Annotated[tuple[Precision, ...], BeforeValidator(as_list), Field(min_length=1)] = ("fp32",)
    weights: Annotated[tuple[Start, ...] | None, BeforeValidator(as_list)] = None
    """Source of the initial weights. Default: pretrained if the study has pretrained weights, else scratch."""
    seed: Annotated[Annotated[tuple[Seed, ...], Field(min_length=1)] | None, BeforeValidator(as_list)] = None
    """Seeds, with one repeat for each. Default: as many as `repeats`, counting up from `seed`."""

    @model_validator(mode="after")
    def _one_kind_of_batch(self) -> Self:
        if (self.batch_per_worker is None) == (self.global_batch is None):
            given = "both are" if self.global_batch else "neither is"
            raise ValueError(
                f"axes needs either batch_per_worker (weak scaling) or global_batch (strong scaling); {given} given; "
                "give one of them"
            )
        return self

    @property
    def is_auto(self) -> bool:
        """Whether the worker counts are `auto` and not resolved yet."""
        return not self.workers

    @field_serializer("workers")
    def _empty_as_auto(self, workers: tuple[int, ...]) -> tuple[int, ...] | str:
        return workers or "auto"

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches per worker, or global batches. For a search, the first batch that it tries."""
        if isinstance(self.batch_per_worker, LargestSpec):
            return (self.batch_per_worker.first,)
        return self.batch_per_worker or self.global_batch or ()

    @property
    def largest(self) -> LargestSpec | None:
        """The search for the largest batch, or None if the batches are listed."""
        return self.batch_per_worker if isinstance(self.batch_per_worker, LargestSpec) else None

    @property
    def scaling(self) -> Literal["strong", "weak"]:
        return "strong" if self.global_batch is not None else "weak"


class SkipSpec(Frozen):
    """Points to skip: those that match all given values."""

    workers: int | None = None
    batch_per_worker: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    lr_rule: str | None = None
    strategy: str | None = None
    precision: str | None = None
    weights: str | None = None
    place: str | None = None
    """Name of a place, if the study has several."""


class ProbeSpec(Frozen):
    """How throughput is measured: for a few seconds per point, without training to the end."""

    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Stop when the relative half-width of the 90 % interval of each step time is at most this."""
    max_seconds: PositiveFloat = 5.0
    """Stop after this much time of each setting in any case, but not before the warm-up and five more steps."""
    warmup_steps: Count = 5
    """Least number of first steps that are recorded but excluded from the statistics."""
    repeats: Count | None = None
    """Number of repeats of each probe. Default: `repeats` of the study."""


class PretrainSpec(Frozen):
    """Training on other data before the study. Its trials start from the resulting weights."""

    workload: Annotated[WorkloadSpec, BeforeValidator(as_name)]
    workers: Count = 1
    batch_per_worker: Count
    optimizer: Annotated[OptimizerSpec, BeforeValidator(as_name)]
    epochs: Epochs
    schedule: Schedule = ScheduleSpec()


class StudySpec(Frozen):
    """A study: a workload and the axes to vary."""

    name: Name
    workload: Annotated[WorkloadSpec, BeforeValidator(as_name)]
    axes: AxesSpec
    adaptive: bool = False
    """Probe counts and batches only as long as the answer can still change, then train the recommended setting."""
    skip: tuple[SkipSpec, ...] = ()
    probe: Annotated[ProbeSpec | None, BeforeValidator(_false_as_none)] = ProbeSpec()
    """How to measure the throughput of each setting. `false` turns probes off."""
    train: Annotated[TrainSpec | None, BeforeValidator(_false_as_none)] = None
    """How to train. Without it, the study measures only throughput."""
    pretrain: Annotated[PretrainSpec | None, BeforeValidator(_false_as_none)] = None
    repeats: Count = 3
    """Number of runs of each point."""
    seed: Seed = 0
    """Seed of the first repeat; later ones count up from it. Also determines the order of the trials."""
    device: Device = "auto"
    """auto is cuda if a GPU is visible, else cpu."""
    threads_per_worker: Count = 1
    """Number of CPU threads per worker."""
    memory_limit_gb: PositiveFloat | None = None
    """Memory limit per worker, in 10^9 bytes: GPU memory, or on CPUs the memory that the process can allocate."""
    keep_freed_memory: bool = True
    """Whether workers keep the memory that they free, instead of returning it to the system and requesting it again in
    each step. Does not apply to CPU workers with a memory limit."""
    oversubscribe: bool = False
    """Allow more workers than cores or GPUs. They share them and run slower."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a trial is repeated after its processes were killed or lost. Errors in the code are never retried."""
    interconnect_probe_s: Annotated[float, Field(ge=0, le=60)] = 3.0
    """Time, in seconds, for measuring all-reduces of 1 KB to 64 MB when as many workers start for the first time. 0
    turns it off."""
    hang_timeout_s: PositiveFloat = 300.0
    """Time without any progress after which a launch is killed. Once steps have run, their duration sets the limit."""
    run_on: RunOn = "local"
    """Where the study runs: `local`, `mpi`, or `slurm` with its job settings; or a list of named places."""
    small: dict[str, JsonValue] = Field(default_factory=dict)
    """Values that `--small` sets, by dotted key, for a version of the study that takes seconds."""

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if self.probe is None and self.train is None:
            raise ValueError("probe is off and train is missing, so there is nothing to run; give one of them")
        return self

    @model_validator(mode="after")
    def _as_many_repeats_as_seeds(self) -> Self:
        seeds = self.axes.seed
        if seeds is None:
            return self
        if "repeats" in self.model_fields_set and self.repeats != len(seeds):
            raise ValueError(
                f"repeats={self.repeats} contradicts the {len(seeds)} seeds in axes.seed; remove one of the two"
            )
        self.__dict__["repeats"] = len(seeds)  # frozen, but still being created
        return self

    @model_validator(mode="after")
    def _not_too_many_trials(self) -> Self:
        if problem := self.too_many_trials():
            raise ValueError(problem)
        return self

    def too_many_trials(self) -> str:
        """Return the problem with the number of trials, computed without expanding the axes. Empty if there is none."""
        axes = self.axes
        sizes = {
            "places": len(self.places),
            "workers": len(axes.workers) or 1,
            **{name: len(getattr(axes, name)) for name in ("batches", "accumulation")},
            "optimizer settings": sum(entry.size for entry in axes.optimizer),
            **{name: len(getattr(axes, name)) for name in ("strategy", "precision")},
            "starts": len(self.starts),
            "repeats": (self.probe_repeats if self.probe else 0) + (self.repeats if self.train else 0),
        }
        if (total := math.prod(sizes.values())) > MOST_TRIALS:
            factors = " x ".join(f"{count} {name}" for name, count in sizes.items() if count > 1)
            return (
                f"the study has {total:,} trials ({factors}), more than the limit of {MOST_TRIALS:,}; "
                "use fewer values or repeats"
            )
        return ""

    @model_validator(mode="after")
    def _pretrained_weights_have_a_source(self) -> Self:
        if self.pretrain is not None and self.workload.pretrained is not None:
            raise ValueError("workload.pretrained and pretrain both set the initial weights; remove one")
        if self.workload.freeze is not None and not self.has_pretrained_weights:
            raise ValueError("freeze keeps weights that were never trained; add `pretrain:` or `workload.pretrained`")
        if "pretrained" in (self.axes.weights or ()) and not self.has_pretrained_weights:
            raise ValueError(
                "axes.weights=pretrained needs pretrained weights; add `pretrain:` or `workload.pretrained`"
            )
        return self

    @property
    def places(self) -> dict[str, PlaceSpec]:
        """Places by name. A single place has an empty name."""
        if isinstance(self.run_on, tuple):
            return {place.name: place.place for place in self.run_on}
        return {"": self.run_on}

    @property
    def slurm(self) -> SlurmSpec | None:
        """Job settings, or None if the study does not run on Slurm. With several places, each `Site` has its own."""
        assert not isinstance(self.run_on, tuple)
        return self.run_on.slurm if isinstance(self.run_on, OnSlurm) else None

    @property
    def is_resolved(self) -> bool:
        """Whether all defaults are filled in, as in the study.yaml of a study folder."""
        return (
            not self.axes.is_auto
            and (self.train is None or self.train.base_batch is not None)
            and all(place.slurm.workers_per_node for place in self.places.values() if isinstance(place, OnSlurm))
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the repeats, in order."""
        return self.axes.seed or tuple(range(self.seed, self.seed + self.repeats))

    def seed_of(self, repeat: int) -> int:
        """Return the seed of a repeat. Probes can have more repeats than listed seeds; the others count from `seed`."""
        listed_seeds = self.axes.seed or ()
        return listed_seeds[repeat] if repeat < len(listed_seeds) else self.seed + repeat

    @property
    def probe_repeats(self) -> int:
        return (self.probe.repeats if self.probe else None) or self.repeats

    @property
    def has_pretrained_weights(self) -> bool:
        return self.pretrain is not None or self.workload.pretrained is not None

    @property
    def starts(self) -> tuple[Start, ...]:
        return self.axes.weights or (("pretrained",) if self.has_pretrained_weights else ("scratch",))


class TrialSpec(Frozen):
    """One trial of a study, with everything that the worker needs to run it."""

    id: FileName
    """Also the name of its folder."""
    kind: Literal["probe", "train", "pretrain"]
    workload: WorkloadSpec
    """`pretrained` is set if the trial starts from weights: a given file, or one that the pretraining trial writes."""
    workers: Count
    batch_per_worker: Count
    accumulation: Count = 1
    scaling: Literal["strong", "weak"]
    optimizer: OptimizerSpec
    strategy: Annotated[StrategySpec, BeforeValidator(as_name)]
    precision: Precision
    peak_lr: NonNegativeFloat
    """Learning rate after applying the learning-rate rule. 0 for probes, whose weights must not change."""
    repeat: int
    seed: int
    threads_per_worker: Count
    probe: ProbeSpec | None = None
    largest: LargestSpec | None = None
    """Set for a probe that searches for the largest batch that fits. It starts at `batch_per_worker`."""
    train: TrainSpec | None = None
    search: str | None = None
    """Key of the search that this trial belongs to."""
    place: PlaceOrNone = ""
    """Name of the place it runs on, if the study has several."""
    start: Start | None = None
    """Source of the initial weights of a training trial, if the study compares several."""
    prune: bool = False
    """Whether the trial is stopped early if it stays worse than others of the same search."""

    @property
    def setting(self) -> Setting:
        return Setting.of(self)

    @property
    def samples_per_worker_step(self) -> int:
        """Number of samples that a worker processes in one step."""
        return self.setting.samples_per_worker_step

    @property
    def global_batch(self) -> int:
        return self.setting.global_batch

    @property
    def variant(self) -> str:
        """What distinguishes the training trials of one setting, like `momentum 0.9 rate 0.05, linear rule`."""
        return f"{self._optimizer_name} rate {self.optimizer.lr:.9g}{self._own_values}"

    @property
    def family_label(self) -> str:
        """The variant without its learning rate, like `momentum 0.9, linear rule`."""
        return self._optimizer_name + self._own_values

    @property
    def _optimizer_name(self) -> str:
        momentum = self.optimizer.momentum
        return self.optimizer.family + (f" {momentum:g}" if momentum else "")

    @property
    def _own_values(self) -> str:
        starts = {None: (), "pretrained": ("pretrained",), "scratch": ("from scratch",)}[self.start]
        return "".join(f", {words}" for words in (*self.optimizer.own_values(), *starts))
