"""StudySpec (a whole study) and TrialSpec (one point of it, run once).

Frozen, strict, no unknown keys. `spec/file.py` reads them from YAML and turns pydantic's errors into problems with line
numbers; `plan/plan.py` expands a StudySpec into TrialSpecs.
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
"""Smallest batch in samples: batch norm cannot train on one."""


class LargestSpec(Frozen):
    """`batch_per_worker: {largest: true}`: searches for the largest batch that fits."""

    largest: bool
    first: Annotated[int, Field(ge=LEAST)] = 32
    """Tried first, then doubled; if it does not fit, halved."""
    max: Count | None = None
    """Largest batch to try. Default: as many samples as a global batch can have."""
    stop_early: bool = True
    """Stop doubling when throughput no longer rises: after two doublings in a row that gained less than 5 %."""

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if not self.largest:
            raise ValueError("largest=false asks for nothing: list the batches, like [32, 64], or write largest: true")
        return self


def _switched_off(value: Any) -> Any:
    """`probe: false` switches a part of the study off."""
    return None if value is False else value


Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"),
    or_say("is not a name; use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"),
]
"""Names become folder names, job names and titles: letters, digits, '.', '_' and '-' only."""

MOST_TRIALS = 100_000
"""Limit for a study: more would take minutes to plan, and years to run."""
Batches = Annotated[tuple[Count, ...], Field(min_length=1)]


BatchAxis = Annotated[Annotated[Batches, LIST] | Annotated[LargestSpec, SEARCH], LIST_OR_SEARCH]
Precision = Literal["fp32", "bf16"]
Start = Literal["scratch", "pretrained"]
Device = Literal["auto", "cpu", "cuda"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _auto_is_no_count_yet(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return () if value == "auto" or value in (["auto"], ("auto",)) else validate(value)


class AxesSpec(Frozen):
    """Every axis is a list; the study is their product."""

    workers: Annotated[
        tuple[Count, ...], BeforeValidator(as_list), Field(min_length=1), WrapValidator(_auto_is_no_count_yet)
    ]
    """`auto` is short for 1, 2, 4, ... as far as the machine goes, with `adaptive: true`. There are none until
    `plan.grid.resolve` fills them in."""
    batch_per_worker: Annotated[BatchAxis | None, BeforeValidator(as_list_unless_searched)] = None
    """Weak scaling: the global batch grows with the workers. `{largest: true}` searches for the largest that fits."""
    global_batch: Annotated[Batches | None, BeforeValidator(as_list)] = None
    """Strong scaling: the same global batch is divided among the workers."""
    accumulation: Annotated[tuple[Count, ...], BeforeValidator(as_list), Field(min_length=1)] = (1,)
    """Number of batches that each worker computes before gradients are exchanged once."""
    optimizer: Annotated[
        tuple[Annotated[OptimizerAxis, BeforeValidator(as_name)], ...], BeforeValidator(as_list), Field(min_length=1)
    ] = (OptimizerAxis.model_validate({}),)
    strategy: Annotated[
        tuple[Annotated[StrategySpec, BeforeValidator(as_name)], ...], BeforeValidator(as_list), Field(min_length=1)
    ] = (StrategySpec(),)
    precision: Annotated[tuple[Precision, ...], BeforeValidator(as_list), Field(min_length=1)] = ("fp32",)
    weights: Annotated[tuple[Start, ...] | None, BeforeValidator(as_list)] = None
    """Where weights come from. Default: pretrained if the study has such weights, else scratch."""
    seed: Annotated[Annotated[tuple[Seed, ...], Field(min_length=1)] | None, BeforeValidator(as_list)] = None
    """One repeat each. Default: `repeats` seeds that count up from the study's `seed`."""

    @model_validator(mode="after")
    def _one_kind_of_batch(self) -> Self:
        if (self.batch_per_worker is None) == (self.global_batch is None):
            given = "both are" if self.global_batch else "neither is"
            raise ValueError(
                f"a study has either batch_per_worker (weak scaling) or global_batch (strong scaling); {given} given: "
                "keep one"
            )
        return self

    @property
    def is_auto(self) -> bool:
        """Whether `workers: auto` was written and is not resolved yet."""
        return not self.workers

    @field_serializer("workers")
    def _auto_stays_auto(self, workers: tuple[int, ...]) -> tuple[int, ...] | str:
        return workers or "auto"

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches per worker or global batches, as far as known before anything runs; for a search, the first it
        tries."""
        if isinstance(self.batch_per_worker, LargestSpec):
            return (self.batch_per_worker.first,)
        return self.batch_per_worker or self.global_batch or ()

    @property
    def largest(self) -> LargestSpec | None:
        """The search for the largest batch, if the study is one."""
        return self.batch_per_worker if isinstance(self.batch_per_worker, LargestSpec) else None

    @property
    def scaling(self) -> Literal["strong", "weak"]:
        return "strong" if self.global_batch is not None else "weak"


class SkipSpec(Frozen):
    """Points to leave out: those that match every given value."""

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
    """A place, if the study has several."""


class ProbeSpec(Frozen):
    """How throughput is measured: a few seconds per point, without training."""

    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Stop when the median step time is this precise (half of its 90 % interval, relative)."""
    max_seconds: PositiveFloat = 5.0
    """Stop after this time in any case, once the warm-up and five steps are done."""
    warmup_steps: Count = 5
    """Steps that are run and recorded, but excluded from the statistics."""
    repeats: Count | None = None
    """Probes are cheap: they may be repeated more often than training. Default: the study's `repeats`."""


