"""Downloads from a real server on this machine that breaks off, lies, refuses, stalls and serves the wrong thing."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import socket
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize.data.fetch import CHUNK_BYTES, fetch
from worldsize.data.sets import SUMS_NAME, DataFile, DataSet, missing_or_damaged
from worldsize.errors import DataError

BODY = random.Random(7).randbytes(10_000)
OTHER = random.Random(8).randbytes(10_000)


@dataclass
class Page:
    """What the server does at one path."""

    body: bytes = BODY
    takes_ranges: bool = True
    announces: Callable[[int], int | None] = lambda length: length
    """Content-Length, given the true one; None sends none."""
    range_total: str | None = None
    """A lie in Content-Range about the length of the whole."""
    range_shift: int = 0
    """A lie in Content-Range about where the answer begins."""
    cuts: list[int] = field(default_factory=list)
    """Bytes that the next answers send before the connection drops."""
    statuses: list[int] = field(default_factory=list)
    """Errors that the next requests get."""
    redirect: str = ""
    stalls: int = 0
    """Requests that get no answer at all."""


@dataclass
class Site:
    base: str
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of every request."""
    sent_bytes: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str, page: Page) -> str:
        self.pages[path] = page
        return self.base + path

    def ranges(self) -> list[str | None]:
        return [header for _path, header in self.asked]


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, header = self.site, self.headers["Range"]
        page = site.pages[self.path]
        site.asked.append((self.path, header))
        if page.stalls:
            page.stalls -= 1
            site.closing.wait()
        elif page.redirect:
            self.send_response(302)
            self.send_header("Location", page.redirect)
            self.end_headers()
        elif page.statuses:
            self.send_error(page.statuses.pop(0))
        else:
            self.answer(page, int(header[6:-1]) if header and page.takes_ranges else None)

    def answer(self, page: Page, start: int | None) -> None:
        if start is not None and start >= len(page.body):
            self.send_error(416)
            return
        body = page.body[start or 0 :]
        self.send_response(200 if start is None else 206)
        if start is not None:
            total = page.range_total or str(len(page.body))
            self.send_header("Content-Range", f"bytes {start + page.range_shift}-{len(page.body) - 1}/{total}")
        length = page.announces(len(body))
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        body = body[: page.cuts.pop(0)] if page.cuts else body
        self.site.sent_bytes += len(body)  # first: the client may be done before this thread goes on
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Quiet: the tests look at `asked`."""


class Server(ThreadingHTTPServer):
    def handle_error(self, *_args: object) -> None:
        """A client that has seen enough closes the connection."""


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with Server(("127.0.0.1", 0), Handler) as running:
        site = Site(base=f"http://127.0.0.1:{running.server_address[1]}")
        Handler.site = site
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.closing.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def site(server: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    empty(server)
    return server


def empty(site: Site) -> None:
    site.pages.clear()
    site.asked.clear()
    site.sent_bytes = 0


def one_file(*urls: str, body: bytes = BODY) -> DataSet:
    file = DataFile(path="one/file.bin", size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest(), urls=urls)
    return DataSet(name="one", title="", license="", source="", files=(file,))


def bring(dataset: DataSet, root: Path, pauses: list[float] | None = None, timeout_s: float = 30) -> None:
    fetch(dataset, root, sleep=(pauses if pauses is not None else []).append, timeout_s=timeout_s)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {SUMS_NAME}


def put(root: Path, path: str, content: bytes) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def test_a_file_arrives_whole_and_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    dataset = one_file(site.url("/file", Page()))
    steps: list[tuple[DataFile, int, int]] = []
    fetch(dataset, tmp_path / "new" / "data", lambda *step: steps.append(step))
    folder = tmp_path / "new" / "data" / "one"
    assert (folder / "file.bin").read_bytes() == BODY
    assert names(folder) == {"file.bin"}
    assert [done for _file, done, _total in steps] == sorted(done for _file, done, _total in steps)
    assert steps[0] == (dataset.files[0], 0, len(BODY))
    assert steps[-1] == (dataset.files[0], len(BODY), len(BODY))
    bring(dataset, tmp_path / "new" / "data")
    assert site.ranges() == [None]


def test_a_file_of_many_chunks(site: Site, tmp_path: Path) -> None:
    body = random.Random(9).randbytes(3 * CHUNK_BYTES + 17)
    bring(one_file(site.url("/file", Page(body=body)), body=body), tmp_path)
    assert (tmp_path / "one/file.bin").read_bytes() == body


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 4_000), max_size=4))
def test_however_it_breaks_off_only_the_rest_is_asked_for(server: Site, cuts: list[int]) -> None:
    empty(server)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1")
        bring(one_file(server.url("/file", Page(cuts=list(cuts)))), Path(folder))
        assert (Path(folder) / "one/file.bin").read_bytes() == BODY
    arrived = [min(sum(cuts[:count]), len(BODY)) for count in range(len(cuts) + 1)]
    expected = [f"bytes={have}-" if have else None for have in arrived if have < len(BODY)]
    assert server.ranges() == expected
    assert server.sent_bytes == len(BODY)


def test_an_interruption_leaves_a_part_that_the_next_run_completes(site: Site, tmp_path: Path) -> None:
    dataset = one_file(site.url("/file", Page(cuts=[6_000])))

    def interrupt(_file: DataFile, done: int, _total: int) -> None:
        if done == 6_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(dataset, tmp_path, interrupt)
    assert names(tmp_path / "one") == {"file.bin.part"}
    assert (tmp_path / "one/file.bin.part").read_bytes() == BODY[:6_000]
    bring(dataset, tmp_path)
    assert site.ranges() == [None, "bytes=6000-"]
    assert (tmp_path / "one/file.bin").read_bytes() == BODY
    assert names(tmp_path / "one") == {"file.bin"}


@pytest.mark.parametrize(
    ("part", "page", "asked"),
    [
        (BODY[:4_000], Page(takes_ranges=False), ["bytes=4000-"]),
        (OTHER[:4_000], Page(), ["bytes=4000-", None]),
        (BODY[:4_000], Page(range_shift=1), ["bytes=4000-", None]),
        (BODY[:4_000], Page(range_total="9999"), ["bytes=4000-", None]),
        (BODY[:4_000], Page(range_total="*"), ["bytes=4000-"]),
        (BODY[:4_000], Page(statuses=[416]), ["bytes=4000-", None]),
        (BODY, Page(), []),
        (OTHER, Page(), [None]),
        (BODY + b"more", Page(), [None]),
    ],
    ids=[
        "server ignores the range",
        "content changed since",
        "range begins elsewhere",
        "range of another file",
        "range of unknown length",
        "range refused",
        "part is complete",
        "part is complete and wrong",
        "part is too long",
    ],
)
def test_a_part_is_resumed_or_begun_again(
    site: Site, tmp_path: Path, part: bytes, page: Page, asked: list[str | None]
) -> None:
    put(tmp_path, "one/file.bin.part", part)
    bring(one_file(site.url("/file", page)), tmp_path)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY
    assert names(tmp_path / "one") == {"file.bin"}
    assert site.ranges() == asked


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page(announces=lambda length: length + 1), "offers 10,001 bytes, but the file has 10,000"),
        (Page(announces=lambda length: length - 1), "offers 9,999 bytes, but the file has 10,000"),
        (Page(body=BODY[:-1], announces=lambda _length: 10_000), "the connection ended after 9,999 of 10,000 bytes"),
        (Page(body=BODY[:-1], announces=lambda _length: None), "the connection ended after 9,999 of 10,000 bytes"),
        (Page(body=BODY + b"!", announces=lambda _length: None), "sends more than the 10,000 bytes"),
    ],
    ids=["announces too much", "announces too little", "sends too little", "just ends", "sends too much"],
)
def test_a_wrong_length_is_never_accepted(site: Site, tmp_path: Path, page: Page, words: str) -> None:
    page.takes_ranges = False
    with pytest.raises(DataError, match=words):
        bring(one_file(site.url("/file", page)), tmp_path)
    left = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert left in ({}, {"file.bin.part": BODY[:-1]})


def test_more_bytes_than_announced_are_not_read(site: Site, tmp_path: Path) -> None:
    bring(one_file(site.url("/file", Page(body=BODY + b"!", announces=lambda length: length - 1))), tmp_path)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY


@pytest.mark.parametrize("kept", [0, 4_000])
def test_wrong_bytes_are_thrown_away_and_named_by_both_checksums(site: Site, tmp_path: Path, kept: int) -> None:
    if kept:
        put(tmp_path, "one/file.bin.part", OTHER[:kept])
    dataset = one_file(site.url("/file", Page(body=OTHER)))
    with pytest.raises(DataError) as caught:
        bring(dataset, tmp_path)
    assert dataset.files[0].sha256 in str(caught.value)
    assert hashlib.sha256(OTHER).hexdigest() in str(caught.value)
    assert names(tmp_path / "one") == set()


@pytest.mark.parametrize("page", [Page(statuses=[404] * 9), Page(body=OTHER), Page(body=b"<html>Log in</html>")])
def test_the_next_address_is_tried_at_once(site: Site, tmp_path: Path, page: Page) -> None:
    pauses: list[float] = []
    bring(one_file(site.url("/first", page), site.url("/second", Page())), tmp_path, pauses)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY
    assert [path for path, _header in site.asked] == ["/first", "/second"]
    assert pauses == []


def test_what_one_address_began_the_next_completes(site: Site, tmp_path: Path) -> None:
    bring(one_file(site.url("/first", Page(cuts=[2_500])), site.url("/second", Page())), tmp_path)
    assert site.asked == [("/first", None), ("/second", "bytes=2500-")]
    assert (tmp_path / "one/file.bin").read_bytes() == BODY


def test_when_all_addresses_refuse_each_is_named_and_nobody_waits(site: Site, tmp_path: Path) -> None:
    pauses: list[float] = []
    first, second = site.url("/first", Page(statuses=[404])), site.url("/second", Page(statuses=[403]))
    with pytest.raises(DataError) as caught:
        bring(one_file(first, second), tmp_path, pauses)
    for words in (f"{first}: HTTP 404", f"{second}: HTTP 403", "`worldsize data fetch one`", "login node"):
        assert words in str(caught.value)
    assert str(tmp_path / "one/file.bin") in str(caught.value)
    assert pauses == []


def test_a_busy_server_is_asked_again_after_growing_pauses(site: Site, tmp_path: Path) -> None:
    pauses: list[float] = []
    bring(one_file(site.url("/file", Page(statuses=[503, 429, 500]))), tmp_path, pauses)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY
    assert pauses == [2, 4, 8]


def test_attempts_count_only_those_that_bring_nothing(site: Site, tmp_path: Path) -> None:
    pauses: list[float] = []
    bring(one_file(site.url("/file", Page(cuts=[1_000] * 9))), tmp_path, pauses)
    assert pauses == [1] * 9
    with pytest.raises(DataError, match="HTTP 503"):
        bring(one_file(site.url("/busy", Page(statuses=[503] * 99))), tmp_path / "other", pauses)
    assert [path for path, _header in site.asked].count("/busy") == 5


def test_a_server_that_stalls_is_left_and_asked_again(site: Site, tmp_path: Path) -> None:
    bring(one_file(site.url("/file", Page(stalls=1))), tmp_path, timeout_s=0.3)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY


def test_no_server_at_all(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/file"
        with pytest.raises(DataError, match="Connection refused"):
            bring(one_file(url), tmp_path)


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_only_http_addresses_are_opened(tmp_path: Path, scheme: str) -> None:
    source = put(tmp_path, "source", BODY)
    with pytest.raises(DataError, match="not an http or https address"):
        bring(one_file(f"{scheme}://{source}"), tmp_path)


def test_a_redirection_is_followed_but_not_out_of_http(site: Site, tmp_path: Path) -> None:
    site.url("/file", Page())
    bring(one_file(site.url("/moved", Page(redirect="/file"))), tmp_path)
    assert (tmp_path / "one/file.bin").read_bytes() == BODY
    source = put(tmp_path, "source", BODY)
    with pytest.raises(DataError, match="not allowed"):
        bring(one_file(site.url("/trap", Page(redirect=f"file://{source}"))), tmp_path / "other")


def test_only_what_is_missing_or_damaged_is_fetched(site: Site, tmp_path: Path) -> None:
    (whole,) = one_file(site.url("/whole", Page())).files
    damaged = replace(whole, path="one/damaged.bin", urls=(site.url("/damaged", Page()),))
    missing = replace(whole, path="one/missing.bin", urls=(site.url("/missing", Page()),))
    put(tmp_path, "one/file.bin", BODY)
    put(tmp_path, "one/damaged.bin", OTHER)
    dataset = replace(one_file(), files=(whole, damaged, missing))
    bring(dataset, tmp_path)
    assert site.asked == [("/damaged", None), ("/missing", None)]
    assert missing_or_damaged(dataset, tmp_path, deep=True, cached=False) == []


def test_of_many_that_fetch_at_once_one_downloads(site: Site, tmp_path: Path) -> None:
    dataset = one_file(site.url("/file", Page()))
    others = [threading.Thread(target=bring, args=(dataset, tmp_path)) for _ in range(3)]

    def start_others(_file: DataFile, done: int, _total: int) -> None:
        if done == 0:
            with pytest.raises(Timeout):
                FileLock(tmp_path / ".one.lock", timeout=0).acquire()
            for thread in others:
                thread.start()

    fetch(dataset, tmp_path, start_others)
    for thread in others:
        thread.join()
    assert site.ranges() == [None]
    assert (tmp_path / "one/file.bin").read_bytes() == BODY


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    root = put(tmp_path, "a file", b"")
    with pytest.raises(DataError, match=r"data set one cannot be written to .*--data FOLDER"):
        bring(one_file(site.url("/file", Page())), root)


@dataclass(frozen=True)
class Entry:
    """One member of a tar file, with the type and the link that it claims to be."""

    name: str
    body: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""


A, B = Entry("set/a.bin", BODY), Entry("set/b.bin", OTHER)


def packed(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.linkname, info.size = entry.kind, entry.link, len(entry.body)
            tar.addfile(info, io.BytesIO(entry.body))
    return buffer.getvalue()


def packed_set(site: Site, archive: bytes) -> DataSet:
    (described,) = one_file(site.url("/packed.tar.gz", Page(body=archive)), body=archive).files
    files = tuple(
        DataFile(path=f"one/{entry.name}", size_bytes=len(entry.body), sha256=hashlib.sha256(entry.body).hexdigest())
        for entry in (A, B)
    )
    return replace(one_file(), files=files, archive=replace(described, path="one/packed.tar.gz"))


def everything(root: Path) -> set[str]:
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {path for path in paths if not path.endswith((SUMS_NAME, ".lock"))}


@pytest.mark.parametrize(
    "entries",
    [
        [A, B],
        [Entry("set", kind=tarfile.DIRTYPE), B, Entry("set/readme.html", b"hello"), A],
        [Entry("./set/a.bin", BODY), Entry("./set/b.bin", OTHER)],
        [
            Entry("../evil", b"evil"),
            Entry("../../evil", b"evil"),
            Entry("/tmp/evil", b"evil"),
            Entry("set/../../evil", b"evil"),
            Entry("set", kind=tarfile.SYMTYPE, link="../.."),
            Entry("set/link", kind=tarfile.SYMTYPE, link="/etc/passwd"),
            A,
            B,
        ],
    ],
    ids=["plain", "with more inside", "dotted names", "hostile"],
)
def test_an_archive_gives_the_files_of_the_set_and_nothing_else(
    site: Site, tmp_path: Path, entries: list[Entry]
) -> None:
    bring(packed_set(site, packed(*entries)), tmp_path / "in" / "data")
    assert everything(tmp_path) == {"in/data/one/set/a.bin", "in/data/one/set/b.bin"}
    assert (tmp_path / "in/data/one/set/a.bin").read_bytes() == BODY
    assert (tmp_path / "in/data/one/set/b.bin").read_bytes() == OTHER


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (packed(Entry("set/a.bin", kind=tarfile.SYMTYPE, link="/etc/passwd"), B), "not a plain file of 10,000 bytes"),
        (packed(Entry("set/a.bin", kind=tarfile.LNKTYPE, link="set/b.bin"), B), "not a plain file of 10,000 bytes"),
        (packed(Entry("set/a.bin", kind=tarfile.DIRTYPE), B), "not a plain file of 10,000 bytes"),
        (packed(Entry("set/a.bin", BODY + b"!"), B), "not a plain file of 10,000 bytes"),
        (packed(Entry("set/a.bin", OTHER), B), f"{hashlib.sha256(BODY).hexdigest()} expected, "),
        (packed(B), "does not contain set/a.bin"),
        (packed(Entry("../set/a.bin", BODY), B), "does not contain set/a.bin"),
        (packed(A, B)[:5_000], "not a complete gzipped tar file"),
        (packed(A, B)[:5_000] + OTHER, "not a complete gzipped tar file"),
        (gzip.compress(b"no tar file", mtime=0), "not a complete gzipped tar file"),
        (BODY, "not a complete gzipped tar file"),
    ],
)
def test_an_archive_that_is_not_what_it_should_be(site: Site, tmp_path: Path, archive: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        bring(packed_set(site, archive), tmp_path)
    assert "run `worldsize data fetch one` again" in str(caught.value)
    assert not (tmp_path / "one/set/a.bin").exists()
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_an_archive_put_there_by_hand_needs_no_network_and_stays(site: Site, tmp_path: Path) -> None:
    archive = packed(A, B)
    put(tmp_path, "one/packed.tar.gz", archive)
    bring(packed_set(site, archive), tmp_path)
    assert site.asked == []
    assert everything(tmp_path) == {"one/set/a.bin", "one/set/b.bin", "one/packed.tar.gz"}


def test_a_damaged_archive_put_there_by_hand_is_not_used(site: Site, tmp_path: Path) -> None:
    archive = packed(A, B)
    put(tmp_path, "one/packed.tar.gz", archive[:-1])
    bring(packed_set(site, archive), tmp_path)
    assert site.ranges() == [None]
    assert (tmp_path / "one/set/a.bin").read_bytes() == BODY


def test_only_the_damaged_member_is_unpacked_again(site: Site, tmp_path: Path) -> None:
    dataset = packed_set(site, packed(A, B))
    bring(dataset, tmp_path)
    kept = (tmp_path / "one/set/b.bin").stat()
    put(tmp_path, "one/set/a.bin", OTHER)
    bring(dataset, tmp_path)
    assert (tmp_path / "one/set/a.bin").read_bytes() == BODY
    assert (tmp_path / "one/set/b.bin").stat().st_ino == kept.st_ino
