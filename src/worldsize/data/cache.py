"""Decode images once, on all cores, into one array that every rank of a host memory-maps.

<cache>/64x64-3f2a.../
  images.npy   rows of height x width x 3 bytes, in the order of the sources, without skipped files
  index.json   skipped files with reasons, and a checksum of the content

The key of an entry consists of the image size and the name, length in bytes and modification time of every source.
These come with the listing, so a second start opens no image; hashing the bytes would read the whole data set again. If
the content of a file changes but its length and time do not, the change goes unnoticed: remove the cache folder.

`data/decode.py` runs once per core and gets its chunks through pipes. These are plain programs instead of a
multiprocessing pool: they do not import the caller's main module (a training script, with torch) and do not fork a
process with threads, and a pool's workers would survive when the caller is killed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
from filelock import FileLock

from worldsize.data import decode
from worldsize.data.decode import Chunk, DecodedChunk, Output
from worldsize.errors import DataError
from worldsize.folder.files import read_json, write_json


def decode_chunks(output: Output, chunks: Sequence[Chunk], workers: int | None) -> Generator[DecodedChunk]:
    """Yield chunks in the order in which they finish. `workers=1` decodes in this process; None uses all its cores."""
    workers = min(len(os.sched_getaffinity(0)) if workers is None else workers, len(chunks))
    if workers <= 1:
        for chunk in chunks:
            yield decode.decode_chunk(output, chunk)
    else:
        yield from _in_processes(output, chunks, workers)


def _in_processes(output: Output, chunks: Sequence[Chunk], workers: int) -> Generator[DecodedChunk]:
    remaining_chunks = iter(chunks)
    processes = []
    try:
        # All processes start before the first gets work, so that they import in parallel.
        processes = [_start_decoder(output) for _ in range(workers)]
        with selectors.DefaultSelector() as selector:
            for process in processes:
                _send(process, next(remaining_chunks))
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select():
                    decoded = _receive(key.data)
                    # Send more work before handling the result, so that no core waits for this process.
                    if (chunk := next(remaining_chunks, None)) is not None:
                        _send(key.data, chunk)
                    else:
                        selector.unregister(key.fileobj)
                    yield decoded
    finally:
        for process in processes:
            _end_decoder(process)


def _start_decoder(output: Output) -> subprocess.Popen[str]:
    # The same search path as in this process, however it was set.
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100 - "" is the folder it is in
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", decode.__name__, json.dumps(output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
    except OSError as error:
        raise DataError(f"cannot start a process to decode images ({error}); decode with workers=1") from error


def _send(process: subprocess.Popen[str], chunk: Chunk) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended; reading its answer reports that
        process.stdin.write(json.dumps(chunk) + "\n")
        process.stdin.flush()


def _receive(process: subprocess.Popen[str]) -> DecodedChunk:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise DataError(
            f"an image decoding process ended with code {process.wait()}; if memory ran out (code -9), "
            "decode with fewer workers or to a smaller size"
        )
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise DataError(reply["error"])
    first_row, digests, skipped = reply["answer"]
    return DecodedChunk(first_row, digests, [(row, reason) for row, reason in skipped])


def _end_decoder(process: subprocess.Popen[str]) -> None:
    """Kill a process: at a normal end it has nothing left to do, and otherwise its rows are discarded."""
    process.kill()
    process.communicate()


FORMAT = 1
"""Part of the key. Increase it when decoding would give different pixels."""
CHUNK_FILES = 64
CHUNK_BYTES = 8 * 1024**2
MAX_NAMED = 3
"""Number of bad files that an error message names; it only counts the rest."""

OnProgress = Callable[[int, int], None]
"""Called with the number of images done and the total."""
Skipped = tuple[str, str]
"""File name and reason."""


class Source(NamedTuple):
    """One image file, as listed."""

    name: str
    """Name in messages, relative to the data set."""
    path: str
    length: int
    changed_ns: int


@dataclass(frozen=True, kw_only=True)
class Decoded:
    images: npt.NDArray[np.uint8]
    """Memory-mapped, copy on write: torch wants writable arrays, and the file must not change."""
    kept: npt.NDArray[np.int64]
    """Index of the source of each row."""
    skipped: list[Skipped]
    content_sha256: str
    """sha256 over the names and bytes of all sources: identifies a data set wherever it is stored."""


@dataclass(frozen=True, kw_only=True)
class DecodeRequest:
    """Images to decode, in this order, at this size."""

    sources: Sequence[Source]
    height: int
    width: int

    def key(self) -> str:
        listed = [(source.name, source.length, source.changed_ns) for source in self.sources]
        content = json.dumps([FORMAT, self.height, self.width, listed])
        return f"{self.width}x{self.height}-{hashlib.sha256(content.encode()).hexdigest()[:32]}"

    def row_bytes(self) -> int:
        return self.height * self.width * 3

    def shape(self, rows: int) -> tuple[int, int, int, int]:
        return rows, self.height, self.width, 3

    def chunks(self) -> list[Chunk]:
        """Chunks small enough that the cores finish together, large enough that each is one write."""
        files = max(1, min(CHUNK_FILES, CHUNK_BYTES // self.row_bytes()))
        return [
            Chunk(first, [source.path for source in self.sources[first : first + files]])
            for first in range(0, len(self.sources), files)
        ]


def decode_once(
    request: DecodeRequest, cache: Path, *, workers: int | None = None, on_progress: OnProgress | None = None
) -> Decoded:
    """Read the images from the cache, or decode them into it. If several processes start at once, one decodes and the
    others wait."""
    if min(request.height, request.width) < 1:
        raise DataError(f"image size {request.width} x {request.height} is too small; use at least 1 pixel per side")
    entry = cache / request.key()
    decoded = _read(entry, request)
    if decoded is not None:
        return decoded
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # One lock for the whole cache: two data sets at once would not be faster, because each uses all cores.
        with FileLock(cache / "decoding.lock"):
            decoded = _read(entry, request)
            if decoded is None:
                _remove_leftovers(cache)
                _write(entry, request, workers, on_progress)
                decoded = _read(entry, request)
    except OSError as error:
        needed_mb = len(request.sources) * request.row_bytes() / 1e6
        raise DataError(
            f"cannot store {needed_mb:.0f} MB of decoded images in {cache} ({error}); free some space or choose "
            "another folder with WORLDSIZE_CACHE"
        ) from error
    if decoded is None:
        raise DataError(f"{entry} cannot be read back after writing; choose another folder with WORLDSIZE_CACHE")
    return decoded


def list_some(skipped: Sequence[Skipped]) -> str:
    """Format the first bad files with their reasons, for an error message."""
    examples = "; ".join(f"{name!r}: {reason}" for name, reason in skipped[:MAX_NAMED])
    return examples + (f"; and {len(skipped) - MAX_NAMED:,} more" if len(skipped) > MAX_NAMED else "")


def _read(entry: Path, request: DecodeRequest) -> Decoded | None:
    """Read an entry; None if it does not exist or is damaged."""
    try:
        index: dict[str, Any] = read_json(entry / "index.json")
        skipped = {int(row): str(reason) for row, reason in index["skipped"]}
        content_sha256 = str(index["content"])
        images = np.load(entry / "images.npy", mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    rows = range(len(request.sources))
    if images.dtype != np.uint8 or images.shape != request.shape(len(rows) - len(skipped)):
        return None
    return Decoded(
        images=images,
        kept=np.array([row for row in rows if row not in skipped], np.int64),
        skipped=[(request.sources[row].name, reason) for row, reason in sorted(skipped.items())],
        content_sha256=content_sha256,
    )


def _write(entry: Path, request: DecodeRequest, workers: int | None, on_progress: OnProgress | None) -> None:
    """Write an entry under a temporary name and rename it when complete, so interrupted decoding leaves no entry."""
    temporary = Path(tempfile.mkdtemp(dir=entry.parent, prefix=_leftover_prefix()))
    try:
        array = temporary / "images.npy"
        array.touch(mode=0o644)
        decoded = _decode(array, request, workers, on_progress)
        skipped = [skip for chunk in decoded for skip in chunk.skipped]
        if len(skipped) == len(request.sources):
            bad = [(request.sources[row].name, reason) for row, reason in skipped]
            raise DataError(f"none of the {len(skipped):,} images can be decoded ({list_some(bad)}); check the files")
        _finish(array, request, {row for row, _ in skipped})
        digests = [digest for chunk in decoded for digest in chunk.digests]
        named_digests = [(source.name, digest) for source, digest in zip(request.sources, digests, strict=True)]
        content = hashlib.sha256(json.dumps(named_digests).encode()).hexdigest()
        write_json(
            temporary / "index.json",
            {"content": content, "files": len(named_digests), "skipped": skipped, "pillow": PIL.__version__},
        )
        temporary.chmod(0o755)
        _rename(temporary, entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _decode(
    array: Path, request: DecodeRequest, workers: int | None, on_progress: OnProgress | None
) -> list[DecodedChunk]:
    """Decode each image into its row of the array file. Return the chunks in the order of the sources."""
    output = Output(str(array), len(_npy_header(request.shape(len(request.sources)))), request.height, request.width)
    decoded: list[DecodedChunk] = []
    done = 0
    with closing(decode_chunks(output, request.chunks(), workers)) as finished_chunks:
        for chunk in finished_chunks:
            decoded.append(chunk)
            done += len(chunk.digests)
            if on_progress is not None:
                on_progress(done, len(request.sources))
    return sorted(decoded, key=lambda chunk: chunk.first_row)


def _finish(path: Path, request: DecodeRequest, skipped: set[int]) -> None:
    """Close the gaps of skipped rows and write the header, for which decoding left space."""
    rows = len(request.sources)
    header_bytes = len(_npy_header(request.shape(rows)))
    if skipped:
        array = np.memmap(path, np.uint8, "r+", offset=header_bytes, shape=request.shape(rows))
        for new, old in enumerate(row for row in range(rows) if row not in skipped):
            if new != old:
                array[new] = array[old]
        array.flush()
    header = _npy_header(request.shape(rows - len(skipped)))
    # numpy pads the header for growth along the first axis, so a shorter array has a header of the same size.
    assert len(header) == header_bytes
    with path.open("r+b") as file:
        file.write(header)
        file.truncate(header_bytes + (rows - len(skipped)) * request.row_bytes())
        file.flush()
        os.fsync(file.fileno())


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """Return the .npy header. It is written last, not by open_memmap: the number of rows is known only then."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _rename(temporary: Path, entry: Path) -> None:
    shutil.rmtree(entry, ignore_errors=True)  # an existing entry is damaged, or it would have been used
    try:
        temporary.rename(entry)
    except OSError:
        # On a shared disk without locks across hosts, another host was faster. Its entry is just as good.
        if not entry.is_dir():
            raise


def _leftover_prefix() -> str:
    """Return a prefix with the host name: without locks across hosts, unfinished work of other hosts must stay."""
    return f".decoding@{socket.gethostname()}@"


def _remove_leftovers(cache: Path) -> None:
    """Remove what a killed process left behind. Under the lock, no other process on this host is decoding."""
    for leftover in cache.iterdir():
        if leftover.name.startswith(_leftover_prefix()):
            shutil.rmtree(leftover, ignore_errors=True)
