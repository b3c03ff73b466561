"""Where a study runs: this machine, MPI, Slurm, or several of these by name; and what a Slurm job requests. Every value
is checked, so that none of them can add a directive to a job script.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from worldsize.errors import shorten
from worldsize.machine import Machine
from worldsize.spec.base import Count, Frozen, as_list, or_say

FOR_SBATCH = "is not in the form that sbatch takes; use letters, digits and"
SlurmName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}$"),
    or_say(f"{FOR_SBATCH} . _ - , : @ +"),
]
"""Name of a partition, account, ...: nothing that sbatch or a shell would interpret."""
Constraint = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,:@+&|*!()\[\]=-]{0,127}$"),
    or_say(f"{FOR_SBATCH} . _ - , : @ + & | * ! ( ) [ ] ="),
]
OptionText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./,:@+%=\[\]()*&|-]{1,256}$")]
OptionValue = Annotated[
    OptionText | bool | int, or_say(f"{FOR_SBATCH} . / _ - , : @ + % = [ ] ( ) * & |, a whole number, or true")
]
TimeLimit = Annotated[
    str,
    StringConstraints(pattern=r"^(\d{1,3}-\d{1,2}(:\d{2}){0,2}|\d{1,6}|\d{1,5}(:\d{2}){1,2})$"),
    or_say("is not a time limit; write minutes, HH:MM:SS or D-HH:MM:SS"),
]

OWNED = {
    *("job-name", "output", "error", "chdir", "wrap", "array", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task"),
    *("gpus-per-node", "time", "signal", "requeue", "no-requeue", "open-mode", "parsable", "dependency", "partition"),
    *("account", "qos", "constraint", "wait", "wait-all-nodes", "export", "export-file", "test-only", "gres", "hold"),
    *("clusters", "cluster-constraint"),
}
"""Directives that the script or the sbatch command line already sets, or that would change what a job is."""


class SlurmSpec(Frozen):
    """What every job of the study requests from Slurm."""

    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    time: TimeLimit = "01:00:00"
    """Time limit of one job, in sbatch's format: minutes, HH:MM:SS or D-HH:MM:SS. Unfinished work is resubmitted."""
    nodes: Count = 1
    """Largest number of nodes of a job. A launch with fewer workers takes fewer nodes."""
    workers_per_node: Count | None = None
    """Default: `gpus_per_node`, or the largest worker count divided among the nodes."""
    gpus_per_node: Count | None = None
    """Without it the study runs on CPUs."""
    cpus_per_worker: Count | None = None
    """CPUs of each worker. Default: the study's `threads_per_worker`."""
    constraint: Constraint | None = None
    """Required node features: a100, skylake|icelake."""
    setup: Annotated[tuple[str, ...], Field(max_length=50)] = ()
    """Shell commands before the workers start: module load ..., source ..."""
    sbatch_options: dict[str, OptionValue] = Field(default_factory=dict)
    """More directives: {exclusive: true, mem: 32G} gives `#SBATCH --exclusive` and `#SBATCH --mem=32G`."""
    max_jobs: Count = 4
    """Largest number of jobs of this study in the queue at once."""

    @field_validator("time", mode="before")
    @classmethod
    def _minutes(cls, value: Any) -> Any:
        """YAML reads 30 as a number."""
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("time")
    @classmethod
    def _at_least_a_minute(cls, value: str) -> str:
        """0 would be no limit at all."""
        if limit_s(value) < 60:
            raise ValueError(f"time={value!r} is less than a minute, the shortest limit of Slurm; use a longer one")
        return value

    @field_validator("setup", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return as_list(value)

    @field_validator("setup")
    @classmethod
    def _one_line_each(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in value:
            if not line.strip() or any(not character.isprintable() and character != "\t" for character in line):
                raise ValueError(f"setup={line!r} must be one line of printable text; write one entry a command")
        return value

    @model_validator(mode="after")
    def _options_are_free(self) -> Self:
        for key in self.sbatch_options:
            if not key.replace("-", "").isalnum() or not key.isascii() or key != key.lower() or key.startswith("-"):
                raise ValueError(
                    f"sbatch_options: {key!r} is not a long option of sbatch; write it without leading dashes, "
                    "like mem-per-cpu"
                )
            # sbatch accepts `--job-na` for `--job-name`.
            if owned := next((option for option in sorted(OWNED) if option.startswith(key)), None):
                raise ValueError(
                    f"sbatch_options: {key!r}: {owned} is set by worldsize, or has a key of its own; leave it out"
                )
        return self

    @property
    def time_s(self) -> float:
        return limit_s(self.time)


class OnSlurm(Frozen):
    slurm: SlurmSpec


OnName = Literal["local", "mpi"]
PlaceOrNone = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,31})?$")]
"""Place of a trial or a launch: empty if the study has one place, which needs no name."""
PlaceName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$"),
    or_say("cannot name a place; use 1 to 32 letters, digits, '.', '_' and '-'"),
]


