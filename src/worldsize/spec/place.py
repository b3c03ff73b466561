"""Places where a study runs: this machine, MPI or Slurm, or several of them with names. Also what Slurm jobs request.

The patterns make sure that no value can add a directive to a job script.
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

FOR_SBATCH = "is not a valid value for sbatch; use letters, digits and"
SlurmName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}$"),
    or_say(f"{FOR_SBATCH} . _ - , : @ +"),
]
"""Name of a partition, account, ... Contains nothing that sbatch or a shell would interpret."""
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
"""Options that worldsize sets itself, or that would change how it must handle a job."""


class SlurmSpec(Frozen):
    """What each job of the study requests from Slurm."""

    partition: SlurmName | None = None
    account: SlurmName | None = None
    qos: SlurmName | None = None
    time: TimeLimit = "01:00:00"
    """Time limit of a job, in sbatch's format: minutes, HH:MM:SS or D-HH:MM:SS. Unfinished work is resubmitted."""
    nodes: Count = 1
    """Largest number of nodes of a job. A launch with fewer workers uses fewer nodes."""
    workers_per_node: Count | None = None
    """Largest number of workers on a node. Default: `gpus_per_node`, or the largest count divided among the nodes."""
    gpus_per_node: Count | None = None
    """Number of GPUs per node. Without it, the study runs on CPUs."""
    cpus_per_worker: Count | None = None
    """Number of CPUs per worker. Default: `threads_per_worker` of the study."""
    constraint: Constraint | None = None
    """Required node features, like `a100` or `skylake|icelake`."""
    setup: Annotated[tuple[str, ...], Field(max_length=50)] = ()
    """Shell commands that run before the workers start, like `module load cuda`."""
    sbatch_options: dict[str, OptionValue] = Field(default_factory=dict)
    """Further sbatch options. {exclusive: true, mem: 32G} gives `#SBATCH --exclusive` and `#SBATCH --mem=32G`."""
    max_jobs: Count = 4
    """Largest number of jobs of this study in the queue at the same time."""

    @field_validator("time", mode="before")
    @classmethod
    def _minutes(cls, value: Any) -> Any:
        """Convert a number of minutes to text, because YAML reads 30 as a number."""
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("time")
    @classmethod
    def _at_least_a_minute(cls, value: str) -> str:
        """Refuse less than a minute. For Slurm, 0 means no limit."""
        if limit_s(value) < 60:
            raise ValueError(f"time={value!r} is less than a minute, the shortest limit of Slurm; use a longer time")
        return value

    @field_validator("setup", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return as_list(value)

    @field_validator("setup")
    @classmethod
    def _one_line_each(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in value:
            if not line.strip() or any(not character.isprintable() and character != "\t" for character in line):
                raise ValueError(f"setup={line!r} is not one line of printable text; write one entry per command")
        return value

    @model_validator(mode="after")
    def _options_are_allowed(self) -> Self:
        for key in self.sbatch_options:
            if not key.replace("-", "").isalnum() or not key.isascii() or key != key.lower() or key.startswith("-"):
                raise ValueError(
                    f"sbatch_options: {key!r} is not a long option of sbatch; write it without leading dashes, "
                    "like mem-per-cpu"
                )
            # sbatch accepts `--job-na` for `--job-name`.
            if owned := next((option for option in sorted(OWNED) if option.startswith(key)), None):
                raise ValueError(
                    f"sbatch_options: {key!r} conflicts with {owned}, which worldsize sets or has a key for; remove it"
                )
        return self

    @property
    def time_s(self) -> float:
        return limit_s(self.time)


class OnSlurm(Frozen):
    slurm: SlurmSpec


OnName = Literal["local", "mpi"]
PlaceOrNone = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,31})?$")]
"""Place of a trial or a launch. Empty if the study has a single place, which needs no name."""
PlaceName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$"),
    or_say("is not a valid name for a place; use 1 to 32 letters, digits, '.', '_' and '-'"),
]


def expand_place(value: Any) -> Any:
    """Expand a place: `slurm` is short for `{slurm: {}}`."""
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
        raise ValueError(f"run_on={value!r} is not a known place; use local, mpi, slurm or {{slurm: {{...}}}}")
    return value


PlaceSpec = Annotated[
    Annotated[OnName, Tag("<name>")] | Annotated[OnSlurm, Tag("<slurm>")],
    Discriminator(lambda value: "<slurm>" if isinstance(value, dict | OnSlurm) else "<name>"),
]


class NamedPlace(Frozen):
    """One of several places, usually a kind of hardware, with a name of your choice."""

    name: PlaceName
    slurm: SlurmSpec | None = None
    """Run Slurm jobs with these settings."""
    local: bool = False
    """Run on this machine."""
    mpi: bool = False
    """Run on this machine with mpirun."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        if (self.slurm is not None) + self.local + self.mpi != 1:
            raise ValueError(f"the place {self.name} needs one of `slurm: {{...}}`, `local: true` and `mpi: true`")
        return self

    @property
    def place(self) -> PlaceSpec:
        if self.slurm is not None:
            return OnSlurm(slurm=self.slurm)
        return "local" if self.local else "mpi"

    def with_slurm(self, place: PlaceSpec) -> NamedPlace:
        """Return this place with the job settings of `place`."""
        return self.model_copy(update={"slurm": place.slurm if isinstance(place, OnSlurm) else None})


def expand_named(value: Any) -> Any:
    """Expand a named place: `local` is short for `{name: local, local: true}`."""
    if value in (*get_args(OnName), "slurm"):
        return {"name": value, value: {} if value == "slurm" else True}
    if isinstance(value, dict) and value.get("slurm", 0) is None and not (value.get("local") or value.get("mpi")):
        return {**value, "slurm": {}}
    return value


def _names_differ(places: tuple[NamedPlace, ...]) -> tuple[NamedPlace, ...]:
    names = [place.name for place in places]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"run_on has two places with the name {duplicate}; give each place its own name")
    return places


Places = Annotated[
    tuple[Annotated[NamedPlace, BeforeValidator(expand_named)], ...],
    Field(min_length=1),
    BeforeValidator(as_list),
    AfterValidator(_names_differ),
]
"""Several places, like [{name: t4, slurm: {...}}, {name: v100, slurm: {...}}]."""
RunOn = Annotated[
    Annotated[PlaceSpec, BeforeValidator(expand_place), Tag("<place>")] | Annotated[Places, Tag("<places>")],
    Discriminator(lambda value: "<places>" if isinstance(value, list | tuple) else "<place>"),
]


def limit_s(text: str) -> float:
    """Return the seconds of a time in one of sbatch's formats: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""
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
    """Return the smallest number of nodes for the workers of a launch. `workers_per_node` must be resolved."""
    assert slurm.workers_per_node is not None
    return math.ceil(workers / slurm.workers_per_node)


def machine_of(place: PlaceSpec, machine: Machine, *, threads: int) -> Machine:
    """Return the cores and GPUs for the workers of a place; on Slurm, those that the study requests.

    `machine` is the one that the driver runs on. `workers_per_node` must be resolved.
    """
    if not isinstance(place, OnSlurm):
        return machine
    slurm = place.slurm
    assert slurm.workers_per_node is not None
    capacity = slurm.nodes * slurm.workers_per_node
    return Machine(cores=capacity * threads, gpus=slurm.nodes * (slurm.gpus_per_node or 0))
