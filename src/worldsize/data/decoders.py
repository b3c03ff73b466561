"""Decoding processes: `decode.py` once a core, fed chunk by chunk through pipes.

Plain programs instead of a multiprocessing pool: they do not import the caller's main module again (a training script,
with torch), need no fork of a process with threads, and a pool's workers would stay behind when the caller is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from worldsize.data import decode
from worldsize.data.decode import Answer, Chunk, Target
from worldsize.errors import DataError


def decode_chunks(target: Target, chunks: Sequence[Chunk], workers: int | None) -> Generator[Answer]:
    """Answers in the order in which they come. One worker is this process itself; None: all cores it may use."""
    workers = min(len(os.sched_getaffinity(0)) if workers is None else workers, len(chunks))
    if workers <= 1:
        for chunk in chunks:
            yield decode.decode_chunk(target, chunk)
    else:
        yield from _in_processes(target, chunks, workers)


def _in_processes(target: Target, chunks: Sequence[Chunk], workers: int) -> Generator[Answer]:
    waiting = iter(chunks)
    processes = []
    try:
        # All are started before the first is fed: they import side by side.
        processes = [_start(target) for _ in range(workers)]
        with selectors.DefaultSelector() as selector:
            for process in processes:
                _send(process, next(waiting))
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select():
                    answer = _receive(key.data)
                    # Fed again before the answer is dealt with, so that no core waits for this process.
                    if (chunk := next(waiting, None)) is not None:
                        _send(key.data, chunk)
                    else:
                        selector.unregister(key.fileobj)
                    yield answer
    finally:
        for process in processes:
            _end(process)


def _start(target: Target) -> subprocess.Popen[str]:
    # The same search path, however this process came by it.
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100 - "" is the folder it is in
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", decode.__name__, json.dumps(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
    except OSError as error:
        raise DataError(f"no process to decode images can be started ({error}); decode with workers=1") from error


def _send(process: subprocess.Popen[str], chunk: Chunk) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended: reading its answer says so
        process.stdin.write(json.dumps(chunk) + "\n")
        process.stdin.flush()


def _receive(process: subprocess.Popen[str]) -> Answer:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise DataError(
            f"a process that decodes images ended with code {process.wait()}; if memory ran out (code -9), "
            "decode with fewer workers or to a smaller size"
        )
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise DataError(reply["error"])
    first_row, digests, skipped = reply["answer"]
    return Answer(first_row, digests, [(row, reason) for row, reason in skipped])


def _end(process: subprocess.Popen[str]) -> None:
    """Killed, not asked: at the normal end it has nothing left to do, and otherwise its rows are thrown away."""
    process.kill()
    process.communicate()
