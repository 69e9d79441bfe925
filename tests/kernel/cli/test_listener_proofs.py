"""Commands that talk HTTP to an instance send its token only to a listener that proves who it is."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callgate.cli.instance_http import InstanceHttp
from callgate.socket.instances import InstanceRecord, publish, running, token_path
from tests.kernel.cli.running import callgate, start

SOURCES = Path(__file__).parents[3] / "src/callgate"


class Impostor:
    """Listens where an instance would, answers everything, and forwards what it can."""

    def __init__(self, forward_to: str | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.requests.append((self.path, dict(self.headers)))
                data = outer.answer(self.path, forward_to)
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, path: str, forward_to: str | None) -> bytes:
        if forward_to is None or not path.startswith("/v1/proof"):
            return json.dumps({"proof": "0" * 64, "url": "http://x/login?code=1"}).encode()
        connection = http.client.HTTPConnection(urlsplit(forward_to).netloc, timeout=20)
        connection.request("GET", path)
        data = connection.getresponse().read()
        connection.close()
        return data

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[InstanceRecord]:
    env = {"CALLGATE_HOME": str(home)}
    with start("serve", "--http", "127.0.0.1:0", cwd=tmp_path, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        yield running(str(home))[0]
        process.terminate()


def record(home: Path, url: str) -> InstanceRecord:
    """An instance that is recorded, whose port somebody else has."""
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    (home / "run/gone.sock").touch()
    made = InstanceRecord(
        os.getpid(), str(home / "run/gone.sock"), "lost", str(home), "1", time.time_ns() // 10**6, url
    )
    publish(str(home), made)
    Path(token_path(str(home), made.pid)).write_text("s" * 43 + "\n")
    return made


def test_an_impostor_gets_no_token_and_no_link_is_shown(home: Path, tmp_path: Path) -> None:
    impostor = Impostor()
    record(home, impostor.url)
    env = {"CALLGATE_HOME": str(home)}
    for words in (["dashboard", "--no-open"], ["dashboard", "--rotate", "--no-open"]):
        ran = callgate(*words, cwd=tmp_path, env=env)
        assert ran.code != 0
        assert "another process listens" in ran.err
        assert ran.out == ""
    shown = callgate("status", "--json", cwd=tmp_path, env=env).json["instances"]
    assert [each["http_listener"] for each in shown] == ["foreign"]
    impostor.close()
    assert len(impostor.requests) == 3
    assert all(path.startswith("/v1/proof?") for path, _ in impostor.requests)
    assert not any("Authorization" in headers for _, headers in impostor.requests)


def test_the_proof_of_another_address_is_none(home: Path, served: InstanceRecord) -> None:
    assert served.http is not None
    impostor = Impostor(forward_to=served.http)
    assert InstanceHttp(str(home), served._replace(http=impostor.url)).is_proven() is False
    impostor.close()
    assert impostor.requests
    assert InstanceHttp(str(home), served).is_proven() is True


def test_the_instance_itself_is_proven_before_and_after_a_rotation(
    home: Path, served: InstanceRecord, tmp_path: Path
) -> None:
    env = {"CALLGATE_HOME": str(home)}
    shown = callgate("status", "--json", cwd=tmp_path, env=env).json["instances"]
    assert [each["http_listener"] for each in shown] == ["proven"]
    ran = callgate("dashboard", "--rotate", "--no-open", cwd=tmp_path, env=env)
    assert ran.code == 0
    assert "/login?code=" in ran.out


def test_an_address_that_nobody_listens_at_is_silent(home: Path) -> None:
    impostor = Impostor()
    made = record(home, impostor.url)
    impostor.close()
    assert InstanceHttp(str(home), made).is_proven() is None


@pytest.mark.parametrize("query", ["", "?nonce=", "?nonce=x", f"?nonce={'0' * 63}", f"?nonce={'0' * 65}"])
def test_a_proof_is_given_for_a_whole_nonce_only(served: InstanceRecord, query: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(served.http or "").netloc, timeout=20)
    connection.request("GET", f"/v1/proof{query}")
    assert connection.getresponse().status in (400, 422)
    connection.close()


def test_only_one_module_of_the_command_line_reads_the_token() -> None:
    reading = re.compile(r"\btoken_path\(|\.token\"")
    found = [path for path in (SOURCES / "cli").rglob("*.py") if reading.search(path.read_text())]
    assert [path.name for path in found] == ["instance_http.py"]
