"""A real instance behind its socket: peers call, watch, answer, and are kept apart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from callgate import __version__
from callgate.audit.reading import newest_first
from tests.needs import needs


class Peer:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rwb")

    def send(self, **frame: Any) -> None:
        self.raw(json.dumps(frame).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.file.write(data)
        self.file.flush()

    def read(self) -> Any:
        line = self.file.readline()
        return json.loads(line) if line else None

    def until(self, type: str) -> Any:
        while (frame := self.read()) is not None:
            if frame["type"] == type:
                return frame
        raise AssertionError(f"no {type}")

    def call(self, tool: str, arguments: Any, cwd: Any = None, id: str = "r1", **info: Any) -> None:
        info |= {} if cwd is None else {"cwd": str(cwd)}
        self.send(type="tool_call", requestId=id, toolName=tool, arguments=arguments, clientInfo=info)

    def close(self) -> None:
        with suppress(OSError):  # what was not sent when it was cut
            self.file.close()
        self.socket.close()


class Served:
    def __init__(self, base: Path, *options: str, stderr: Any = None) -> None:
        self.home, self.ws, self.path = base / "h", base / "ws", base / "h" / "run" / "callgate.sock"
        self._peers: list[Peer] = []
        self.ws.mkdir(exist_ok=True)
        (self.ws / "a.txt").write_text("hello\n")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callgate", "serve", *options],
            cwd=self.ws,
            env={**os.environ, "CALLGATE_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")

    def peer(self) -> Peer:
        self._peers.append(Peer(self.path))
        return self._peers[-1]

    def allow(self, question: str, sha256: str | None = None) -> None:
        """As a person does at another terminal."""
        subprocess.run(
            [
                sys.executable,
                "-m",
                "callgate",
                "confirmations",
                "allow",
                question,
                "--json",
                *(["--sha256", sha256] if sha256 else []),
            ],
            env={**os.environ, "CALLGATE_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def leave(self) -> None:
        for peer in self._peers:
            peer.close()
        if self.process.poll() is None:
            self.stop()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def served(base: Path) -> Iterator[Served]:
    served = Served(base)
    yield served
    served.leave()


def test_a_peer_calls_and_gets_one_result(served: Served) -> None:
    peer = served.peer()
    peer.call("read_file", {"path": "a.txt"}, cwd=served.ws)
    result = peer.read()
    assert (result["type"], result["requestId"], result["protocol"]) == ("tool_result", "r1", 1)
    assert (result["result"]["ok"], result["result"]["content"]) == (True, "hello\n")
    peer.send(type="list_tools", requestId="l")
    assert "read_file" in [tool["name"] for tool in peer.read()["tools"]]
    peer.raw(b"not json\n\n")
    assert peer.read()["code"] == "PROTOCOL_ERROR"
    peer.send(type="check_alive", requestId="p")
    assert peer.read()["type"] == "alive"
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600


@pytest.mark.spec("S0-11", "S0-12")
def test_a_running_instance_says_where_it_is_until_it_stops(served: Served) -> None:
    config = json.loads((served.home / "config.json").read_text())
    record = json.loads((served.home / "instances" / f"{served.process.pid}.json").read_text())
    for said in (config, record):
        assert (said["socketPath"], said["pid"]) == (str(served.path), served.process.pid)
        assert said["appVersion"] == __version__ and said["startedAt"] > 1_700_000_000_000
    served.stop()
    assert not (served.home / "config.json").exists()
    assert list((served.home / "instances").iterdir()) == []


CRASHES = """
from callgate import tool

@tool(side_effects="none")
async def crash() -> str:
    raise RuntimeError("met password=hunter2secret in a.txt")
