"""What is printed arrives, whatever the output can spell; what is logged has bounds."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.cli.logs import Repeats
from callgate.instance.startup import LARGEST
from tests.kernel.socket.test_serving import Served

LIMIT_S = 60.0
NAME = "héllo-☃-😀.txt"


@pytest.fixture
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    yield made
    shutil.rmtree(made)


@pytest.fixture
def ws(base: Path) -> Path:
    made = base / "ws"
    made.mkdir()
    (made / NAME).write_text(f"{NAME}\n")
    assert callgate(made, "call", "read_file", f"path={NAME}").returncode == 0
    assert callgate(made, "call", "read_file", f"path=no-{NAME}").returncode == 1
    return made


def callgate(ws: Path, *given: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "callgate", *given],
        cwd=ws,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        stdin=subprocess.DEVNULL,
    )


PRINTING = (
    "audit tail",
    "audit tail --json",
    "events",
    "events --json",
    "sessions list",
    "sessions list --json",
    "call list_dir path=.",
    "call list_dir path=. --json",
    f"policy explain read_file path={NAME}",
    "sessions show SESSION",
    "sessions export SESSION",
)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:strict"])
def test_a_character_that_the_output_does_not_have_is_escaped(ws: Path, encoding: str) -> None:
    event = json.loads(callgate(ws, "events", "--json").stdout.splitlines()[0])
    for words in PRINTING:
        given = words.replace("SESSION", event["session_id"]).split()
        ran = callgate(ws, *given, encoding=encoding)
        assert (words, ran.returncode, ran.stderr) == (words, 0, b"")
        assert "SESSION" in words or b"llo-" in ran.stdout or words.startswith("sessions")
        for line in ran.stdout.splitlines() if "--json" in words else ():
            json.loads(line)


def test_an_escape_within_json_means_the_same_character(ws: Path) -> None:
    code = f"from callgate.cli import main; main._escape_what_cannot_be_written(); print('\"{NAME}\"')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert json.loads(ran.stdout.decode("ascii")) == NAME


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("callgate.x", logging.ERROR, "", 0, message, None, None)


def test_a_line_that_repeats_is_counted_and_not_written() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)
    assert [repeats.admits(record("a %d")) for _ in range(8)] == [True] * 5 + [False] * 3
    assert repeats.admits(record("b"))
    assert list(repeats.due()) == []
    now = 100.0
    (left_out,) = repeats.due()
    assert left_out.getMessage() == "3 more like this: a %d"
    assert repeats.admits(record("a %d"))


def test_peers_without_end_do_not_fill_the_log(base: Path) -> None:
    errors = base / "errors"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with errors.open("wb") as file:
        here = os.dup(2)
        os.dup2(file.fileno(), 2)  # `Served` inherits it
        try:
            served = Served(base)
        finally:
            os.dup2(here, 2)
            os.close(here)
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    crowd = []
    try:
        for _ in range(200):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(str(served.path))
            crowd.append(peer)
        until = time.monotonic() + LIMIT_S
        while b"peers wait" not in errors.read_bytes():
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        for peer in crowd:
            peer.close()
    peer = served.peer()
    peer.socket.settimeout(LIMIT_S)
    peer.send(type="check_alive", requestId="p")
    assert peer.read()["type"] == "alive"
    served.leave()
    assert errors.stat().st_size < 16_384
    assert (soft, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_large_log_is_begun_anew(base: Path) -> None:
    home, log = base / "h", base / "h" / "serve.log"
    home.mkdir(mode=0o700)
    log.write_bytes(b"x" * (LARGEST + 1))
    environment = {**os.environ, "CALLGATE_HOME": str(home)}
    run = [sys.executable, "-m", "callgate"]
    subprocess.run([*run, "serve", "--detach"], cwd=base, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_S
        while log.stat().st_size if log.exists() else True:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert (home / "serve.log.1").stat().st_size == LARGEST + 1
        assert log.stat().st_mode & 0o777 == 0o600
    finally:
        subprocess.run([*run, "stop"], cwd=base, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert "stopping" in log.read_text()
