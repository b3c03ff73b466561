"""The job script of a launch: a pure function of names, numbers and paths, readable for people who submit it by hand.

The shell runs nothing that comes from a study except the lines of `setup`: the trials are in launch.json, paths are
quoted, names are checked. sbatch reads directives up to the first command, which follows directly after them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from worldsize.errors import InputError
from worldsize.spec.place import SlurmSpec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LONGEST_WARNING_S = 60
FIRST_PORT, PORTS = 10_000, 20_000
"""Below the ports that operating systems assign automatically."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job script needs to know about its launch."""

    name: str
    study: Path
    """The study folder, absolute."""
    launch_id: str
    nodes: int
    workers_per_node: int
    threads: int
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables, exported before torch is imported."""
    python: str
    time: str | None = None
    """Time limit that replaces the study's."""


def job_script(job: Job, slurm: SlurmSpec) -> str:
    for name in (job.name, job.launch_id):
        if not NAME.fullmatch(name):
            raise InputError(f"{name!r} is not a valid job name; use at most 128 letters, digits, '.', '_' and '-'")
    for path in (str(job.study), job.python):
        if not path.startswith("/") or not path.isprintable():
            raise InputError(f"{path!r} cannot be used in a job script; use an absolute path of printable characters")
    time = job.time or slurm.time
    warning_s = warning_before_end_s(SlurmSpec(time=time).time_s)
    directives = [
        ("job-name", job.name),
        ("partition", slurm.partition),
        ("account", slurm.account),
        ("qos", slurm.qos),
        ("constraint", slurm.constraint),
        ("time", time),
        ("nodes", job.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", cpus(job, slurm)),
        ("gpus-per-node", gpus(job, slurm)),
        *slurm.sbatch_options.items(),
        ("requeue", True),
        ("open-mode", "append"),
        ("output", "/dev/null"),
        ("signal", f"B:USR2@{warning_s}"),
    ]
    return SCRIPT.format(
        directives="\n".join(_directive(key, value) for key, value in directives if value not in (None, False)),
        study=shlex.quote(str(job.study)),
        launch_id=shlex.quote(job.launch_id),
        python=shlex.quote(job.python),
        setup="\n".join(f"setup {shlex.quote(line)}" for line in slurm.setup) or "# (the study has none)",
        environment="\n".join(f"export {key}={shlex.quote(value)}" for key, value in job.environment),
        nodes=job.nodes,
        per_node=job.workers_per_node,
        cpus=cpus(job, slurm),
        first=FIRST_PORT,
        ports=PORTS,
        warning_s=warning_s,
    )


def warning_before_end_s(time_s: float) -> int:
    """Return how long before the time limit to signal the job: one minute, or a quarter of a short limit."""
    return int(min(LONGEST_WARNING_S, max(time_s / 4, 1)))


def cpus(job: Job, slurm: SlurmSpec) -> int:
    """Return the CPUs per task. The one task of a node is torchrun with all its workers."""
    return job.workers_per_node * (slurm.cpus_per_worker or job.threads)


def gpus(job: Job, slurm: SlurmSpec) -> int | None:
    """Return the GPUs per node. A launch with few workers requests no more than it can use."""
    return min(slurm.gpus_per_node, job.workers_per_node) if slurm.gpus_per_node else None


def _directive(key: str, value: object) -> str:
    return f"#SBATCH --{key}" if value is True else f"#SBATCH --{key}={value}"


SCRIPT = """\
#!/bin/bash
# One launch of a worldsize study. `sbatch job.sh` does what `worldsize run` does.
{directives}

set -u
study={study}
launch_id={launch_id}
launch="$study/launches/$launch_id"
attempt="$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
python=({python})        # a setup line may change it: python=(apptainer exec image.sif python)
cd "$study" || exit 72
exec >>"$launch/job.log" 2>&1

# Record everything that happens to this job, so that Slurm's accounting is not needed.
say() {{ printf '{{"event": "%s", "job": "%s", "attempt": %d, "at": %s%s}}\\n' \\
  "$1" "$SLURM_JOB_ID" "${{SLURM_RESTART_COUNT:-0}}" "$(date +%s.%N)" "${{2:-}}" >>"$launch/job-events.jsonl"; }}

# Do not run a launch that the driver has closed, or that another job is running.
if [ -e "$launch/end.json" ]; then echo "this launch is over: $launch/end.json"; exit 0; fi
if ! mkdir "$launch/owner" 2>/dev/null && [ "$(cat "$launch/owner/job" 2>/dev/null)" != "$SLURM_JOB_ID" ]; then
  echo "another job has this launch; if that job is gone, remove $launch/owner"; exit 73
fi
echo "$SLURM_JOB_ID" >"$launch/owner/job"

# After a requeue, processes of an earlier attempt may still run on a node that Slurm lost. Stop files end them.
for ((earlier = 0; earlier < ${{SLURM_RESTART_COUNT:-0}}; earlier++)); do
  echo superseded >"$launch/stop-$SLURM_JOB_ID-$earlier"
done
# Remove failures of an earlier attempt, so that this one is not blamed for them.
rm -f "$launch"/failure-rank*.json
if [ -e "$launch/torchrun.log" ]; then mv "$launch/torchrun.log" "$launch/torchrun-before-$attempt.log"; fi
say start ", \\"nodes\\": \\"$SLURM_JOB_NODELIST\\", \\"hosts\\": $SLURM_JOB_NUM_NODES"

# {warning_s} s before the time limit, stop the workers after a step. Finished trials are kept; a new job runs the rest.
warned() {{ say time-limit; touch "$launch/stop-$attempt"; }}
ended() {{ status=$?; say end ", \\"returncode\\": $status"; rm -rf "$launch/owner"; }}
# If the workers fall silent, the driver sends SIGHUP, and every rank writes its stack into its log.
stacks() {{
  timeout 20 srun --overlap --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 \\
    "${{python[@]}}" -m worldsize.launch.stacks "$study" "$launch_id"
  say stacks
}}
trap warned USR2
trap stacks HUP
trap 'say terminated' TERM
trap ended EXIT

setup() {{ echo "+ $1"; eval "$1" || {{ echo "setup failed: $1"; say setup-failed; exit 74; }}; }}
set +u  # modules and environments may use unset variables
{setup}

{environment}
export WORLDSIZE_ATTEMPT="$attempt" WORLDSIZE_LAUNCHED_AT="$(date +%s.%N)"
# One torchrun per node. They meet on the first host, which runs this script, at a port derived from the job id.
port=$(({first} + SLURM_JOB_ID % {ports}))
while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done  # the port is in use
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task={cpus} --kill-on-bad-exit=1 \\
  "${{python[@]}}" -m torch.distributed.run --nnodes={nodes} --nproc-per-node={per_node} --max-restarts=0 \\
  --rdzv-backend=c10d --rdzv-id="$attempt" --rdzv-endpoint="$(hostname):$port" \\
  -m worldsize.worker "$study" "$launch_id" >>"$launch/torchrun.log" 2>&1 &
workers=$!
# A signal interrupts `wait`, but not the workers.
while :; do
  wait "$workers"; code=$?
  kill -0 "$workers" 2>/dev/null || break
done
exit "$code"
"""
