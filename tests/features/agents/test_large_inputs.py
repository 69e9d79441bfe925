"""A large or deeply nested input holds up nobody: each entry stays short between two callbacks."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from callgate.client.blocking import connect
from callgate.features.agents.commands import editing
from callgate.protocol.toolcalls.parse import parse
from tests.function_calls import count_function_calls
from tests.kernel.cli.running import environment

RUNNER = Path(__file__).parents[2] / "loop_blocks.py"
LIMIT_S = 120.0
MOST_LINES = 1_000_000
"""Of Python between two callbacks: the longest command line that is read takes most of them."""
SETTINGS = """
[hooks]
wait_s = 0.3
[[policy.rules]]
decision = "deny"
path = "secret/**"
[[policy.rules]]
decision = "deny"
tool = "shell"
command = "rm -rf *"
[[policy.rules]]
decision = "deny"
tool = "shell"
"""


def nested(depth: int) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = {"a": [value]}
    return value


def commands(size: int) -> Iterator[str]:
    yield "echo " + "a" * size
    yield "cat " + " ".join(f"d{at}/f" for at in range(size // 8))
    yield "env " * (size // 4) + "x"
    yield "cd x --d=y " * (size // 11)
    yield "cd a; " * (size // 6)
    yield "echo " + "`" * size
    yield "echo " + "$(" * (size // 2)
    yield "echo " + "{a,b}" * (size // 5)
    yield "ls " + "*/" * (size // 2)
    yield "true && " * (size // 8) + "true"
    yield "cat <<E\n" + "x\n" * (size // 2) + "E\n"
    yield "sh -c '" * (size // 7)


def calls(size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls of callgate tools."""
    for command in commands(size):
        yield "shell", {"command": command}
    yield "write_file", {"path": "a", "content": "x\n" * (size // 4)}
    yield "write_file", {"path": "a/" * (size // 2), "content": "x"}
    yield "write_file", {"path": "a", "content": 'password = "' + "a" * (size // 2)}
    yield "patch_file", {"path": "a", "old": "x" * (size // 4), "new": "y\n" * (size // 4)}
    yield "search_text", {"pattern": "(" * size}
    yield "find_files", {"pattern": "{a,b}" * (size // 5)}
    yield "find_files", {"pattern": "**/" * (size // 3)}
    yield "read_file", {"path": "../" * (size // 3)}
    yield "read_file", {"path": "a", "other": nested(25)}
    yield "read_file", {f"k{at}": "v" for at in range(min(size // 10, 5_000))}
    yield "web_fetch", {"url": "http://a.example/" + "a" * size}


_NAMES = {
    "shell": ("Bash", {}),
    "write_file": ("Write", {"path": "file_path"}),
    "patch_file": ("Edit", {"path": "file_path", "old": "old_string", "new": "new_string"}),
    "search_text": ("Grep", {}),
    "find_files": ("Glob", {}),
    "read_file": ("Read", {"path": "file_path"}),
    "web_fetch": ("WebFetch", {}),
}


def events(size: int, workspace: Path) -> Iterator[bytes]:
    """The same as events of Claude Code, and calls of tools without a counterpart."""
    given: list[tuple[str, dict[str, Any]]] = []
    for tool, arguments in calls(size):
        name, keys = _NAMES[tool]
        given.append((name, {keys.get(key, key): value for key, value in arguments.items()}))
    edits = [{"old_string": "a", "new_string": "b"}] * (size // 40)
    given.append(("MultiEdit", {"file_path": "a", "edits": edits}))
    given.append(("Invented", {"a": ["/x/y"] * (size // 8)}))
    given.append(("Invented", {"a": [f"word {at}" for at in range(size // 16)]}))
    given.append(("Invented", {"deep": nested(25), "command": "cd a; " * (size // 6)}))
    given.append(("Known", {"files": ["a/b"] * (size // 6)}))
    for at, (name, arguments) in enumerate(given):
        yield json.dumps({
            "session_id": "s", "cwd": str(workspace), "hook_event_name": "PreToolUse",
            "tool_name": name, "tool_input": arguments, "tool_use_id": f"{size}-{at}",
        }).encode()  # fmt: skip


class Counted:
    """callgate in a process that counts."""

    def __init__(self, path: Path, *arguments: str, **more: Any) -> None:
        self.home, self.work, self.report = path / "home", path / "work", path / "report.json"
        self.home.mkdir(mode=0o700)
        self.work.mkdir()
        (self.home / "settings.toml").write_text(SETTINGS)
        self.env = environment({"CALLGATE_HOME": str(self.home)})
        given = [each.replace("@WORK", str(self.work)) for each in arguments]
        argv = [sys.executable, str(RUNNER), str(self.report), *given]
        self.process = subprocess.Popen(argv, env=self.env, cwd=self.work, **more)

    def wait_for(self, found: Callable[[], Any]) -> Any:
        for _ in range(int(LIMIT_S / 0.05)):
            assert self.process.poll() is None, "callgate has ended"
            with suppress(OSError, ValueError):
                if value := found():
                    return value
            time.sleep(0.05)
        raise AssertionError("callgate did not answer")

    def begin(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    def longest(self) -> tuple[int, dict[str, int]]:
        self.report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        found = self.wait_for(lambda: json.loads(self.report.read_text()))
        return found["lines"], found["functions"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Counted]:
    counted = Counted(
        tmp_path, "serve", "--workspace", "@WORK", "--http", "127.0.0.1:0",
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    editing.write_scripts(str(counted.home), "claude", 0.3)
    counted.wait_for(lambda: list((counted.home / "run").glob("*.token")))
    counted.wait_for(lambda: http_address(counted))
    yield counted
    counted.close()


def http_address(counted: Counted) -> str:
    (record,) = (json.loads(each.read_text()) for each in (counted.home / "instances").iterdir())
    return str(record["httpUrl"]).rstrip("/")


def hook_token(counted: Counted) -> str:
    return (counted.home / "hooks/claude/token").read_text().strip()


async def by_http(counted: Counted, size: int) -> None:
    (token,) = (each.read_text().strip() for each in (counted.home / "run").glob("*.token"))
    await _posted(counted, token, "/v1/calls", [
        json.dumps({"tool": tool, "arguments": arguments}).encode()
        for tool, arguments in calls(size)
    ])  # fmt: skip


async def _posted(counted: Counted, token: str, path: str, bodies: list[bytes]) -> None:
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=http_address(counted), timeout=LIMIT_S) as client:
        for body in bodies:
            answer = await client.post(path, content=body, headers=headers)
            assert answer.status_code in (200, 400, 413, 422), answer.text


async def by_socket(counted: Counted, size: int) -> None:
    async with connect(home=counted.home, cwd=counted.work) as gate:
        for tool, arguments in calls(size):
            await asyncio.wait_for(gate.call(tool, arguments), LIMIT_S)


async def by_hook(counted: Counted, size: int) -> None:
    (path,) = (counted.home / "hooks/sockets").glob("*.sock")
    for event in events(size, counted.work):
        reader, writer = await asyncio.open_unix_connection(str(path))
        header = {
            "v": 1, "agent": "claude", "token": hook_token(counted), "phase": "pre",
            "size": len(event),
        }  # fmt: skip
        writer.write(json.dumps(header).encode() + b"\n" + event)
        answer = await asyncio.wait_for(reader.readuntil(b"\n"), LIMIT_S)
        assert answer.startswith(b"callgate-hook ")
        writer.close()


ENTRIES = (by_http, by_socket, by_hook)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("size", [47_000, 3_000_000])
async def test_no_entry_of_an_instance_is_held_up(served: Counted, entry: Any, size: int) -> None:
    await entry(served, 50)  # whatever is loaded with the first call
    served.begin()
    await entry(served, size)
    lines, functions = served.longest()
    assert lines < MOST_LINES, functions
    assert lines > 50, "nothing was counted"


class Pipe(Counted):
    """callgate that speaks JSON-RPC over stdin and stdout."""

    def __init__(self, path: Path, *arguments: str) -> None:
        super().__init__(path, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.id = 0

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.id += 1
        message = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while True:
            answer = json.loads(self.process.stdout.readline())
            if answer.get("id") == self.id and "method" not in answer:
                return answer
            if "id" in answer and "method" in answer:
                self.refuse(answer["id"])

    def refuse(self, id: Any) -> None:
        """Decline the question of the server."""
        result = {"outcome": {"outcome": "cancelled"}, "action": "decline"}
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": id, "result": result}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


def by_mcp(pipe: Pipe, size: int) -> None:
    if pipe.id == 0:
        client = {"name": "test", "version": "1"}
        capabilities = {"elicitation": {}}
        pipe.ask("initialize", {
            "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": client,
        })  # fmt: skip
    for tool, arguments in calls(size):
        assert pipe.ask("tools/call", {"name": tool, "arguments": arguments})


def by_acp(pipe: Pipe, size: int) -> None:
    if pipe.id == 0:
        pipe.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    new = pipe.ask("session/new", {"cwd": str(pipe.work), "mcpServers": []})
    session = new["result"]["sessionId"]
    for tool, arguments in calls(size):
        text = f"/tool {tool} {json.dumps(arguments)}"
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        assert pipe.ask("session/prompt", prompt)


PIPES = {
    by_mcp: ("mcp", "serve", "--workspace", "@WORK", "--mode", "read"),
    by_acp: ("acp", "--mode", "read"),
}


@pytest.mark.parametrize("entry", PIPES)
@pytest.mark.parametrize("size", [47_000, 3_000_000])
def test_no_pipe_is_held_up(tmp_path: Path, entry: Any, size: int) -> None:
    pipe = Pipe(tmp_path, *PIPES[entry])
    try:
        entry(pipe, 50)
        pipe.begin()
        entry(pipe, size)
        lines, functions = pipe.longest()
    finally:
        pipe.close()
    assert lines < MOST_LINES, functions
    assert lines > 50, "nothing was counted"


@pytest.mark.parametrize("size", [47_000, 900_000])
def test_the_reader_of_calls_in_text_takes_effort_in_proportion_to_the_text(size: int) -> None:
    replies = [
        json.dumps({"toolCalls": [{"name": tool, "arguments": arguments}]}) for tool, arguments in calls(size // 2)
    ]
    replies += ["{" * size, "[" * size, '{"toolCalls": [' * (size // 15), "```json\n" * (size // 8)]
    for reply in replies:
        counted = count_function_calls(lambda text=reply: parse(text), repeats=1)
        assert counted < 40 * size, reply[:80]
