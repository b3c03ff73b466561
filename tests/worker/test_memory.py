"""Running out of memory in real processes: it is noticed, lived through, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from worldsize.launch.commands import worker_environment
from worldsize.worker.measure.memory import is_out_of_memory

ROOT = Path(__file__).parents[2]
FITS, TOO_LARGE = 96, 1024


def test_what_says_that_memory_ran_out() -> None:
    full = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("std::bad_alloc"),
    ]
    others = [RuntimeError("size mismatch"), ValueError("out of memory"), RuntimeError("Connection closed by peer")]
    assert [is_out_of_memory(error) for error in (*full, *others)] == [True] * len(full) + [False] * len(others)


def start(*command: str) -> subprocess.Popen[str]:
    environment = os.environ | worker_environment(1, 1.0)
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def test_a_limit_below_what_torch_needs_is_refused_with_what_it_needs() -> None:
    check = (
        "import json, torch\n"
        "from worldsize.errors import InputError\n"
        "from worldsize.worker.measure.memory import limit_memory\n"
        "try: limit_memory(0.05, torch.device('cpu'))\n"
        "except InputError as error: print(json.dumps(str(error)))\n"
    )
    said = answer(start("-c", check))
    assert said.startswith("memory_limit_gb=0.05 is less than the 0.")
    assert said.endswith("GB that a worker with torch needs before it trains; use more")


def after_and_fresh() -> tuple[dict[str, Any], dict[str, Any]]:
    """The same batch after one that ran out of memory, and in a process where nothing did."""
    module = ("-m", "tests.worker.after_oom", str(FITS))
    after, fresh = start(*module, str(TOO_LARGE)), start(*module)
    return answer(after), answer(fresh)


@pytest.mark.long
def test_after_running_out_memory_is_that_of_a_fresh_process() -> None:
    after, fresh = after_and_fresh()
    assert (after["outcomes"], fresh["outcomes"]) == (["out_of_memory", "finished"], ["finished"])
    # Faults are what a step pays for memory that was not given back as it was found; counted, so no neighbor disturbs.
    assert after["faults"] == pytest.approx(fresh["faults"], rel=0.1)
    assert after["bytes"] == pytest.approx(fresh["bytes"], abs=4e6)
    assert after["peak_bytes"] == pytest.approx(fresh["peak_bytes"], rel=0.05)


@pytest.mark.long
def test_after_running_out_steps_take_as_long_as_in_a_fresh_process() -> None:
    ratios = []
    for _ in range(5):  # a shared machine may be busy; memory that was not given back costs every step, in all of them
        after, fresh = after_and_fresh()
        ratios.append(after["step_s"] / fresh["step_s"])
        if 0.75 < ratios[-1] < 1.33:
            return
    pytest.fail(f"after running out of memory, steps take {ratios} times as long")
