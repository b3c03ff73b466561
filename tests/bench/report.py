"""Measure the time, memory and page size of a report with many trials: python -m tests.bench.report.

Each line shows a measured value, its limit, and whether the limit is met. The exit code is 1 if one is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.made import made_study

STUDY = """\
name: many
workload: digits
axes:
  workers: [1, 2]
  batch_per_worker: [64]
  optimizer: [{{name: momentum, lr: [{rates}]}}]
probe: {{repeats: 4}}
train: {{epochs: 200}}
repeats: 4
oversubscribe: true
"""
CHILD = """
import json, resource, sys, time
began = time.perf_counter()
from pathlib import Path
from worldsize.answer.results import load
from worldsize.report.write.publish import publish
results = load(sys.argv[1])
loaded = time.perf_counter()
made = publish(results, Path(sys.argv[2]))
ended = time.perf_counter()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"trials": len(results.trials), "load_s": loaded - began, "publish_s": ended - loaded,
                  "cpu_s": time.process_time(), "memory_bytes": memory, "page_bytes": made.size_bytes}))
"""
SIZES = (104, 304, 1000)
SECONDS, MEMORY_BYTES, PAGE_BYTES = 20.0, 1.5e9, 15e6
GROWTH = 1.5
"""Maximum ratio of the CPU time per added trial at 1,000 trials to that at 300. Linear growth has a ratio of 1,
quadratic growth 3.3. CPU time depends less on other work on the machine than wall time."""


def measure(trials: int, home: Path) -> dict[str, float]:
    """Measure a report of 8 probes and of 2 counts x learning rates x 4 repeats."""
    rates = ", ".join(f"{0.0001 * 1.05**place:.6f}" for place in range((trials - 8) // 8))
    folder = home / str(trials)
    made_study(folder, STUDY.format(rates=rates))
    command = [sys.executable, "-c", CHILD, str(folder), str(home / f"report-{trials}")]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(answer.splitlines()[-1])
    return measured


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        small, middle, large = (measure(trials, Path(home)) for trials in SIZES)
    for measured in (small, middle, large):
        print(json.dumps(measured))
    seconds = large["load_s"] + large["publish_s"]
    early, late = (
        (after["cpu_s"] - before["cpu_s"]) / (after["trials"] - before["trials"])
        for before, after in ((small, middle), (middle, large))
    )
    checks = [
        ("seconds", f"{seconds:.1f} s", f"{SECONDS:.0f} s", seconds < SECONDS),
        ("memory", f"{large['memory_bytes'] / 1e9:.2f} GB", "1.5 GB", large["memory_bytes"] < MEMORY_BYTES),
        ("page", f"{large['page_bytes'] / 1e6:.1f} MB", "15 MB", large["page_bytes"] < PAGE_BYTES),
        ("cost per added trial / at 300", f"{late / early:.2f} x", f"{GROWTH} x", late < GROWTH * early),
    ]
    for name, figure, limit, is_met in checks:
        print(f"{'ok  ' if is_met else 'MISS'} report of 1,000 trials, {name}: {figure} (limit {limit})", flush=True)
    return 0 if all(is_met for *_, is_met in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