class PretrainSpec(Frozen):
    """Training on other data first; the trials of the study start from its weights."""

    workload: Annotated[WorkloadSpec, BeforeValidator(as_name)]
    workers: Count = 1
    batch_per_worker: Count
    optimizer: Annotated[OptimizerSpec, BeforeValidator(as_name)]
    epochs: Epochs
    schedule: Schedule = ScheduleSpec()


class StudySpec(Frozen):
    """A workload and the axes to vary."""

    name: Name
    workload: Annotated[WorkloadSpec, BeforeValidator(as_name)]
    axes: AxesSpec
    adaptive: bool = False
    """Probe counts and batches only while the answer can still change, then train the recommended setting."""
    skip: tuple[SkipSpec, ...] = ()
    probe: Annotated[ProbeSpec | None, BeforeValidator(_switched_off)] = ProbeSpec()
    """Measure the throughput of every workers x batch x accumulation x strategy x precision; `false` switches it
    off."""
    train: Annotated[TrainSpec | None, BeforeValidator(_switched_off)] = None
    """Leave it out to measure throughput only."""
    pretrain: Annotated[PretrainSpec | None, BeforeValidator(_switched_off)] = None
    repeats: Count = 3
    seed: Seed = 0
    device: Device = "auto"
    """auto: cuda if a GPU is visible."""
    threads_per_worker: Count = 1
    """CPU threads per worker."""
    memory_limit_gb: PositiveFloat | None = None
    """Memory limit per worker, in 10^9 bytes: GPU memory, or on a CPU what the process may allocate."""
    oversubscribe: bool = False
    """Allow more workers than cores or GPUs: they share them, and run slower."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a trial is run again after its processes were killed or lost. Errors in the code are never retried."""
    interconnect_probe_s: Annotated[float, Field(ge=0, le=60)] = 3.0
    """How long all-reduces of 1 KB to 64 MB are timed at the start of a launch with several workers; 0: not at all."""
    hang_timeout_s: PositiveFloat = 300.0
    """A launch without a sign of life for this long is ended; once steps are seen, the limit follows from them."""
    run_on: RunOn = "local"
    """Where it runs: `local`, `mpi`, or `slurm` with its job settings; or several of these, each with a name."""
    small: dict[str, JsonValue] = Field(default_factory=dict)
    """What `--small` sets, by dotted field: a version of the study that takes seconds."""

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if self.probe is None and self.train is None:
            raise ValueError("probe is off and train is missing, so there is nothing to run: give one of them")
        return self

    @model_validator(mode="after")
    def _as_many_repeats_as_seeds(self) -> Self:
        seeds = self.axes.seed
        if seeds is None:
            return self
        if "repeats" in self.model_fields_set and self.repeats != len(seeds):
            raise ValueError(
                f"repeats={self.repeats} and {len(seeds)} seeds in axes.seed disagree: keep one of the two"
            )
        self.__dict__["repeats"] = len(seeds)  # still under construction, so no one has seen another value
        return self

    @model_validator(mode="after")
    def _not_too_many_trials(self) -> Self:
        """Counted before the axes are expanded."""
        if problem := self.too_many_trials():
            raise ValueError(problem)
        return self

    def too_many_trials(self) -> str:
        """The problem with the number of trials; empty if there is none."""
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
                f"the study multiplies out to {total:,} trials ({factors}); at most {MOST_TRIALS:,} can be planned: "
                "give fewer values or repeats"
            )
        return ""

    @model_validator(mode="after")
    def _pretrained_weights_have_a_source(self) -> Self:
        if self.pretrain is not None and self.workload.pretrained is not None:
            raise ValueError("workload.pretrained and pretrain both give weights to begin with: keep one")
        if self.workload.freeze is not None and not self.has_pretrained_weights:
            raise ValueError("freeze keeps weights that were never trained: add `pretrain:` or `workload.pretrained`")
        if "pretrained" in (self.axes.weights or ()) and not self.has_pretrained_weights:
            raise ValueError("axes.weights names pretrained, but no weights: add `pretrain:` or `workload.pretrained`")
        return self

    @property
    def places(self) -> dict[str, PlaceSpec]:
        """Places by name; a single place has the empty name."""
        if isinstance(self.run_on, tuple):
            return {place.name: place.place for place in self.run_on}
        return {"": self.run_on}

    @property
    def slurm(self) -> SlurmSpec | None:
        """Job settings, if it runs on Slurm. A study with several places has one per `Site`."""
        assert not isinstance(self.run_on, tuple)
        return self.run_on.slurm if isinstance(self.run_on, OnSlurm) else None

    @property
    def is_resolved(self) -> bool:
        """Whether every default is filled in, as in the study.yaml of a study folder."""
        return (
            not self.axes.is_auto
            and (self.train is None or self.train.base_batch is not None)
            and all(place.slurm.workers_per_node for place in self.places.values() if isinstance(place, OnSlurm))
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the repeats, in their order."""
        return self.axes.seed or tuple(range(self.seed, self.seed + self.repeats))

    def seed_of(self, repeat: int) -> int:
        """The seed of a repeat. Repeats beyond the listed seeds, which probes may have, continue from the study's own
        seed."""
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
    """One point of a study, run once: everything that the worker needs."""

    id: FileName
    """The name of its folder."""
    kind: Literal["probe", "train", "pretrain"]
    workload: WorkloadSpec
    """`pretrained` is set if this trial starts from weights: a file, or one written by a trial of this folder."""
    workers: Count
    batch_per_worker: Count
    accumulation: Count = 1
    scaling: Literal["strong", "weak"]
    optimizer: OptimizerSpec
    strategy: Annotated[StrategySpec, BeforeValidator(as_name)]
    precision: Precision
    peak_lr: NonNegativeFloat
    """Learning rate after the learning rate rule. 0 for a probe, whose weights must not change while it measures."""
    repeat: int
    seed: int
    threads_per_worker: Count
    probe: ProbeSpec | None = None
    largest: LargestSpec | None = None
    """A probe that tries batches until the largest that fits is known; `batch_per_worker` is the first of them."""
    train: TrainSpec | None = None
    search: str | None = None
    """The search this trial belongs to."""
    place: PlaceOrNone = ""
    """The place it runs on, if the study has several."""
    start: Start | None = None
    """Where the weights of a training trial come from, if the study compares several starts."""
    prune: bool = False
    """Whether it is stopped early if it stays worse than the others of the same search."""

    @property
    def setting(self) -> Setting:
        return Setting.of(self)

    @property
    def samples_per_worker_step(self) -> int:
        """Samples that a worker processes in one step."""
        return self.setting.samples_per_worker_step

    @property
    def global_batch(self) -> int:
        return self.setting.global_batch

    @property
    def variant(self) -> str:
        """What distinguishes the training trials of one setting: `momentum 0.9 rate 0.05, linear rule`."""
        return f"{self._optimizer_name} rate {self.optimizer.lr:.9g}{self._own_values}"

    @property
    def family_label(self) -> str:
        """The variant without its learning rate: `momentum 0.9, linear rule`."""
        return self._optimizer_name + self._own_values

    @property
    def _optimizer_name(self) -> str:
        momentum = self.optimizer.momentum
        return self.optimizer.family + (f" {momentum:g}" if momentum else "")

    @property
    def _own_values(self) -> str:
        starts = {None: (), "pretrained": ("pretrained",), "scratch": ("from scratch",)}[self.start]
        return "".join(f", {words}" for words in (*self.optimizer.own_values(), *starts))
