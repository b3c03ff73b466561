"""A read-only web server for a local browser. It serves the files in FOLDER/report and nothing else.

It listens on 127.0.0.1 only, answers only requests addressed to 127.0.0.1 or localhost (not to another name that
resolves to 127.0.0.1), and never follows a path or a link out of the report.
"""

from __future__ import annotations

import os
import shutil
import socketserver
import stat
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

from worldsize.errors import InputError, StoreError

ADDRESS = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self' 'unsafe-inline' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response. Nothing is cached, because a report may change while its page is open."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".tex": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
}
"""Content types by suffix. They are listed here because the system's own table differs between machines."""


class ReportServer(ThreadingHTTPServer):
    """A server of the files below `root`, on 127.0.0.1."""

    daemon_threads = True

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of 127.0.0.1, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect during a response."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def report_server(folder: Path, port: int) -> ReportServer:
    """Return a server that is bound to a port but does not serve yet. Port 0 picks a free port."""
    root = folder / "report"
    if not (root / "index.html").is_file():
        raise StoreError(f"{root / 'index.html'} is missing; run `worldsize report {folder}` first")
    if not root.resolve().is_relative_to(folder.resolve()):
        raise StoreError(
            f"{root} is a link out of the study folder, to {root.resolve()}; replace the link with a folder, "
            "or serve the study that the report belongs to"
        )
    try:
        return ReportServer(root.resolve(), port)
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); choose another one, or 0 to pick a free port"
        ) from error


def find_file(root: Path, target: str) -> BinaryIO | None:
    """Open the requested file. Return None for anything that is not a regular file below `root`.

    The path is decoded only once, and links may only lead to other files of the report.
    """
    path = target.partition("?")[0]
    try:
        parts = unquote_to_bytes(path).decode().split("/")
    except UnicodeDecodeError:
        return None
    if parts == ["", ""]:
        parts = ["", "index.html"]
    if parts[0] or any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts[1:]):
        return None
    try:
        real = root.joinpath(*parts[1:]).resolve(strict=True)
        if not real.is_relative_to(root):
            return None
        # Links are resolved above. A link created since then is refused, and opening a pipe must not block.
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, RuntimeError):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "worldsize", ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def __getattr__(self, name: str) -> Any:
        """Refuse all other methods: the library looks up `do_POST`, `do_PUT` and whatever else a client sends."""
        if name.startswith("do_"):
            return self._refuse_method
        raise AttributeError(name)

    def _refuse_method(self) -> None:
        self._send_status(HTTPStatus.METHOD_NOT_ALLOWED if self._is_for_us() else HTTPStatus.FORBIDDEN)

    def _answer(self, *, body: bool) -> None:
        if not self._is_for_us():
            self._send_status(HTTPStatus.FORBIDDEN, body=body)
            return
        file = find_file(self.server.root, self.path)
        if file is None:
            self._send_status(HTTPStatus.NOT_FOUND, body=body)
            return
        with file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", TYPES.get(self._suffix(), "application/octet-stream"))
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            if body:
                shutil.copyfileobj(file, self.wfile)

    def _suffix(self) -> str:
        path = self.path.partition("?")[0]
        return ".html" if path == "/" else Path(path).suffix.lower()

    def _is_for_us(self) -> bool:
        """Whether there is exactly one Host header, with our address.

        A website that makes its own name resolve to 127.0.0.1 (DNS rebinding) sends that name instead.
        """
        port = self.server.server_port
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].strip().lower() in (f"{ADDRESS}:{port}", f"localhost:{port}")

    def _send_status(self, status: HTTPStatus, *, body: bool = True) -> None:
        text = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are private, and logging would print text from outside on the terminal."""
