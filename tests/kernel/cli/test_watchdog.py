"""A process whose loop is stuck in C says where, and every signal to end it does.

The tools run Python's own `re` with a pattern that takes years, and so keep the interpreter's lock:
no handler, no thread and no timer of Python's runs meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.kernel.cli import stuck_tools
from tests.kernel.cli.running import CALLGATE, LIMIT_S, callgate, environment, start

SETTINGS = f"""
[tools]
load = ["{stuck_tools.__file__}"]
[limits]
stall_s = 0.5
stop_s = 2
"""


@pytest.fixture
def stuck_home(home: Path) -> Path:
    (home / "settings.toml").write_text(SETTINGS)
    return home


@contextmanager
def limited(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End it, and with it every wait for what it writes, where it takes far too long."""
    late = threading.Timer(LIMIT_S, process.kill)
    late.start()
    try:
        yield process
        late.cancel()
    finally:
        process.kill()
        process.wait()
        late.cancel()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def read_until(stream: IO[bytes] | None, text: bytes) -> None:
    assert stream is not None
    seen = b""
    for line in stream:
        seen += line
        if text in line:
            return
    raise AssertionError(f"only {seen!r} was written")


@pytest.mark.parametrize("tool", ["stuck_on_the_loop", "stuck_in_a_thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_call_that_is_stuck_and_the_log_says_where(
    tool: str, number: signal.Signals, ws: Path, stuck_home: Path
) -> None:
    with limited(start("call", "--no-instance", tool, cwd=ws)) as process:
        read_until(process.stdout, b"stuck")
        process.send_signal(number)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    log = (stuck_home / "stalled.log").read_text()
    assert f"in {tool}" in log and "not answered" in log
    assert (stuck_home / "stalled.log").stat().st_mode & 0o777 == 0o600


def test_an_instance_that_is_stuck_says_where_by_itself(ws: Path, stuck_home: Path) -> None:
    with limited(start("serve", cwd=ws)) as instance:
        read_until(instance.stdout, b"listening")
        with limited(start("call", "stuck_on_the_loop", cwd=ws)) as call:
            read_until(instance.stderr, b"has not turned for 0.5 s")
            read_until(instance.stderr, b"in stuck_on_the_loop")
            instance.send_signal(signal.SIGTERM)
            assert instance.wait(LIMIT_S) == -signal.SIGKILL
            assert call.wait(LIMIT_S) != 0


def test_mcp_serve_is_watched_too(ws: Path, stuck_home: Path) -> None:
    process = subprocess.Popen(
        [CALLGATE, "mcp", "serve"],
        cwd=ws,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(None),
    )
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "stuck_on_the_loop", "arguments": {}}},
    ]
    with limited(process):
        assert process.stdin is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
        read_until(process.stderr, b"stuck")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert "in stuck_on_the_loop" in (stuck_home / "stalled.log").read_text()


def test_an_instance_that_is_not_stuck_ends_as_it_should(ws: Path, home: Path) -> None:
    with limited(start("serve", cwd=ws)) as instance:
        read_until(instance.stdout, b"listening")
        assert callgate("call", "list_dir", "path=.", cwd=ws).code == 0
        instance.send_signal(signal.SIGTERM)
        assert instance.wait(LIMIT_S) == 0
