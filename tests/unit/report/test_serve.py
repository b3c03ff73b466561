"""The report's server, over real sockets: nothing but the report, to nobody but this machine, and nothing written."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worldsize.errors import InputError, StoreError
from worldsize.report.write.serve import HEADERS, ReportServer, report_server

SECRET = b"not part of the report"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    home = tmp_path / "study"
    report = home / "report"
    (report / "figures").mkdir(parents=True)
    (report / "index.html").write_text("<h1>report</h1>")
    (report / "figures" / "a b.svg").write_text("<svg/>")
    (home / "record.json").write_bytes(SECRET)
    (tmp_path / "report-other").mkdir()
    (tmp_path / "report-other" / "secret.txt").write_bytes(SECRET)
    (home / "report-beside").mkdir()
    (home / "report-beside" / "secret.txt").write_bytes(SECRET)
    (report / "out.txt").symlink_to(home / "record.json")
    (report / "elsewhere").symlink_to(tmp_path)
    (report / "inside.html").symlink_to(report / "index.html")
    (report / "loop").symlink_to(report / "loop")
    os.mkfifo(report / "pipe")
    return home


@pytest.fixture
def server(study: Path) -> Iterator[ReportServer]:
    with report_server(study, 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(
    server: ReportServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def raw(server: ReportServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as sent:
        sent.sendall(request)
        sent.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sent.recv(65536), b""))


def test_it_listens_on_this_machine_alone(server: ReportServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/", "text/html; charset=utf-8", b"<h1>report</h1>"),
        ("/index.html?again=1", "text/html; charset=utf-8", b"<h1>report</h1>"),
        ("/inside.html", "text/html; charset=utf-8", b"<h1>report</h1>"),
        ("/figures/a%20b.svg", "image/svg+xml", b"<svg/>"),
    ],
)
def test_files_of_the_report_are_served(server: ReportServer, path: str, kind: str, body: bytes) -> None:
    status, found, headers = ask(server, path)
    assert (status, found, headers["Content-Type"]) == (200, body, kind)
    assert ask(server, path, "HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/../record.json",
        "/figures/../../record.json",
        "/figures/../index.html",
        "/%2e%2e/record.json",
        "/..%2frecord.json",
        "/%252e%252e/record.json",
        "/..%5crecord.json",
        "/figures/..%2f..%2frecord.json",
        "/../report-beside/secret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/out.txt",
        "/elsewhere/study/record.json",
        "/elsewhere/",
        "/loop",
        "/pipe",
        "/figures",
        "/figures/",
        "/.",
        "/index.html/",
        "/index.html%00.txt",
        "/%ff",
        "/" + "a" * 5000,
        "/nothing",
    ],
)
def test_nothing_else_is(server: ReportServer, path: str) -> None:
    status, body, _ = ask(server, path)
    assert (status, body) == (404, b"404 Not Found\n")


@pytest.mark.parametrize(
    "request_line",
    [b"GET http://127.0.0.1/index.html HTTP/1.1", b"GET index.html HTTP/1.1", b"GET ../record.json HTTP/1.1"],
)
def test_only_paths_are_paths(server: ReportServer, request_line: bytes) -> None:
    host = f"Host: localhost:{server.server_port}".encode()
    answer = raw(server, request_line + b"\r\n" + host + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 404")
    assert SECRET not in answer


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example", "evil.example:{port}", "[::1]:{port}", " "])
def test_a_request_to_another_name_is_refused(server: ReportServer, host: str) -> None:
    assert ask(server, "/", host=host.format(port=server.server_port))[0] == 403


def test_localhost_is_a_name_of_this_machine(server: ReportServer) -> None:
    assert ask(server, "/", host=f"LocalHost:{server.server_port}")[0] == 200


def test_no_host_or_two_are_refused(server: ReportServer) -> None:
    mine = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    assert b" 403 " in raw(server, b"GET / HTTP/1.0\r\n\r\n")
    assert b" 403 " in raw(server, b"GET / HTTP/1.1\r\n" + mine + b"Host: evil.example\r\n\r\n")
    assert b"report" not in raw(server, b"GET /\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND"])
def test_reading_is_all_that_is_allowed(server: ReportServer, method: str, study: Path) -> None:
    status, _, headers = ask(server, "/index.html", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert ask(server, "/", method, host="evil.example")[0] == 403
    assert (study / "report" / "index.html").read_text() == "<h1>report</h1>"


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/", "HEAD"), ("/nothing", "GET"), ("/", "POST")])
def test_every_answer_has_its_headers(server: ReportServer, path: str, method: str) -> None:
    headers = ask(server, path, method)[2]
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers["Content-Security-Policy"].startswith("default-src 'self' 'unsafe-inline' data:")


def test_a_browser_that_goes_away_is_no_news(
    server: ReportServer, study: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (study / "report" / "large.bin").write_bytes(b"0" * 20_000_000)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.server_port)) as gone:
            gone.sendall(f"GET /large.bin HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
            gone.recv(10)
    assert ask(server, "/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_no_report_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"index\.html is missing; run `worldsize report .*` first"):
        report_server(tmp_path, 0)


def test_a_report_that_leads_out_of_its_study_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").touch()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "report").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="is a link out of the study folder"):
        report_server(tmp_path / "study", 0)


def test_a_port_in_use_is_an_error_with_a_remedy(server: ReportServer, study: Path) -> None:
    with pytest.raises(InputError, match=f"port {server.server_port} cannot be used .*choose another one, or 0"):
        report_server(study, server.server_port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_ends_cleanly(study: Path, number: signal.Signals) -> None:
    # A test run in the background may ignore SIGINT, and its children with it.
    found = subprocess.Popen(
        [sys.executable, "-m", "worldsize.cli.main", "serve", str(study)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert found.stdout is not None
    try:
        line = found.stdout.readline()
        address = line.split()[0]
        assert address.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"<h1>report</h1>"
        connection.close()
        found.send_signal(number)
        out, err = found.communicate(timeout=20)
    finally:
        found.kill()
        found.wait()
    assert (found.returncode, out, err) == (0, "Stopped\n", "")
