"""How a model is trained: the strategy of the workers, the learning rate schedule, and when training ends."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from worldsize.spec.base import Count, Epochs, Frozen, Label, NonNegativeFloat, as_list, as_name, refuse_foreign
from worldsize.spec.optimizer import LrRule

Finite = Annotated[float, Field(allow_inf_nan=False)]
ProperFraction = Annotated[float, Field(gt=0, lt=1)]

StrategyName = Literal["ddp", "fp16-compression", "bf16-compression", "powersgd", "zero", "fsdp", "local-sgd"]


class StrategySpec(Frozen):
    """How workers exchange gradients and divide the state of the model. Does not matter for a single worker."""

    name: StrategyName = "ddp"
    every: Annotated[int, Field(ge=1)] = 8
    """local-sgd: number of steps that each rank trains alone before the ranks average their weights."""
    rank: Count = 2
    """powersgd: rank of the two matrices that approximate each gradient."""
    start_step: Annotated[int, Field(ge=2)] = 10
    """powersgd: first step with compressed gradients."""
    bucket_mb: PositiveFloat | None = None
    """Size of the buckets, in MB, in which gradients are exchanged while backward still runs. A bucket larger than the
    model means one exchange at the end, without overlap. Default: 25, as in torch."""
    sync_batch_norm: bool = False
    """Compute batch norm statistics over all workers instead of over the batch of each worker."""

    @model_validator(mode="after")
    def _values_apply(self) -> Self:
        refuse_foreign(
            self, "strategy", self.name, {"every": "local-sgd", "rank": "powersgd", "start_step": "powersgd"}
        )
        if self.bucket_mb is not None and self.name in ("fsdp", "local-sgd"):
            raise ValueError(f"bucket_mb={self.bucket_mb:g} does not apply to {self.name}; remove it")
        return self

    @property
    def period(self) -> int:
        """Number of steps from one exchange to the next."""
        return self.every if self.name == "local-sgd" else 1

    @property
    def label(self) -> str:
        """The name in tables, with the values that differ from their defaults, like `local-sgd every 4`."""
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
    """The learning rate after warm-up, as a function of the fraction of training that has passed."""

    name: Literal["constant", "step", "cosine", "one-cycle"] = "constant"
    """cosine falls to 0 at the last step. one-cycle rises, then falls to almost 0. step drops at the points in `at`."""
    at: Annotated[tuple[ProperFraction, ...], BeforeValidator(as_list)] = (0.5, 0.75)
    """step: when the learning rate drops, as fractions of training."""
    factor: ProperFraction = 0.1
    """step: factor by which the learning rate is multiplied at each drop."""
    rise: ProperFraction = 0.3
    """one-cycle: fraction of training in which the learning rate rises, from 1/25 of its peak."""

    @model_validator(mode="after")
    def _values_apply(self) -> Self:
        refuse_foreign(self, "schedule", self.name, {"at": "step", "factor": "step", "rise": "one-cycle"})
        if list(self.at) != sorted(set(self.at)):
            raise ValueError(f"at={list(self.at)} must rise; write each point once, in rising order")
        return self


Schedule = Annotated[ScheduleSpec, BeforeValidator(as_name)]


class UntilSpec(Frozen):
    """Train until a metric on the test samples reaches a target. A target that is not reached is also a result."""

    metric: Label
    at_least: Finite | None = None
    at_most: Finite | None = None
    max_epochs: Epochs = 100
    """Number of epochs after which the target counts as not reached."""

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            given = "both are" if self.at_least is not None else "neither is"
            raise ValueError(f"a target needs either at_least or at_most; {given} given; give one of them")
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
    """Number of consecutive epochs without a gain after which training stops."""
    min_gain: NonNegativeFloat = 0.001
    """Smallest gain that counts, as a fraction of the best value so far."""


class TrainSpec(Frozen):
    epochs: Epochs | None = None
    steps: Count | None = None
    until: UntilSpec | None = None
    lr_rule: LrRule = "auto"
    """How the learning rate scales with the global batch. auto is linear for sgd, momentum, nesterov and lars, and sqrt
    for all other optimizers."""
    base_batch: Count | None = None
    """Global batch that the learning rate of the optimizer was chosen for. Default: the smallest one of the study."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Number of epochs over which the learning rate rises to its value. It starts at its value for the base batch, or
    at 0 if that is not lower."""
    schedule: Schedule = ScheduleSpec()
    clip_norm: PositiveFloat | None = None
    """Largest norm of the gradient of all parameters. A larger gradient is scaled down to it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Classifiers only: fraction of the target that is spread over all classes during training."""
    plateau: PlateauSpec | None = None
    measure_noise_scale: bool = False
    """Measure the gradient noise scale, from the gradients of parts of each batch: workers or micro-batches."""
    save_weights: bool = False
    """Save the trained weights in the trial folder, for use as `pretrained` in another study."""

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        given = [name for name in ("epochs", "steps", "until") if getattr(self, name) is not None]
        if len(given) != 1:
            words = f"{' and '.join(given)} are" if given else "none of them is"
            raise ValueError(f"train needs one of epochs, steps and until, and {words} given; give one of them")
        return self

    @model_validator(mode="after")
    def _has_one_warmup(self) -> Self:
        if self.schedule.name == "one-cycle" and self.warmup_epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} and the one-cycle schedule both start with a warm-up; remove one"
            )
        return self

    def total_steps(self, samples: int, global_batch: int) -> int:
        """Return the number of steps. With a target, which can end training earlier, it is an upper limit."""
        if self.steps is not None:
            return self.steps
        return self.most_epochs * steps_per_epoch(samples, global_batch)

    @property
    def most_epochs(self) -> int:
        """Largest number of epochs; 0 if the length of training is given in steps."""
        return self.until.max_epochs if self.until is not None else self.epochs or 0

    def planned_epochs(self, samples: int, global_batch: int) -> int:
        """Return the number of epochs, rounded up, because the last one can be partial."""
        return -(-self.total_steps(samples, global_batch) // steps_per_epoch(samples, global_batch))


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Return the number of steps per epoch, including a partial last batch."""
    return -(-samples // global_batch)
