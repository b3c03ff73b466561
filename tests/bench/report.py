"""How long a report of many trials takes, how much memory and how large its page: python -m tests.bench.report.

Wanted: 1,000 trials of 200 epochs in under 20 s, 1.5 GB and 15 MB, and growth from 100 that is close to linear.
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
  optimizer: [{{name: momentum, rate: [{rates}]}}]
probe: {{repeats: 4}}
train: {{epochs: 200}}
repeats: 4
oversubscribe: true
"""
CHILD = """
import json, resource, sys, time
began = time.perf_counter()
from pathlib import Path
from worldsize.results import load
from worldsize.report.publish import publish
results = load(sys.argv[1])
loaded = time.perf_counter()
made = publish(results, Path(sys.argv[2]))
ended = time.perf_counter()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"trials": len(results.trials), "load_s": loaded - began, "publish_s": ended - loaded,
                  "memory_bytes": memory, "page_bytes": made.size_bytes}))
"""


def measured(trials: int, home: Path) -> dict[str, float]:
    """2 counts x rates x 4 repeats, and 8 probes."""
    rates = ", ".join(f"{0.0001 * 1.05**place:.6f}" for place in range((trials - 8) // 8))
    folder = home / str(trials)
    made_study(folder, STUDY.format(rates=rates))
    command = [sys.executable, "-c", CHILD, str(folder), str(home / f"report-{trials}")]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        for trials in (104, 304, 1000):
            print(json.dumps(measured(trials, Path(home))), flush=True)


if __name__ == "__main__":
    main()