"""


@pytest.mark.parametrize("level", [None, "error"])
def test_an_instance_logs_warnings_and_tracebacks_without_secrets(
    base: Path, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALLGATE_LOG", raising=False)
    if level is not None:
        monkeypatch.setenv("CALLGATE_LOG", level)
    (base / "h").mkdir(mode=0o700)
    (base / "h" / "mine.py").write_text(CRASHES)
    (base / "h" / "settings.toml").write_text('[tools]\nload = ["mine.py"]\n')
    with (base / "log").open("wb") as log:
        served = Served(base, stderr=log)
        peer = served.peer()
        peer.call("crash", {}, served.ws, caller="renderer")
        assert peer.until("tool_result")["result"]["error"]["code"] == "TOOL_FAILED"
        served.leave()
    text = (base / "log").read_text()
    assert "WARNING callgate.socket: a peer declared itself as 'renderer'" in text
    assert "Traceback" in text and "RuntimeError: met" in text
    assert "hunter2secret" not in text


def test_trace_shows_the_frames_of_the_socket_without_secrets(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_LOG", "trace")
    with (base / "log").open("wb") as log:
        served = Served(base, stderr=log)
        peer = served.peer()
        for number in range(20):
            frame = {"type": "list_confirmations", "requestId": f"r{number}", "password": "hunter2secret"}
            line = json.dumps(frame).encode() + b"\n"
            peer.raw(line[:-20])  # the name and its value come in two pieces
            peer.raw(line[-20:])
            assert peer.read()["requestId"] == f"r{number}"
        served.leave()
    text = (base / "log").read_text()
    assert all(f'"requestId":"r{number}"' in text for number in range(20))
    assert text.count("TRACE callgate.socket: <- ") == 20
    assert text.count("TRACE callgate.socket: -> ") >= 20
    assert "hunter2secret" not in text


@pytest.mark.spec("S0-41", "S0-42", "T30")
def test_what_a_peer_says_of_itself_gives_it_nothing(served: Served) -> None:
    one, two = served.peer(), served.peer()
    for peer, caller in ((one, "internal"), (two, "plugin")):
        peer.call(
            "write_file",
            {"path": "b.txt", "content": "x"},
            served.ws,
            caller=caller,
            sessionId="sess_MINE",
            spaceId="space_1",
        )
        error = peer.read()["result"]["error"]
        assert (error["code"], error["details"]["reason"]) == ("PERMISSION_DENIED", "no_confirmer")
    assert not (served.ws / "b.txt").exists()
    served.stop()
    records = [record for record, _ in newest_first(str(served.home / "audit.jsonl"))]
    assert sorted(record.caller for record in records) == ["cli", "plugin"]
    assert len({record.session for record in records} - {"sess_MINE"}) == 2
    assert records[0].scope == {"cwd": str(served.ws), "spaceId": "space_1"}


@pytest.mark.spec("S0-16", "T29")
@needs("root")
def test_a_peer_of_another_user_is_turned_away_even_where_it_can_reach_the_socket(served: Served) -> None:
    for path in (served.path, *served.path.parents):
        if str(path).startswith(tempfile.gettempdir() + "/cg"):
            path.chmod(0o777)
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setuid(65534)
            other = socket.socket(socket.AF_UNIX)
            other.connect(str(served.path))
            os.write(writing, b"connected")
            other.sendall(b"{}\n")
            os.write(writing, other.recv(100))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b"connected"
    os.wait()
    mine = served.peer()
    mine.send(type="check_alive")
    assert mine.read()["type"] == "alive"


def test_only_what_is_served_or_trusted_is_a_workspace(served: Served, base: Path) -> None:
    (base / "other").mkdir()
    (base / "other" / "a.txt").write_text("secret")
    (served.ws / "link").symlink_to(base / "other")
    peer = served.peer()
    for cwd in (base / "other", "/", "relative", served.ws / "link", served.ws / ".."):
        peer.call("read_file", {"path": "a.txt"}, cwd=cwd)
        error = peer.read()["result"]["error"]
        assert error["code"] == "PERMISSION_DENIED"
        assert error["details"]["reason"] in ("workspace_not_served", "cwd_relative")


HINTED = """
from callgate import ToolContext, tool

@tool(capabilities=["controls-browser", "accesses-network"])
async def open_browser_tab(url: str) -> dict[str, str]:
    return {"tabId": "btab_2"}

@tool(side_effects="read")
async def reads(context: ToolContext) -> str:
    return context.workspace_files.read("a.txt")

@tool(side_effects="none")
async def takes_path(path: str) -> str:
    return path
