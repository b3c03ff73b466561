"""Every rank of a launch on this host writes where it stands into its log: the evidence of one that hangs.

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
    """Returns how many ranks were asked. They have registered for the signal (`worker/process.py`); a stopped one
    cannot answer."""
    asked = 0
    for rank in _ranks(study, launch_id):
        with suppress(psutil.Error):
            rank.send_signal(signal.SIGUSR2)
            asked += 1
    time.sleep(WRITING_S)
    return asked


def _ranks(study: str, launch_id: str) -> Iterator[psutil.Process]:
    """By their command lines. Whatever starts them has a longer one, and would be ended by the signal."""
    wanted = ["-m", "worldsize.worker", study, launch_id]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words[-4:] == wanted and _is_python(words[:-4]) and process.uids().real == os.getuid():
                yield process


def _is_python(words: list[str]) -> bool:
    """Nothing but an interpreter and its options."""
    return bool(words) and "python" in Path(words[0]).name and all(word.startswith("-") for word in words[1:])


if __name__ == "__main__":
    dump_stacks(*sys.argv[1:3])
