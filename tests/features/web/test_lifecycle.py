"""A real `callgate serve`: where it listens, who finds it, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from callgate.sandbox.processes.command_marks import MARK
from tests.needs import needs

LIMIT_S = 60


class Served:
    """An instance in a process of its own."""

    def __init__(self, base: Path, *options: str) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.env = {**os.environ, "CALLGATE_HOME": str(self.home)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", *options],
            cwd=self.ws,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    @property
    def record(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.home / "instances" / f"{self.process.pid}.json").read_text())
        return read

    @property
    def url(self) -> str:
        return str(self.record["httpUrl"])

    def by_address(self, link: str) -> str:
        """The same link without the private name, which only browsers look up."""
        name, _, rest = link.removeprefix("http://").partition("/")
        assert re.fullmatch(r"cg-[0-9a-f]{16}\.localhost:\d+", name)
        return f"{self.url}/{rest}"

    @property
    def token_file(self) -> Path:
        return self.home / "run" / f"{self.process.pid}.token"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token_file.read_text().strip()}"}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "callgate", *words],
            cwd=self.ws,
            env=self.env | more,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, bytes]:
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, error


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # a short path: sockets have no long ones
    (made / "ws").mkdir()
    (made / "ws" / "a.txt").write_text("hello\n")
    yield made
    shutil.rmtree(made)


@contextmanager
def served(base: Path, *options: str) -> Iterator[Served]:
    made = Served(base, *options)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop()
        for stream in (made.process.stdout, made.process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.spec("T33", "T28")
def test_an_instance_is_found_by_its_record_and_its_private_token(base: Path) -> None:
    with served(base) as instance:
        assert instance.url.startswith("http://127.0.0.1:")
        assert stat.S_IMODE(instance.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE((base / "h" / "run").stat().st_mode) == 0o700
        assert httpx2.get(f"{instance.url}/healthz").status_code == 200
        assert httpx2.get(f"{instance.url}/v1/instance").status_code == 401
        shown = httpx2.get(f"{instance.url}/v1/instance", headers=instance.headers).json()
        assert (shown["pid"], shown["workspaces"], shown["home"]) == (
            instance.process.pid,
            [str(base / "ws")],
            str(base / "h"),
        )
        body = {"tool": "read_file", "arguments": {"path": "a.txt"}}
        assert httpx2.post(f"{instance.url}/v1/calls", json=body, headers=instance.headers).json()["value"] == "hello\n"
        assert instance.stop()[0] == 0
        assert not instance.token_file.exists()


def test_two_instances_have_two_ports_and_two_tokens(base: Path) -> None:
    with served(base) as one, served(base, "--socket", str(base / "two" / "s")) as two:
        assert one.url != two.url
        assert httpx2.get(f"{one.url}/v1/instance", headers=two.headers).status_code == 401
        assert httpx2.get(f"{two.url}/v1/instance", headers=two.headers).status_code == 200


@pytest.mark.parametrize(
    ("number", "closed"), [(signal.SIGTERM, (1012, "service_restart")), (signal.SIGINT, (1001, "stopping"))]
)
def test_an_instance_that_ends_lets_every_client_know(
    number: signal.Signals, closed: tuple[int, str], base: Path
) -> None:
    with served(base, "--http", "127.0.0.1:0") as instance:
        session = httpx2.post(f"{instance.url}/v1/sessions", json={}, headers=instance.headers).json()["id"]
        where = instance.url.replace("http", "ws") + "/v1/stream"
        with connect(where, additional_headers=instance.headers, proxy=None) as watcher:
            watcher.send(json.dumps({"type": "subscribe", "id": "s", "session": session}))
            assert json.loads(watcher.recv(LIMIT_S))["type"] == "subscribe_ack"
            code, error = instance.stop(number)
            with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the library says of a closed connection
                watcher.recv(LIMIT_S)
            assert (watcher.protocol.close_code, watcher.protocol.close_reason) == closed
        assert (code, error) == (0, b"callgate: stopping\n")


def test_nothing_of_http_is_loaded_before_somebody_comes() -> None:
    code = "import sys, callgate.cli.commands.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"starlette", "uvicorn", "websockets", "callgate.features.web.application"} & set(loaded)


def test_without_http_there_is_no_port_and_no_token(base: Path) -> None:
    with served(base, "--no-http") as instance:
        assert "httpUrl" not in instance.record and not instance.token_file.exists()
        refused = instance.run("dashboard", "--no-open")
        assert refused.returncode == 1 and refused.stdout == ""


@pytest.mark.spec("T33")
@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0", "127.0.0.1", "127.0.0.1:99999"]
)
def test_it_does_not_start_where_other_machines_could_reach_it(base: Path, address: str) -> None:
    env = {**os.environ, "CALLGATE_HOME": str(base / "h")}
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", "serve", "--http", address],
        cwd=base / "ws",
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert not list((base / "h").glob("run/*.token"))


@pytest.mark.spec("T33", "T28")
def test_with_the_flag_the_token_is_still_needed(base: Path) -> None:
    with served(base, "--http", "0.0.0.0:0", "--http-allow-remote") as instance:
        url = instance.url
        assert httpx2.get(f"{url}/v1/instance").status_code == 401
        assert httpx2.get(f"{url}/v1/instance", headers=instance.headers).status_code == 200
        foreign = {**instance.headers, "host": f"evil.example:{url.rpartition(':')[2]}"}
        assert httpx2.get(f"{url}/v1/instance", headers=foreign).status_code == 403
        code, error = instance.stop()
        assert code == 0 and b"other machines" in error


@pytest.mark.spec("T32")
def test_the_dashboard_gives_a_link_that_logs_in_and_voids_the_old_ones(base: Path) -> None:
    with served(base) as instance:
        link = instance.run("dashboard", "--no-open")
        assert (link.returncode, link.stderr) == (0, "")
        with httpx2.Client() as browser:
            assert browser.get(instance.by_address(link.stdout.strip())).status_code == 303
            assert browser.get(f"{instance.url}/v1/instance").status_code == 200
            before = instance.headers
            said = json.loads(instance.run("dashboard", "--rotate", "--json").stdout)
            assert set(said) == {"url", "expires_at", "answered_by"}
            assert browser.get(f"{instance.url}/v1/instance").status_code == 401
            assert httpx2.get(f"{instance.url}/v1/instance", headers=before).status_code == 401
            assert browser.get(instance.by_address(said["url"])).status_code == 303
            assert browser.get(f"{instance.url}/v1/instance").status_code == 200
        marked = instance.run("dashboard", "--no-open", **{MARK: "1"})
        assert (marked.returncode != 0, marked.stdout) == (True, "")
    assert json.loads(Served.run(instance, "dashboard", "--json").stdout)["error"]["class"] == "not_found"


@needs("linux", "bash")
@pytest.mark.spec("T28")
def test_a_command_that_a_call_runs_can_neither_read_the_token_nor_log_in(base: Path) -> None:
    with served(base, "--mode", "write") as instance:
        token = instance.token_file.read_text().strip()
        commands = [
            f"cat {instance.token_file}",
            f"grep -r . {instance.home}",
            f"{sys.executable} -m callgate dashboard --no-open",
        ]
        for command in commands:
            body = {"tool": "shell", "arguments": {"command": command}}
            answer = httpx2.post(f"{instance.url}/v1/calls", json=body, headers=instance.headers, timeout=LIMIT_S)
            assert token not in answer.text and "/login?code=" not in answer.text
            assert answer.json()["ok"] is False, answer.text


@pytest.mark.spec("T31")
def test_browsers_know_an_instance_by_a_name_of_its_own_that_outlives_a_restart(base: Path) -> None:
    """Cookies know no ports: those of 127.0.0.1 are shown to whoever else listens there."""
    names = []
    for _ in range(2):
        with served(base) as instance:
            link = instance.run("dashboard", "--no-open").stdout.strip()
            names.append(link.removeprefix("http://").partition(":")[0])
            port = instance.url.rpartition(":")[2]
            for host, status in ((f"{names[-1]}:{port}", 200), (f"x{names[-1]}:{port}", 403), (f"{names[-1]}:1", 403)):
                said = httpx2.get(f"{instance.url}/v1/instance", headers={**instance.headers, "host": host})
                assert said.status_code == status, host
    assert names[0] == names[1]
    kept = base / "h" / "run" / "browser-name"
    assert (kept.read_text().strip(), stat.S_IMODE(kept.stat().st_mode)) == (names[0], 0o600)