"""


def test_a_directory_that_is_not_served_binds_only_tools_that_touch_files(base: Path) -> None:
    (base / "h").mkdir(mode=0o700)
    (base / "h" / "mine.py").write_text(HINTED)
    (base / "h" / "settings.toml").write_text('[tools]\nload = ["mine.py"]\n')
    served = Served(base, "--mode", "write")
    try:
        peer = served.peer()
        url = {"url": "http://localhost:3000"}
        for cwd in ("/srv/project", "/", "relative", "a\0b"):
            peer.call("open_browser_tab", url, cwd=cwd, caller="cli", spaceId="space_1", tabId="btab_1")
            result = peer.read()["result"]
            assert (result["ok"], result["content"]) == (True, {"tabId": "btab_2"})
            assert [each["level"] for each in result["diagnostics"]] == ["warn"]
            for tool, arguments in (
                ("reads", {}),
                ("takes_path", {"path": "a.txt"}),
                ("shell", {"command": "pwd"}),
                ("write_file", {"path": "b.txt", "content": "x"}),
                ("list_dir", {}),
            ):
                peer.call(tool, arguments, cwd=cwd)
                assert peer.read()["result"]["error"]["code"] == "PERMISSION_DENIED", tool
        peer.call("open_browser_tab", url, cwd=served.ws)
        assert "diagnostics" not in peer.read()["result"]
        peer.call("no_such_tool", {}, cwd="/")
        assert peer.read()["result"]["error"]["code"] == "UNKNOWN_TOOL"
    finally:
        served.leave()


def test_a_peer_never_allows_its_own_call_and_others_see_nothing(served: Served) -> None:
    peer, other = served.peer(), served.peer()
    for each in (peer, other):
        each.send(type="subscribe", requestId="s", confirmer=True, types=["tool.confirmation_requested"])
        assert each.read()["type"] == "subscribed"
    ways: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"caller": "cli"}, {"decision": "allow"}),
        ({"caller": "plugin"}, {"decision": "allow", "scope": "session"}),
        ({"caller": "internal"}, {"decision": "allow", "scope": "always"}),
        ({}, {"decision": "always-allow-this-tool"}),
    ]
    for info, said in ways:
        peer.call("write_file", {"path": "b.txt", "content": "x"}, served.ws, **info)
        asked = peer.until("event")["event"]["payload"]["confirmation_request_id"]
        for each, questions in ((other, []), (peer, [asked])):
            each.send(type="list_confirmations", requestId="l")
            listed = each.until("confirmations_list")["confirmations"]
            assert [question["id"] for question in listed] == questions
        for each in (other, peer):
            each.send(type="answer_confirmation", requestId="a", confirmationId=asked, **said)
            answer = each.read()
            assert (answer["type"], answer["requestId"]) == ("error", "a")
        peer.send(type="cancel_tool_call", requestId="r1")
        assert peer.until("tool_result")["result"]["error"]["code"] == "CANCELLED"
    assert not (served.ws / "b.txt").exists()


def test_a_person_elsewhere_allows_what_a_peer_waits_for(served: Served) -> None:
    peer = served.peer()
    peer.send(type="subscribe", requestId="s", confirmer=True, types=["tool.confirmation_requested"])
    peer.call("write_file", {"path": "b.txt", "content": "x"}, served.ws)
    served.allow(peer.until("event")["event"]["payload"]["confirmation_request_id"])
    assert peer.until("tool_result")["result"]["ok"] is True
    assert (served.ws / "b.txt").read_text() == "x"


def test_a_peer_may_deny_its_own_call(served: Served) -> None:
    peer = served.peer()
    peer.send(type="subscribe", requestId="s", confirmer=True, types=["tool.confirmation_requested"])
    peer.call("write_file", {"path": "b.txt", "content": "x"}, served.ws)
    asked = peer.until("event")["event"]["payload"]["confirmation_request_id"]
    peer.send(type="answer_confirmation", requestId="a", confirmationId=asked, decision="deny")
    ended = {each["type"]: each for each in (peer.read(), peer.read())}
    assert ended["confirmation_result"]["applied"] is True
    assert ended["tool_result"]["result"]["error"]["details"]["errorClass"] == "user_denied"


@pytest.fixture
def working(base: Path) -> Iterator[Served]:
    served = Served(base, "--mode", "write")
    yield served
    served.leave()


SLEEP = {"command": "echo begun; sleep 600"}


def begun(peer: Peer, served: Served, id: str = "r1") -> None:
    peer.call("shell", SLEEP, served.ws, id=id)
    frame = peer.read()
    assert (frame["type"], frame["event"]["text"]) == ("tool_event", "begun\n")


def test_a_cancel_ends_its_call_and_no_other(working: Served) -> None:
    one, two = working.peer(), working.peer()
    begun(one, working)
    begun(two, working)
    one.call("read_file", {"path": "a.txt"}, working.ws, id="quick")
    assert one.read()["requestId"] == "quick"
    one.call("read_file", {"path": "a.txt"}, working.ws, id="r1")  # in flight
    assert one.read()["type"] == "error"
    one.send(type="cancel_tool_call", requestId="unknown")
    one.send(type="cancel_tool_call", requestId="r1")
    ended = one.read()
    assert (ended["requestId"], ended["result"]["error"]["code"]) == ("r1", "CANCELLED")
    two.send(type="check_alive", requestId="p")
    assert two.read()["type"] == "alive"
    two.send(type="cancel_tool_call", requestId="r1")
    assert two.read()["result"]["error"]["code"] == "CANCELLED"


def test_a_peer_that_goes_away_ends_its_calls(working: Served) -> None:
    peer, watching = working.peer(), working.peer()
    begun(peer, working)
    peer.close()
    audit = working.home / "audit.jsonl"
    until = time.monotonic() + 60
    while not audit.exists() or "caller_gone" not in audit.read_text():
        assert time.monotonic() < until
        watching.send(type="check_alive", requestId="p")
        assert watching.read()["type"] == "alive"


def test_stopping_ends_everything_and_leaves_nothing(working: Served) -> None:
    peer, idle = working.peer(), working.peer()
    begun(peer, working)
    working.stop(signal.SIGINT)
    assert peer.until("tool_result")["result"]["error"]["code"] in (
        "RUNTIME_SHUTTING_DOWN",
        "CANCELLED",
    )
    assert idle.read() == {"type": "closing", "protocol": 1, "reason": "shutting_down"}
    assert idle.read() is None
    assert working.process.returncode == 0
    left = {path.name for path in working.home.rglob("*")} & {"callgate.sock", "config.json"}
    assert left == set()
    assert list((working.home / "instances").iterdir()) == []


@pytest.mark.spec("S0-13", "T-14")
def test_a_killed_instance_is_followed_by_a_clean_one(working: Served, base: Path) -> None:
    begun(working.peer(), working)
    working.process.kill()
    working.process.wait()
    again = Served(base)
    peer = again.peer()
    peer.call("read_file", {"path": "a.txt"}, again.ws)
    assert peer.read()["result"]["ok"] is True
    records = list((again.home / "instances").iterdir())
    assert [record.name for record in records] == [f"{again.process.pid}.json"]
    again.leave()


@pytest.mark.spec("S0-15", "T-14")
def test_a_second_instance_does_not_take_the_socket(served: Served) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "callgate", "serve"],
        cwd=served.ws,
        capture_output=True,
        env={**os.environ, "CALLGATE_HOME": str(served.home)},
        timeout=30,
    )
    assert second.returncode == 1
    peer = served.peer()
    peer.send(type="check_alive")
    assert peer.read()["type"] == "alive"


def test_calls_beyond_those_at_once_wait_their_turn_and_can_be_cancelled(working: Served) -> None:
    peer = working.peer()
    for n in range(80):
        peer.call("shell", {"command": "sleep 600"}, working.ws, id=f"r{n}")
    for n in (79, 0):  # one that waits, and one that runs: another takes its place
        peer.send(type="cancel_tool_call", requestId=f"r{n}")
        ended = peer.until("tool_result")
        assert (ended["requestId"], ended["result"]["error"]["code"]) == (f"r{n}", "CANCELLED")
    for n in range(1, 79):
        peer.send(type="cancel_tool_call", requestId=f"r{n}")
    left = {peer.until("tool_result")["requestId"] for _ in range(78)}
    assert left == {f"r{n}" for n in range(1, 79)}


def test_a_peer_that_says_no_more_still_gets_its_answers(served: Served) -> None:
    peer = served.peer()
    for n in range(100):
        peer.call("read_file", {"path": "a.txt"}, served.ws, id=f"r{n}")
    peer.socket.shutdown(socket.SHUT_WR)
    assert {peer.read()["requestId"] for _ in range(100)} == {f"r{n}" for n in range(100)}
    assert peer.read() is None


@pytest.mark.spec("S0-51")
def test_a_peer_that_said_no_more_and_then_left_ends_its_calls(working: Served) -> None:
    peer = working.peer()
    begun(peer, working)
    peer.socket.shutdown(socket.SHUT_WR)
    peer.close()
    audit = working.home / "audit.jsonl"
    until = time.monotonic() + 60
    while not audit.exists() or "caller_gone" not in audit.read_text():
        assert time.monotonic() < until


def test_a_peer_that_does_not_read_is_cut_and_others_do_not_notice(working: Served) -> None:
    deaf, other = working.peer(), working.peer()
    (working.ws / "big.txt").write_text("x" * 300_000)
    for n in range(64):
        deaf.call("read_file", {"path": "big.txt"}, working.ws, id=f"r{n}")
    other.call("read_file", {"path": "a.txt"}, working.ws)
    assert other.read()["result"]["content"] == "hello\n"
    until = time.monotonic() + 60
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while time.monotonic() < until:
            deaf.send(type="check_alive")
            other.send(type="check_alive", requestId="p")
            assert other.read()["type"] == "alive"


@pytest.mark.parametrize("cwd", ["/a\0b", "\0", "/" + "x" * 4_000, "/proc/self/fd/0/x"])
def test_a_directory_that_cannot_be_one_is_refused_and_the_connection_goes_on(served: Served, cwd: str) -> None:
    peer = served.peer()
    peer.call("read_file", {"path": "a.txt"}, cwd=cwd)
    assert peer.read()["result"]["error"]["code"] == "PERMISSION_DENIED"
    peer.send(type="list_tools", requestId="l", clientInfo={"cwd": cwd})
    listed = peer.read()
    assert (listed["tools"], listed["workspace"]) == ([], None)


def test_settings_that_cannot_be_read_refuse_a_call_and_the_connection_goes_on(served: Served, base: Path) -> None:
    trust = served.home / "trust.json"
    trust.write_text("{")
    peer = served.peer()
    peer.call("read_file", {"path": "a.txt"}, cwd=base)
    assert peer.read()["result"]["error"]["details"]["reason"] == "settings_invalid"
    trust.unlink()
    peer.call("read_file", {"path": "a.txt"}, cwd=served.ws)
    assert peer.read()["result"]["ok"] is True


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "list_confirmations"},
        {"type": "list_tools"},
        {"type": "check_alive"},
        {"type": "answer_confirmation", "requestId": "a", "confirmationId": "x", "decision": "deny"},
    ],
)
def test_a_peer_that_says_no_more_still_gets_every_answer(served: Served, asked: dict[str, str]) -> None:
    peer = served.peer()
    peer.send(**asked)
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.read() is not None
    assert peer.read() is None


def test_a_question_about_large_arguments_can_be_listed_and_answered(served: Served) -> None:
    peer = served.peer()
    peer.send(type="subscribe", requestId="s", confirmer=True, types=["tool.confirmation_requested"])
    peer.call("write_file", {"path": "b.txt", "content": "x" * 5_000_000}, cwd=served.ws)
    asked = peer.until("event")["event"]["payload"]["confirmation_request_id"]
    for id, count in (("nobody", 0), (asked, 1)):
        peer.send(type="list_confirmations", requestId="q", confirmationId=id)
        listed = peer.until("confirmations_list")["confirmations"]
        assert [each["id"] for each in listed] == [asked] * count
    assert len(listed[0]["arguments"]["content"]) == 5_000_000
    served.allow(asked, listed[0]["argumentsSha256"])
    assert peer.until("tool_result")["result"]["ok"] is True
