"""HTTP hooks of older versions: reported as unsafe, never contacted, replaced by an installation."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.cli.main import main
from callgate.features.agents.commands import checks, editing, hook_client
from callgate.features.agents.known import user_file
from callgate.features.agents.settings import HooksTable
from tests.needs import needs

ALLOW = b'{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}'
OLD_TOKEN = "t" * 43
WAIT_S = 20.0


class Impostor:
    """A process that took the port of an instance, and allows everything."""

    def __init__(self, listening: socket.socket) -> None:
        self.port = listening.getsockname()[1]
        self.received = b""
        self._listening = listening
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(WAIT_S)
                self.received += connection.recv(65_536)
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                connection.sendall(head % len(ALLOW) + ALLOW)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    found = Impostor(socket.create_server(("127.0.0.1", 0)))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "gate"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "gate"


def install_as_before(home: Path, port: int, *, recorded: bool = True) -> Path:
    """The settings of Claude Code as an older version of callgate left them."""
    url = f"http://127.0.0.1:{port}/v1/hooks/claude"
    headers = {"Authorization": f"Bearer {OLD_TOKEN}"}
    hook: dict[str, Any] = {"type": "http", "url": url, "headers": headers, "timeout": 80, "onFailure": "block"}
    path = Path(user_file("claude"))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"model": "mine", "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}}))
    editing.write_scripts(str(home), "claude", HooksTable().wait_s)
    (home / "hooks/claude/token").write_text(OLD_TOKEN + "\n")
    if recorded:
        record = {"path": str(path), "before": None, "after_sha256": "", "form": "http", "url": url}
        (home / "hooks/claude/installed.json").write_text(json.dumps([record]))
    return path


@pytest.mark.parametrize("recorded", [True, False])
def test_status_reports_an_http_hook_as_unsafe_and_sends_it_nothing(
    home: Path, impostor: Impostor, recorded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    install_as_before(home, impostor.port, recorded=recorded)
    assert main(["hook", "status", "claude", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["installed"], found["verdict"]) == (True, "not_protected")
    assert any("callgate hook install claude" in each["fix"] for each in found["problems"])
    assert impostor.received == b""


def test_doctor_and_serve_warn_about_an_http_hook(home: Path, impostor: Impostor) -> None:
    install_as_before(home, impostor.port)
    (warning,) = checks.warnings(str(home), [os.getcwd()])
    assert str(impostor.port) in warning
    assert "callgate hook install claude" in warning
    command = [sys.executable, "-m", "callgate", "serve", "--detach", "--http", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    stopped = subprocess.run([*command[:3], "stop", "--now"], capture_output=True, timeout=60, check=False)
    assert warning in done.stderr
    assert stopped.returncode == 0
    doctor = subprocess.run([*command[:3], "doctor", "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert warning in doctor.stdout
    assert impostor.received == b""


def test_an_installation_replaces_an_http_hook_and_its_token(home: Path) -> None:
    path = install_as_before(home, 4177)
    assert main(["hook", "install", "claude"]) == 0
    settings = json.loads(path.read_text())
    (entry,) = settings["hooks"]["PreToolUse"]
    assert entry["hooks"][0]["type"] == "command"
    assert settings["model"] == "mine"
    assert OLD_TOKEN not in path.read_text()
    assert (home / "hooks/claude/token").read_text().strip() != OLD_TOKEN
    assert main(["hook", "remove", "claude"]) == 0
    assert json.loads(path.read_text())["hooks"]["PreToolUse"] == []


@pytest.mark.parametrize("words", [["--dry-run"], ["--dry-run", "--json"], [], ["--json"]])
def test_no_token_is_printed_not_even_one_that_is_replaced(
    home: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = install_as_before(home, 4177)
    assert OLD_TOKEN in path.read_text()
    assert main(["hook", "install", "claude", *words]) == 0
    shown = "".join(capsys.readouterr())
    assert "4177" in shown
    assert OLD_TOKEN not in shown
    assert (home / "hooks/claude/token").read_text().strip() not in shown


def test_a_dry_run_leaves_the_token_of_an_http_hook(home: Path) -> None:
    install_as_before(home, 4177)
    assert main(["hook", "install", "claude", "--dry-run"]) == 0
    assert (home / "hooks/claude/token").read_text().strip() == OLD_TOKEN


def test_an_http_hook_cannot_be_installed_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "install", "claude", "--form", "http"]) == 2
    assert "cannot verify which process listens" in capsys.readouterr().err
    assert not Path(user_file("claude")).exists()


# --- the socket of the command form ---------------------------------------------------------------


def listen(directory: Path, user: int | None = None) -> subprocess.Popen[bytes]:
    """A process that listens in the directory of sockets, and shows what it receives."""
    program = (
        "import os, socket, sys\n"
        "listening = socket.socket(socket.AF_UNIX)\n"
        "listening.bind(sys.argv[1])\n"
        "if len(sys.argv) > 2: os.setuid(int(sys.argv[2]))\n"
        "listening.listen()\n"
        "print('ready', flush=True)\n"
        "connection, _ = listening.accept()\n"
        "print(connection.recv(65536), flush=True)\n"
        "connection.sendall(b'callgate-hook 2\\n{}')\n"
    )
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = [sys.executable, "-c", program, str(directory / "1.sock"), *([] if user is None else [str(user)])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def received(process: subprocess.Popen[bytes]) -> bytes:
    try:
        return process.communicate(timeout=WAIT_S)[0]
    finally:
        process.kill()


def ask(home: Path) -> bytes:
    return hook_client._ask("claude", "pre", str(home / "hooks"), b"{}", WAIT_S)


def test_the_owner_of_the_sockets_receives_the_token(home: Path) -> None:
    editing.write_scripts(str(home), "claude", 1.0)
    process = listen(home / "hooks/sockets")
    assert ask(home) == b"{}"
    assert b"token" in received(process)


@needs("root")
def test_a_socket_of_another_user_receives_no_token(home: Path) -> None:
    editing.write_scripts(str(home), "claude", 1.0)
    process = listen(home / "hooks/sockets", user=65_534)
    with pytest.raises(hook_client.NoAnswer, match="Another user"):
        ask(home)
    assert received(process) == b"b''\n"


def test_a_directory_of_sockets_that_others_can_write_to_is_not_used(home: Path) -> None:
    editing.write_scripts(str(home), "claude", 1.0)
    process = listen(home / "hooks/sockets")
    (home / "hooks/sockets").chmod(0o777)
    with pytest.raises(hook_client.NoAnswer, match="Other users can write"):
        ask(home)
    process.kill()
    process.communicate()