def expand_place(value: Any) -> Any:
    """`slurm` is short for `{slurm: {}}`."""
    if value == "slurm":
        return {"slurm": {}}
    if isinstance(value, dict) and value.get("slurm", 0) is None:
        return {**value, "slurm": {}}
    if isinstance(value, dict) and "slurm" not in value:
        raise ValueError(
            f"run_on={shorten(value)} has no key slurm; write {{slurm: {{...}}}} for one place, or a list for several: "
            "[{name: t4, slurm: {...}}, {name: v100, slurm: {...}}]"
        )
    if isinstance(value, str) and value not in get_args(OnName):
        raise ValueError(f"run_on={value!r} is not a place to run a study; use local, mpi, slurm or {{slurm: {{...}}}}")
    return value


PlaceSpec = Annotated[
    Annotated[OnName, Tag("<name>")] | Annotated[OnSlurm, Tag("<slurm>")],
    Discriminator(lambda value: "<slurm>" if isinstance(value, dict | OnSlurm) else "<name>"),
]


class NamedPlace(Frozen):
    """One of several places: a kind of hardware, with a name of your choice."""

    name: PlaceName
    slurm: SlurmSpec | None = None
    """Jobs with these settings."""
    local: bool = False
    """This machine."""
    mpi: bool = False
    """This machine, with mpirun."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.slurm is not None) + self.local + self.mpi != 1:
            raise ValueError(f"the place {self.name} needs one of `slurm: {{...}}`, `local: true` and `mpi: true`")
        return self

    @property
    def place(self) -> PlaceSpec:
        if self.slurm is not None:
            return OnSlurm(slurm=self.slurm)
        return "local" if self.local else "mpi"

    def with_slurm(self, place: PlaceSpec) -> NamedPlace:
        """The same place with the job settings of `place`."""
        return self.model_copy(update={"slurm": place.slurm if isinstance(place, OnSlurm) else None})


def expand_named(value: Any) -> Any:
    """`local` is short for `{name: local, local: true}`."""
    if value in (*get_args(OnName), "slurm"):
        return {"name": value, value: {} if value == "slurm" else True}
    if isinstance(value, dict) and value.get("slurm", 0) is None and not (value.get("local") or value.get("mpi")):
        return {**value, "slurm": {}}
    return value


def _names_differ(places: tuple[NamedPlace, ...]) -> tuple[NamedPlace, ...]:
    names = [place.name for place in places]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"run_on names {twice} twice; give each place a name of its own")
    return places


Places = Annotated[
    tuple[Annotated[NamedPlace, BeforeValidator(expand_named)], ...],
    Field(min_length=1),
    BeforeValidator(as_list),
    AfterValidator(_names_differ),
]
"""[{name: t4, slurm: {...}}, {name: v100, slurm: {...}}]: several kinds of hardware."""
RunOn = Annotated[
    Annotated[PlaceSpec, BeforeValidator(expand_place), Tag("<place>")] | Annotated[Places, Tag("<places>")],
    Discriminator(lambda value: "<places>" if isinstance(value, list | tuple) else "<place>"),
]


def limit_s(text: str) -> float:
    """sbatch's own forms: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0, parts[0], 0
    else:
        hours, minutes, seconds = [0, *parts] if len(parts) == 2 else parts
    return float(int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds)


def nodes_for(slurm: SlurmSpec, workers: int) -> int:
    """The fewest nodes that hold the workers of a launch; `workers_per_node` is resolved."""
    assert slurm.workers_per_node is not None
    return math.ceil(workers / slurm.workers_per_node)


def machine_of(place: PlaceSpec, machine: Machine, *, threads: int) -> Machine:
    """The cores and GPUs that workers have at a place; on Slurm, what the study requests. `machine` is the driver's;
    `workers_per_node` is resolved."""
    if not isinstance(place, OnSlurm):
        return machine
    slurm = place.slurm
    assert slurm.workers_per_node is not None
    capacity = slurm.nodes * slurm.workers_per_node
    return Machine(cores=capacity * threads, gpus=slurm.nodes * (slurm.gpus_per_node or 0))
