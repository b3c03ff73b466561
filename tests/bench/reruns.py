"""Run the same study several times, and compare its answers.

    python -m tests.bench.reruns FOLDER [STUDY [WORKERS]]     # default: 8 times the quickstart

Each run has its own folder. Prints Markdown: the speedup of the largest count in each run, the share of ordered pairs
of runs in which the interval of one contains the value of the other, and the median width. The exit code is 1 if fewer
than 80 % of the pairs agree, if the median width is more than 12 %, or if the recommended counts of more than one run
differ without "too close to call".
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import worldsize
from worldsize.answer.results import Results

RUNS = 8
LEAST_PAIRS, MOST_WIDTH = 0.80, 0.12
CLOSE = {"close-call", "too-noisy", "machine-busy"}


def run(folder: Path, study: str, options: list[str]) -> Results:
    command = [sys.executable, "-m", "worldsize.cli.main", "run", study, "--dir", str(folder), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return worldsize.load(folder)


def main(folder: str, study: str = "quickstart", workers: str = "") -> int:
    options = ["--workers", workers] if workers else []
    runs = []
    for number in range(RUNS):
        began = time.monotonic()
        runs.append(run(Path(folder) / str(number), study, options))
        print(f"run {number}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return report(runs)


def report(runs: list[Results]) -> int:
    print("| run | step of 1 worker | largest step | speedup | in probes | in training | answer | findings |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    speedups, answers = [], []
    for number, results in enumerate(runs):
        base, *_, row = results.series[0].rows
        low, high = row.speedup.ends
        gains = row.pace.training_gain_over(base.pace)
        probed, trained = (f"{gain.exp().value:.2f}" for gain in gains) if gains else ("", "")
        findings = [finding.code for finding in results.answer.findings]
        close = bool(CLOSE & set(findings))
        workers = results.answer.row.setting.workers if results.answer.row else 0
        answers.append((workers, close))
        speedups.append(row.speedup)
        print(
            f"| {number + 1} | {base.step_s.value * 1e3:.1f} ms | {row.step_s.value * 1e3:.1f} ms | "
            f"{row.speedup.value:.2f} ({low:.2f} to {high:.2f}) | {probed} | {trained} | "
            f"{'too close: ' if close else ''}{workers} | {', '.join(findings)} |"
        )
    pairs = list(itertools.permutations(speedups, 2))
    inside = float(np.mean([one.ends[0] <= other.value <= one.ends[1] for one, other in pairs]))
    width = float(np.median([speedup.relative_width for speedup in speedups]))
    deviation = float(np.std(np.log([speedup.value for speedup in speedups]), ddof=1))
    usual = Counter(workers for workers, _ in answers).most_common(1)[0][0]
    contradicting = sum(workers != usual and not close for workers, close in answers)
    print(
        f"\nOrdered pairs in which an interval contains the other value: {100 * inside:.0f} %; median width "
        f"{100 * width:.1f} %; standard deviation of the speedup {100 * deviation:.1f} %; answers that differ without "
        f"saying that it is close: {contradicting}."
    )
    return int(inside < LEAST_PAIRS or width > MOST_WIDTH or contradicting > 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
