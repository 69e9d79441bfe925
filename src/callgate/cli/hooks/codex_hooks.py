"""Asks `codex app-server` which hooks it would run, and whether it trusts them."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

_LIMIT_S = 30


def trust_status(program: str, workspace: str, mark: str) -> list[str]:
    """The trust of each hook whose command contains `mark`. Raises `OSError`, `ValueError` or a
    `SubprocessError`."""
    hooks = _hooks(program, workspace)
    return [str(each.get("trustStatus")) for each in hooks if mark in str(each.get("command"))]


def listed(program: str, workspace: str, mark: str) -> list[dict[str, Any]]:
    """The hooks whose command contains `mark`, with `key` and `currentHash`."""
    return [each for each in _hooks(program, workspace) if mark in str(each.get("command"))]


def _hooks(program: str, workspace: str) -> list[dict[str, Any]]:
    server = subprocess.Popen(
        [program, "app-server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=workspace,
        text=True,
    )
    watchdog = threading.Timer(_LIMIT_S, server.kill)
    watchdog.start()
    try:
        info = {"name": "callgate", "title": "callgate", "version": "1"}
        _send(server, {"id": 1, "method": "initialize", "params": {"clientInfo": info}})
        _receive(server, 1)
        _send(server, {"method": "initialized"})
        _send(server, {"id": 2, "method": "hooks/list", "params": {"cwds": [workspace]}})
        answer = _receive(server, 2)
    finally:
        watchdog.cancel()
        server.kill()
        server.wait()
        for stream in (server.stdin, server.stdout):
            if stream is not None:
                stream.close()
    rows = answer.get("result", {}).get("data", [])
    return [hook for row in rows for hook in row.get("hooks", []) if isinstance(hook, dict)]


def _send(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def _receive(server: subprocess.Popen[str], id: int) -> dict[str, Any]:
    assert server.stdout is not None
    for line in server.stdout:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("its answer is not JSON") from None
        if isinstance(message, dict) and message.get("id") == id:
            if "error" in message:
                raise ValueError(message["error"].get("message", "it refused"))
            return message
    raise ValueError("it ended without an answer")
