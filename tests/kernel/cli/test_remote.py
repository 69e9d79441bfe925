"""`callgate call` and the instances it may find: which one it takes, and what if that one fails."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.cli import connection
from callgate.cli import remote_call as remote_calls
from callgate.cli.main import main
from callgate.config.instance_records import candidates, find
from tests.kernel.cli.instances import PIDS, Peer, Script, fake, publish, says, short_directory
from tests.kernel.cli.running import CALLGATE, callgate, environment, start

READ = ("call", "read_file", "path=a.txt")
EMBEDDED = "one\ntwo\nthree\n"
"""What a runtime of its own reads in `ws`."""
LOST = 5


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_directory() as base:
        monkeypatch.setenv("CALLGATE_HOME", str(base))
        yield base


@pytest.fixture
def usual(home: Path) -> Path:
    return home / "run" / "callgate.sock"


@pytest.mark.spec("S0-14")
def test_a_target_is_looked_for_in_a_fixed_order(home: Path, usual: Path, ws: Path) -> None:
    names = ("usual", "config", "older", "newer", "elsewhere")
    paths = {name: home / f"{name}.sock" for name in names} | {"usual": usual}
    with (
        fake(paths["usual"], says("usual")),
        fake(paths["config"], says("config")),
        fake(paths["older"], says("older")),
        fake(paths["newer"], says("newer")),
        fake(paths["elsewhere"], says("elsewhere")),
    ):

        def goes_to(*options: str) -> str:
            ran = callgate(*READ, *options, cwd=ws)
            assert (ran.code, ran.err) == (0, "")
            return ran.out.strip()

        assert goes_to() == "usual"
        (home / "config.json").write_text(json.dumps({"socketPath": str(paths["config"])}))
        assert goes_to() == "config"
        publish(home, PIDS[0], paths["older"], label="old", started=5)
        assert goes_to() == "older"
        publish(home, PIDS[1], paths["newer"], label="new", started=9)
        assert goes_to() == "newer"
        assert goes_to("--instance", "old") == "older"
        assert goes_to("--instance", str(PIDS[1])) == "newer"
        assert goes_to("--socket", str(paths["elsewhere"])) == "elsewhere"
        assert goes_to("--no-instance") == EMBEDDED.strip()


@pytest.mark.spec("S0-14")
def test_the_order_is_that_of_every_other_client(home: Path, usual: Path) -> None:
    path = home / "x.sock"
    with fake(usual, says("")), fake(path, says("")):
        assert candidates(str(home))[0] == find(str(home)) == str(usual)
        (home / "config.json").write_text(json.dumps({"socketPath": str(path)}))
        assert candidates(str(home)) == [find(str(home)), str(usual)] == [str(path), str(usual)]
        for pid, record in ((PIDS[0], "{"), (2**22 + 1, "{}"), (PIDS[1], "[]")):
            publish(home, pid, path)
            (home / "instances" / f"{pid}.json").write_text(record)
            assert candidates(str(home))[0] == find(str(home))
        publish(home, PIDS[0], usual, started=3)
        publish(home, PIDS[1], path, started=2)
        assert candidates(str(home)) == [find(str(home)), str(path)] == [str(usual), str(path)]
    assert candidates(str(home)) == []
    assert find(str(home)) is None


@pytest.mark.spec("S0-14", "S0-57")
@pytest.mark.parametrize(("options", "code"), [(["--instance", "nobody"], LOST), (["--socket", "/nowhere.sock"], LOST)])
def test_a_named_target_that_is_not_there_is_an_error(options: list[str], code: int, ws: Path, usual: Path) -> None:
    with fake(usual, says("another")) as other:
        ran = callgate("call", "write_file", "path=b", "content=x", "--yes", "--json", *options, cwd=ws)
    assert (ran.code, ran.json["ok"], ran.json["error"]["class"]) == (code, False, "host_unavailable")
    assert (other.heard, (ws / "b").exists()) == ([], False)


def garbage(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.read()


def of_an_older_version(peer: Peer) -> None:
    peer.read("list_tools")
    peer.send(type="tools_list", requestId="target", tools=[])
    peer.read()


def of_a_newer_version(peer: Peer) -> None:
    peer.read()
    peer.send(type="error", protocol=2, code="PROTOCOL_ERROR", message="only protocol 2")


def hangs_up(peer: Peer) -> None:
    peer.read()


def without_end(peer: Peer) -> None:
    peer.read()
    for _ in range(40):
        peer.raw(b"x" * 1024 * 1024)
    raise AssertionError("all of it was read")


def does_not_serve_it(peer: Peer) -> None:
    peer.greet(workspace=None, mode=None)
    peer.read()


def refuses_the_line(peer: Peer) -> None:
    peer.greet()
    peer.read("tool_call")
    peer.send(type="error", code="PROTOCOL_ERROR", message="not a valid tool_call")


NOT_TAKEN = (
    garbage,
    of_an_older_version,
    of_a_newer_version,
    hangs_up,
    without_end,
    does_not_serve_it,
    refuses_the_line,
)


@pytest.mark.spec("S0-57")
@pytest.mark.parametrize("script", NOT_TAKEN, ids=lambda each: each.__name__)
def test_what_an_instance_did_not_take_a_runtime_of_its_own_does(script: Script, ws: Path, usual: Path) -> None:
    with fake(usual, script) as instance:
        ran = callgate(*READ, cwd=ws)
    assert (ran.code, ran.out) == (0, EMBEDDED)
    assert ("another version" in ran.err) is script.__name__.endswith("_version")
    assert instance.heard


@pytest.mark.spec("S0-14")
def test_the_next_instance_is_asked_where_the_newest_serves_something_else(ws: Path, home: Path, usual: Path) -> None:
    with fake(home / "x.sock", does_not_serve_it) as newest, fake(usual, says("older")):
        publish(home, PIDS[0], newest.path)
        assert callgate(*READ, cwd=ws).out == "older\n"


@pytest.mark.parametrize(
    ("script", "code"),
    [(garbage, 6), (of_an_older_version, 6), (of_a_newer_version, 6), (hangs_up, LOST), (refuses_the_line, 6)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_named_instance_is_never_replaced(script: Script, code: int, ws: Path, home: Path) -> None:
    words = ("call", "write_file", "path=b", "content=x", "--yes", "--json")
    with fake(home / "x.sock", script) as instance:
        ran = callgate(*words, "--socket", str(instance.path), cwd=ws)
    assert (ran.code, ran.json["ok"], (ws / "b").exists()) == (code, False, False)


def test_a_living_record_without_anybody_behind_it_is_told_of_and_does_not_matter(ws: Path, home: Path) -> None:
    path = home / "dead.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    publish(home, PIDS[0], path)
    ran = callgate(*READ, cwd=ws)
    assert (ran.code, ran.out) == (0, EMBEDDED)
    assert f"no instance answers at {path}" in ran.err


@pytest.mark.parametrize(
    "options",
    [
        ["--mode", "read"],
        ["--timeout", "1000000"],
        ["--timeout", "0.0001"],
        ["--debug"],
        ["--args", '{"limit": 1, "limit": 2}'],
        ["--args", "[]"],
        ["novalue"],
    ],
    ids=" ".join,
)
def test_what_an_instance_cannot_be_asked_for_a_runtime_of_its_own_is(
    options: list[str], ws: Path, usual: Path
) -> None:
    with fake(usual, says("instance")) as instance:
        ran = callgate(*READ, *options, cwd=ws)
        alone = callgate(*READ, *options, "--no-instance", cwd=ws)
        assert (ran.code, ran.out) == (alone.code, alone.out)
        assert callgate(*READ, *options, "--socket", str(usual), cwd=ws).code not in (0, 130)
    assert instance.calls == []


def test_an_instance_that_has_not_read_the_settings_is_left_alone_and_that_is_told(ws: Path, usual: Path) -> None:
    stale = {"version": "0123456789ab", "problem": None, "restartFor": ["hosts"]}
    with fake(usual, says("instance", settings=stale)):
        ran = callgate(*READ, cwd=ws)
        assert ran.out == EMBEDDED
        assert "started before hosts changed in the settings" in ran.err
        assert callgate(*READ, "--socket", str(usual), cwd=ws).out == "instance\n"


def test_a_log_that_is_asked_for_is_our_own(ws: Path, usual: Path) -> None:
    with fake(usual, says("instance")):
        assert callgate(*READ, cwd=ws, env={"CALLGATE_LOG": "debug"}).out == EMBEDDED


@pytest.mark.parametrize("ending", [b"", b"nonsense\n", b'{"type":"closing","reason":"idle"}\n'])
def test_a_call_that_was_taken_and_lost_is_never_made_again(ending: bytes, ws: Path, usual: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        peer.raw(ending)

    with fake(usual, script) as instance:
        ran = callgate("call", "write_file", "path=b", "content=x", "--yes", "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (6 if b"non" in ending else LOST, "instance_lost")
    assert (len(instance.calls), (ws / "b").exists()) == (1, False)


def test_arguments_from_stdin_are_there_for_whoever_makes_the_call(ws: Path, usual: Path) -> None:
    with fake(usual, refuses_the_line) as instance:
        ran = callgate("call", "read_file", "--args", "-", cwd=ws, stdin=b'{"path": "a.txt"}')
    assert (ran.out, instance.calls[0]["arguments"]) == (EMBEDDED, {"path": "a.txt"})


def test_what_is_sent_is_the_call_and_where_it_was_made(ws: Path, usual: Path) -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}

    def script(peer: Peer) -> None:
        peer.greet(tools=[{"name": "my_tool", "inputSchema": schema}])
        peer.read("tool_call")
        peer.end("done")

    with fake(usual, script) as instance:
        ran = callgate("call", "my-tool", "count=3", "text=4", "--timeout", "1.5", "--no-input", cwd=ws)
    assert (ran.code, ran.out, ran.err) == (0, "done\n", "")
    listed, called = instance.heard
    assert listed["names"] == ["my-tool", "my_tool"]
    assert called == {
        "type": "tool_call",
        "protocol": 1,
        "requestId": "call",
        "toolName": "my_tool",
        "arguments": {"count": 3, "text": "4"},
        "whole": True,
        "timeoutMs": 1500,
        "clientInfo": {"caller": "cli", "cwd": str(ws)},
    }


def test_an_answer_to_something_else_is_passed_over(ws: Path, usual: Path) -> None:
    def script(peer: Peer) -> None:
        peer.send(type="news", text="hello")
        peer.greet()
        peer.read("tool_call")
        peer.send(type="tool_result", requestId="other", result={"ok": True})
        peer.send(type="tool_event", requestId="call", event={"kind": "log", "message": "x"})
        peer.send(type="error", message="of something that came before")
        peer.end("done")

    with fake(usual, script):
        assert callgate(*READ, cwd=ws).out == "done\n"


@pytest.mark.parametrize("whole", [{"ok": False}, {"ok": False, "error": {"class": "new_one"}}, {"content": 5}])
def test_a_result_that_cannot_be_read_is_an_error_of_the_wire(whole: dict[str, Any], ws: Path, usual: Path) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        peer.send(type="tool_result", requestId="call", result={"ok": True}, whole=whole)

    with fake(usual, script):
        assert callgate(*READ, "--json", cwd=ws).json["error"]["reason"] == "unreadable_result"


def test_a_result_too_large_for_a_line_says_so(ws: Path, usual: Path) -> None:
    details = {"errorClass": "execution_error", "reason": "unsendable_result"}

    def script(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        error = {"code": "TOOL_FAILED", "message": "too large", "details": details}
        peer.send(type="tool_result", requestId="call", result={"ok": False, "error": error})

    with fake(usual, script):
        ran = callgate(*READ, "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (1, "unsendable_result")


@pytest.mark.parametrize("said", ["nothing", "that it serves us"])
def test_an_instance_that_hangs_is_given_up(
    said: str, ws: Path, usual: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(ws)
    monkeypatch.setattr(connection, "GREETING_S", 0.1)
    monkeypatch.setattr(remote_calls, "PATIENCE_S", 0.1)
    over = threading.Event()

    def script(peer: Peer) -> None:
        if said != "nothing":
            peer.greet()
        while peer.read() is not None:
            pass
        over.set()

    with fake(usual, script) as instance:
        assert main([*READ, "--socket", str(usual)]) == LOST
        assert over.wait(60)
    heard = [frame["type"] for frame in instance.heard]
    expected = ["list_tools"] if said == "nothing" else ["list_tools", "tool_call", "check_alive"]
    assert [each for each in heard if each != "subscribe"] == expected
    assert capfd.readouterr().out == ""


def test_an_instance_that_says_that_it_lives_is_waited_for(
    ws: Path, usual: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(ws)
    monkeypatch.setattr(remote_calls, "PATIENCE_S", 0.05)

    def script(peer: Peer) -> None:
        peer.greet()
        for _ in range(3):
            assert peer.read("check_alive") is not None
            peer.send(type="alive", requestId="alive")
        peer.end("at last")

    with fake(usual, script):
        assert main(list(READ)) == 0
    assert capfd.readouterr().out == "at last\n"


@pytest.mark.spec("S0-57")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_cancels_and_shows_what_there_was(number: signal.Signals, ws: Path, usual: Path) -> None:
    called = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        called.set()
        assert peer.read("cancel_tool_call")["requestId"] == "call"
        shown = [{"type": "text", "text": "half"}, {"type": "text", "text": "Cancelled."}]
        error = {"class": "cancelled", "message": "Cancelled."}
        peer.end(ok=False, error=error, content=shown, partial=True)

    with fake(usual, script):
        process = start(*READ, cwd=ws)
        assert called.wait(60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, b"half\n")
    assert b"error (cancelled): Cancelled." in err


def test_the_second_signal_leaves_at_once(ws: Path, usual: Path) -> None:
    called, cancelled, gone = threading.Event(), threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        called.set()
        peer.read("cancel_tool_call")
        cancelled.set()
        assert peer.read() is None
        gone.set()

    with fake(usual, script):
        process = start(*READ, cwd=ws)
        assert called.wait(60)
        process.send_signal(signal.SIGINT)
        assert cancelled.wait(60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert gone.wait(60)
    assert (process.returncode, out) == (130, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is a mark on Linux alone")
@pytest.mark.parametrize("trace", ["environment", "limit"])
def test_a_command_that_a_tool_started_gets_no_instance(trace: str, ws: Path, usual: Path) -> None:
    def mark() -> None:
        if trace == "limit":
            resource.setrlimit(10, ((1 << 59) + 5, resource.getrlimit(10)[1]))

    env = environment({"CALLGATE_CALL": "1"} if trace == "environment" else None)
    with fake(usual, says("instance")) as instance:
        for options in ([], ["--socket", str(usual)]):
            ran = subprocess.run(
                [CALLGATE, *READ, "--yes", "--json", *options],
                cwd=ws,
                env=env,
                capture_output=True,
                start_new_session=True,
                preexec_fn=mark,
            )
            assert (ran.returncode, json.loads(ran.stdout)["error"]["reason"]) == (3, "within_a_call")
    assert instance.heard == []


HEAVY = {
    "argparse",
    "asyncio",
    "collections",
    "enum",
    "functools",
    "importlib",
    "json",
    "msgspec",
    "re",
    "signal",
    "socket",
    "threading",
    "typing",
}


def test_the_cli_adds_nothing_heavy_to_a_call_through_an_instance(ws: Path, usual: Path) -> None:
    # What the package's own `__init__` imports is not counted.
    code = (
        "import sys, callgate; before = set(sys.modules)\n"
        "from callgate.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    with fake(usual, says("instance")):
        ran = subprocess.run(
            [sys.executable, "-c", code, *READ, "--json"],
            cwd=ws,
            capture_output=True,
            text=True,
            start_new_session=True,
            env={**os.environ},
        )
    loaded = set(ran.stderr.split())
    assert json.loads(ran.stdout)["value"] == "instance"
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("callgate.")} == {
        "callgate.cli",
        *(
            f"callgate.cli.{name}"
            for name in (
                "arguments",
                "main",
                "options",
                "remote_call",
                "connection",
                "ui",
                "ui.output",
                "ui.terminal",
            )
        ),
        "callgate.config",
        "callgate.config.home_check",  # whose home it is
        "callgate.config.instance_records",
        "callgate.protocol",
        "callgate.protocol.json_texts",
    }


TOOL = {"name": "read_file", "inputSchema": {}}


@pytest.mark.spec("S0-57")
@pytest.mark.parametrize(
    "more",
    [
        {"tools": ["x"]},
        {"tools": [{"name": "read_file"}]},
        {"tools": [TOOL | {"name": 3}]},
        {"tools": [TOOL | {"inputSchema": []}]},
        {"tools": [TOOL | {"inputSchema": {"properties": 1}}]},
        {"mode": {}},
        {"workspace": 3},
    ],
)
@pytest.mark.parametrize("command", [READ, ("tools", "--names")])
def test_an_instance_that_greets_oddly_is_passed_by(
    command: tuple[str, ...], more: dict[str, Any], ws: Path, usual: Path
) -> None:
    def greets(peer: Peer) -> None:
        peer.greet(**more)
        peer.read()

    alone = callgate(*command, "--no-instance", cwd=ws)
    with fake(usual, greets):
        ran = callgate(*command, cwd=ws)
        assert ran._replace(err="") == alone
        assert "has another version; the command uses no instance" in ran.err
        named = callgate(*command, "--json", "--socket", str(usual), cwd=ws)
    assert (named.code, named.json["error"]["class"]) == (6, "protocol_error")


@pytest.mark.spec("S0-57")
@pytest.mark.parametrize(
    ("frame", "error_class"),
    [
        ({"type": "tool_event", "event": "x"}, "host_unavailable"),
        ({"type": "tool_event", "event": {"kind": "progress", "fraction": "x"}}, "host_unavailable"),
        ({"type": "event", "event": {"type": "tool.confirmation_requested", "payload": 1}}, "host_unavailable"),
        ({"type": "confirmations_list", "confirmations": {"a": 1}}, "host_unavailable"),
        ({"type": "confirmations_list", "confirmations": ["x"]}, "protocol_error"),
        ({"type": "confirmations_list", "confirmations": [{"id": "1", "tool": 1}]}, "protocol_error"),
        (
            {"type": "tool_result", "requestId": "call", "whole": {"ok": True, "content": [{"type": "text"}]}},
            "protocol_error",
        ),
        ({"type": "tool_result", "requestId": "call", "whole": {"ok": True, "content": []}}, "protocol_error"),
    ],
)
def test_whatever_an_instance_says_of_a_call_is_no_defect_of_ours(
    frame: dict[str, Any], error_class: str, ws: Path, usual: Path
) -> None:
    def odd(peer: Peer) -> None:
        peer.greet()
        peer.read("tool_call")
        peer.send(**frame)

    with fake(usual, odd):
        ran = callgate(*READ, "--yes", "-v", "--json", cwd=ws)
    assert ran.json["error"]["class"] == error_class
