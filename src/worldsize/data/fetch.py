"""Downloads that survive a bad connection: they resume after an interruption, try several addresses and are verified.

A file is downloaded as `NAME.part` and renamed only when its SHA-256 matches, so nobody reads an incomplete file.
Because size and checksum are known in advance, a download can resume at any address that has the file. If the pieces do
not match, the file is downloaded again from its first byte.
"""

from __future__ import annotations

import http.client
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from worldsize.data.sets import DataFile, DataSet, file_sha256, find_fault, missing_or_damaged, remember_sum
from worldsize.errors import DataError
from worldsize.folder.files import sync

CHUNK_BYTES = 1 << 18
MAX_PAUSE_S = 30.0
TEMPORARY_STATUS = {408, 425, 429, *range(500, 600)}
"""HTTP status codes of errors that can be temporary."""

OnBytes = Callable[[DataFile, int, int], None]
"""Called with the file, its bytes so far and its total bytes."""


class _TemporaryError(Exception):
    """This attempt failed, but the next one might succeed."""


class _PermanentError(Exception):
    """This address does not have the file; trying again does not help."""


def fetch(
    dataset: DataSet,
    root: Path,
    on_progress: OnBytes | None = None,
    *,
    attempts: int = 5,
    timeout_s: float = 30.0,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Download the missing files of `dataset` into `root` and verify them.

    Gives up after `attempts` consecutive attempts without a new byte. If several processes start at once, one of them
    downloads and the others wait.
    """
    if not missing_or_damaged(dataset, root, deep=True, cached=False):
        return
    download = _Download(
        set_name=dataset.name,
        root=root,
        on_progress=on_progress or (lambda _file, _done, _total: None),
        attempts=attempts,
        timeout_s=timeout_s,
        sleep=sleep,
    )
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{dataset.name}.lock"):
            # Checked again: the previous holder of the lock may have downloaded the set.
            needed = [fault.file for fault in missing_or_damaged(dataset, root, deep=True)]
            if dataset.archive is None:
                for file in needed:
                    _publish(download.checked_part(file), file.under(root), file.sha256)
            elif needed:
                _fetch_packed(dataset.archive, needed, download)
    except OSError as error:
        raise DataError(
            f"data set {dataset.name} cannot be written to {root}: {error}; free some space, fix the permissions, or "
            f"choose another folder with --data FOLDER or WORLDSIZE_DATA"
        ) from error


def _fetch_packed(archive: DataFile, needed: list[DataFile], download: _Download) -> None:
    """Use and keep an existing archive. A downloaded archive stays a .part file and is removed once unpacked."""
    if find_fault(archive, download.root, deep=True, cached=False) is None:
        unpack(archive.under(download.root), download.set_name, needed, download.root)
        return
    part = download.checked_part(archive)
    unpack(part, download.set_name, needed, download.root)
    part.unlink()


def unpack(packed: Path, set_name: str, needed: Iterable[DataFile], root: Path) -> None:
    """Extract only the needed files from the tar file `packed`, which is in the folder where they belong.

    The entry in `DATASETS` decides where a file goes, never a name, link or mode inside the archive.
    """
    remaining = {file.under(root).relative_to(packed.parent).as_posix(): file for file in needed}
    remedy = f"remove {packed} and run `worldsize data fetch {set_name}` again"
    try:
        with tarfile.open(packed, "r|gz") as tar:
            for member in tar:
                file = remaining.pop(member.name.removeprefix("./"), None)
                if file is not None:
                    _unpack_member(tar, member, file, root, remedy)
                if not remaining:
                    break
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{packed} is not a complete gzipped tar file ({error}); {remedy}") from error
    if remaining:
        raise DataError(f"{packed} does not contain {', '.join(remaining)}; {remedy}")


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, file: DataFile, root: Path, remedy: str) -> None:
    source = tar.extractfile(member) if member.isreg() else None
    if source is None or member.size != file.size_bytes:
        raise DataError(f"{member.name} in the archive is not a plain file of {file.size_bytes:,} bytes; {remedy}")
    part = file.part_under(root)
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK_BYTES)
    sha256 = file_sha256(part)
    if sha256 != file.sha256:
        part.unlink()
        raise DataError(f"{member.name} in the archive: sha256 {file.sha256} expected, {sha256} found; {remedy}")
    _publish(part, file.under(root), file.sha256)


def _publish(part: Path, final: Path, sha256: str) -> None:
    """Give the verified .part file its final name, in a way that survives a power failure."""
    sync(part)
    part.replace(final)
    sync(final.parent)
    remember_sum(final, sha256)


@dataclass(frozen=True, kw_only=True)
class _Download:
    set_name: str
    root: Path
    on_progress: OnBytes
    attempts: int
    timeout_s: float
    sleep: Callable[[float], None]

    def checked_part(self, file: DataFile) -> Path:
        """Download `file` completely and verify its checksum. All addresses are tried before the first pause."""
        part = file.part_under(self.root)
        part.parent.mkdir(parents=True, exist_ok=True)
        urls = list(file.urls)
        failures: dict[str, str] = {}
        largest_size, idle_attempts = _size(part), 0
        while urls and idle_attempts < self.attempts:
            if failures:
                self.sleep(min(2.0**idle_attempts, MAX_PAUSE_S))
            for url in tuple(urls):
                try:
                    self._attempt(url, file, part)
                except _TemporaryError as error:
                    failures[url] = str(error)
                except _PermanentError as error:
                    failures[url] = str(error)
                    urls.remove(url)
                else:
                    return part
            idle_attempts = 0 if _size(part) > largest_size else idle_attempts + 1
            largest_size = max(largest_size, _size(part))
        reasons = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
        raise DataError(
            f"{file.path} could not be downloaded ({reasons}); run `worldsize data fetch {self.set_name}` again with "
            f"internet access (on a cluster: on the login node), or copy the file to {file.under(self.root)}"
        )

    def _attempt(self, url: str, file: DataFile, part: Path) -> None:
        size = _size(part)
        if size < file.size_bytes:
            self._receive(url, file, part, size)
        sha256 = file_sha256(part)
        if sha256 != file.sha256:
            part.unlink()
            mismatch = f"sha256 {file.sha256} expected, {sha256} received"
            # With an earlier part, the fault may lie there: the next attempt downloads the whole file.
            raise _TemporaryError(mismatch) if size else _PermanentError(mismatch)

    def _receive(self, url: str, file: DataFile, part: Path, offset: int) -> None:
        with self._open(url, part, offset) as response:
            start = _first_byte(response, file, part, offset)
            done = start
            with part.open("ab" if start else "wb") as out:
                self.on_progress(file, done, file.size_bytes)
                while done <= file.size_bytes:
                    try:
                        chunk = response.read1(CHUNK_BYTES)
                    except (OSError, http.client.HTTPException) as error:
                        raise _TemporaryError(_after(error, done, file)) from error
                    if not chunk:
                        break
                    out.write(chunk)
                    done += len(chunk)
                    self.on_progress(file, min(done, file.size_bytes), file.size_bytes)
        if done > file.size_bytes:
            part.unlink()
            raise _PermanentError(f"sends more than the {file.size_bytes:,} bytes of the file")
        if done < file.size_bytes:
            raise _TemporaryError(_after("the connection ended", done, file))

    def _open(self, url: str, part: Path, offset: int) -> http.client.HTTPResponse:
        if urlsplit(url).scheme not in ("http", "https"):
            raise _PermanentError("not an http or https address")
        # With compression, lengths and ranges would not be those of the file.
        request = urllib.request.Request(url, headers={"User-Agent": "worldsize", "Accept-Encoding": "identity"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        try:
            response: http.client.HTTPResponse = _opener().open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            status = f"HTTP {error.code} {error.msg}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                part.unlink()
                raise _TemporaryError(status) from error
            raise (_TemporaryError if error.code in TEMPORARY_STATUS else _PermanentError)(status) from error
        except (OSError, http.client.HTTPException) as error:
            raise _TemporaryError(str(getattr(error, "reason", error))) from error
        return response


def _first_byte(response: http.client.HTTPResponse, file: DataFile, part: Path, offset: int) -> int:
    """Return the offset at which the response begins. A server can ignore the range and send the whole file."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        if response.length not in (None, file.size_bytes):
            raise _PermanentError(f"offers {response.length:,} bytes, but the file has {file.size_bytes:,}")
        return 0
    content_range = response.headers.get("Content-Range", "")
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if span is None or int(span[1]) != offset or span[2] not in ("*", str(file.size_bytes)):
        part.unlink(missing_ok=True)
        raise _TemporaryError(f"answers {content_range!r} to a request from byte {offset:,} of {file.size_bytes:,}")
    return offset


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that uses the proxies of the environment and does not follow redirects to ftp: or file:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _after(reason: object, done: int, file: DataFile) -> str:
    return f"{reason} after {done:,} of {file.size_bytes:,} bytes"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
