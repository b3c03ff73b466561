"""How a model is trained: how ranks work together, the learning rate schedule, when training ends."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from worldsize.spec.base import Count, Epochs, Frozen, Label, NonNegativeFloat, as_list, as_name, refuse_foreign
from worldsize.spec.optimizer import LrRule

Finite = Annotated[float, Field(allow_inf_nan=False)]
ProperFraction = Annotated[float, Field(gt=0, lt=1)]

StrategyName = Literal["ddp", "fp16-compression", "bf16-compression", "powersgd", "zero", "fsdp", "local-sgd"]


class StrategySpec(Frozen):
    """How ranks work together. One worker alone needs none of it."""

    name: StrategyName = "ddp"
    every: Annotated[int, Field(ge=1)] = 8
    """local-sgd: ranks train alone and average their weights every this many steps."""
    rank: Count = 2
    """powersgd: gradients are sent as two matrices of this rank."""
    start_step: Annotated[int, Field(ge=2)] = 10
    """powersgd: before this step, gradients are sent uncompressed."""
    bucket_mb: PositiveFloat | None = None
    """Gradients are exchanged in buckets of this size while backward still runs. If it is larger than the model, they
    are all exchanged at the end, without overlap. Default: torch's 25."""
    sync_batch_norm: bool = False
    """Compute batch norm over the global batch instead of each worker's part."""

    @model_validator(mode="after")
    def _only_what_it_has(self) -> Self:
        refuse_foreign(
            self, "strategy", self.name, {"every": "local-sgd", "rank": "powersgd", "start_step": "powersgd"}
        )
        if self.bucket_mb is not None and self.name in ("fsdp", "local-sgd"):
            raise ValueError(f"bucket_mb={self.bucket_mb:g} means nothing to {self.name}: leave it out")
        return self

    @property
    def period(self) -> int:
        """Steps from one exchange to the next."""
        return self.every if self.name == "local-sgd" else 1

    @property
    def label(self) -> str:
        """The name in tables, with values that differ from the default: `local-sgd every 4`."""
        fields = type(self).model_fields
        extra = [
            field.replace("_", " ")
            if getattr(self, field) is True
            else f"{field.replace('_', ' ')} {getattr(self, field)}"
            for field in fields
            if field != "name" and getattr(self, field) != fields[field].default
        ]
        if self.name == "local-sgd" and not extra:
            extra = [f"every {self.every}"]
        return " ".join([self.name, *extra])


class ScheduleSpec(Frozen):
    """The learning rate after warm-up, by the share of training that has passed."""

    name: Literal["constant", "step", "cosine", "one-cycle"] = "constant"
    """cosine falls to 0 at the last step; one-cycle rises, then falls to almost 0; step drops at the points in `at`."""
    at: Annotated[tuple[ProperFraction, ...], BeforeValidator(as_list)] = (0.5, 0.75)
    """step: where the learning rate drops, as shares of training."""
    factor: ProperFraction = 0.1
    """step: factor on the learning rate at each drop."""
    rise: ProperFraction = 0.3
    """one-cycle: the share of training in which the learning rate rises, from 1/25 of its peak."""

    @model_validator(mode="after")
    def _only_what_it_has(self) -> Self:
        refuse_foreign(self, "schedule", self.name, {"at": "step", "factor": "step", "rise": "one-cycle"})
        if list(self.at) != sorted(set(self.at)):
            raise ValueError(f"at={list(self.at)} does not rise: write each point once, the first one first")
        return self


Schedule = Annotated[ScheduleSpec, BeforeValidator(as_name)]


class UntilSpec(Frozen):
    """Train until a metric on the test samples is good enough; `not reached` is an answer."""

    metric: Label
    at_least: Finite | None = None
    at_most: Finite | None = None
    max_epochs: Epochs = 100
    """After this many epochs the target counts as not reached."""

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            given = "both are" if self.at_least is not None else "neither is"
            raise ValueError(f"a target is either at_least or at_most; {given} given: keep one")
        return self

    @property
    def value(self) -> float:
        bound = self.at_most if self.at_least is None else self.at_least
        assert bound is not None
        return bound

    def reached(self, value: float) -> bool:
        return value <= self.value if self.at_least is None else value >= self.value


class PlateauSpec(Frozen):
    """Stop early when the metric no longer improves."""

    patience: Epochs = 5
    """Number of consecutive epochs without a gain."""
    min_gain: NonNegativeFloat = 0.001
    """Smallest gain that counts, as a share of the best value so far."""


class TrainSpec(Frozen):
    epochs: Epochs | None = None
    steps: Count | None = None
    until: UntilSpec | None = None
    lr_rule: LrRule = "auto"
    """How the learning rate scales with the global batch. auto: linear for sgd, momentum, nesterov and lars, sqrt for
    the others."""
    base_batch: Count | None = None
    """The global batch for which the optimizer's learning rate was chosen. Default: the smallest of the study."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Number of epochs over which the learning rate rises to its value: from its value at the base batch, or from 0 if
    that is not lower."""
    schedule: Schedule = ScheduleSpec()
    clip_norm: PositiveFloat | None = None
    """Gradients with a larger norm, over all parameters, are scaled down to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For classifiers: the share of the target spread over all classes. In training only."""
    plateau: PlateauSpec | None = None
    measure_noise_scale: bool = False
    """Measure how noisy gradients are, from the parts of each batch: workers, or micro-batches of one worker."""
    save_weights: bool = False
    """Keep the trained weights in the trial folder, to use as `pretrained` in another study."""

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        given = [name for name in ("epochs", "steps", "until") if getattr(self, name) is not None]
        if len(given) != 1:
            words = f"{' and '.join(given)} are" if given else "none is"
            raise ValueError(f"training ends after epochs, after steps, or with until; {words} given: keep one")
        return self

    @model_validator(mode="after")
    def _one_rise(self) -> Self:
        if self.schedule.name == "one-cycle" and self.warmup_epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} and the schedule one-cycle both begin with a rise: keep one"
            )
        return self

    def total_steps(self, samples: int, global_batch: int) -> int:
        """steps = epochs x samples / global batch; an upper limit if a target may end training earlier."""
        if self.steps is not None:
            return self.steps
        return self.most_epochs * steps_per_epoch(samples, global_batch)

    @property
    def most_epochs(self) -> int:
        """Largest number of epochs; 0 if training is given in steps."""
        return self.until.max_epochs if self.until is not None else self.epochs or 0

    def planned_epochs(self, samples: int, global_batch: int) -> int:
        """Number of epochs, rounded up: the last one may be partial."""
        return -(-self.total_steps(samples, global_batch) // steps_per_epoch(samples, global_batch))


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Steps per epoch, including the last batch, which may be partial."""
    return -(-samples // global_batch)
