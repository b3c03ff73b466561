"""Make every rank of a launch on this host write its stack into its log, to show where the launch hangs.

python -m worldsize.launch.stacks STUDY_FOLDER LAUNCH
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

WRITING_S = 0.5


def dump_stacks(study: str, launch_id: str) -> int:
    """Signal every rank and return how many there were.

    Ranks install a handler for the signal (`worker/process.py`). A stopped process does not run it.
    """
    signaled = 0
    for rank in _ranks(study, launch_id):
        with suppress(psutil.Error):
            rank.send_signal(signal.SIGUSR2)
            signaled += 1
    time.sleep(WRITING_S)
    return signaled


def _ranks(study: str, launch_id: str) -> Iterator[psutil.Process]:
    """Yield the ranks of a launch, found by their command lines.

    A launcher ends in the same words, but the signal would kill it. So only an interpreter may come before them.
    """
    worker = ["-m", "worldsize.worker", study, launch_id]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command[-4:] == worker and _is_python(command[:-4]) and process.uids().real == os.getuid():
                yield process


def _is_python(words: list[str]) -> bool:
    """Return whether the words are an interpreter and its options, and nothing else."""
    return bool(words) and "python" in Path(words[0]).name and all(word.startswith("-") for word in words[1:])


if __name__ == "__main__":
    dump_stacks(*sys.argv[1:3])
