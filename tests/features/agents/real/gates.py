"""A gate for one agent: an instance in a process of its own, the agent's hooks, and its program.

The agent talks to a scripted model. What it ran is seen by what it left in the workspace.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from callgate.features.agents.commands import editing
from callgate.features.agents.commands.trying import Launch, ScriptedModel, Step, launch, run, serving, tool_results
from callgate.features.agents.known import codex, hooks_of
from callgate.socket.instances import running

ROOT = Path(__file__).parents[4]
TOOLS = ROOT / ".tools/agents/node_modules"
PROGRAMS = {
    "claude": TOOLS / "@anthropic-ai/claude-code-linux-x64/claude",
    "codex": TOOLS / "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    "gemini": TOOLS / ".bin/gemini",
    "qwen": TOOLS / ".bin/qwen",
    "kimi": TOOLS / ".bin/kimi",
    "copilot": TOOLS / "@github/copilot-linux-x64/copilot",
}
WAIT_S = 3.0
_UNASKED = {"claude": "--dangerously-skip-permissions", "qwen": "--yolo", "gemini": "--yolo"}
"""The option by which each program asks nothing itself."""
_RUN_S = 200.0
SETTINGS = """
[hooks]
wait_s = {wait_s}
shell = "{shell}"
[[policy.rules]]
decision = "allow"
tool = "shell"
command = "touch allowed*"
[[policy.rules]]
decision = "deny"
tool = "shell"
command = "touch denied*"
"""


class Outcome(NamedTuple):
    results: list[str]
    """What the agent told its model about its calls."""
    said: str

    @property
    def told(self) -> str:
        return "\n".join(self.results)


class Gate:
    def __init__(
        self,
        path: Path,
        agent: str,
        shell: str = "agent",
        *,
        mode: str = "ask",
        asks_itself: bool = False,
    ) -> None:
        """`mode` is callgate's. `asks_itself`: the agent keeps its own questions."""
        self.agent = agent
        self.mode, self.asks_itself = mode, asks_itself
        self.home, self.workspace = path / "gate", path / "work"
        self.agent_home = path / "person"
        for each in (self.home, self.workspace, self.agent_home):
            each.mkdir(mode=0o700)
        settings = SETTINGS.format(wait_s=WAIT_S, shell=shell)
        (self.home / "settings.toml").write_text(settings)
        self.env = {**os.environ, "CALLGATE_HOME": str(self.home)}
        self.pid: int | None = None
        self.port = _free_port()

    # --- the instance -------------------------------------------------------------------------

    def start(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "callgate", "serve", "--detach", "--workspace",
             str(self.workspace), "--http", f"127.0.0.1:{self.port}", "--mode", self.mode],
            env=self.env, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        (record,) = running(str(self.home))
        self.pid = record.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.pid is not None
        process = os.pidfd_open(self.pid)
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            assert select.select([process], [], [], 20)[0], "the instance did not end"
        os.close(process)

    def close(self) -> None:
        if self.pid is None:
            return
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.home / "run" / f"{self.pid}.token").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    @contextlib.contextmanager
    def answering(self, decision: str) -> Iterator[list[dict[str, Any]]]:
        """A person who answers whatever is asked, in the inbox."""
        asked: list[dict[str, Any]] = []
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                for question in self.request("GET", "/v1/confirmations")["confirmations"]:
                    asked.append(question)
                    answer = {"decision": decision}
                    self.request("POST", f"/v1/confirmations/{question['id']}", answer)

        person = threading.Thread(target=look)
        person.start()
        try:
            yield asked
        finally:
            over.set()
            person.join()

    def records(self) -> list[dict[str, Any]]:
        """What the audit log says."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.home / "audit.jsonl").read_text().splitlines()
            return [record for line in lines if "tool" in (record := json.loads(line))]
        return []

    def record_of(self, word: str) -> dict[str, Any]:
        """The one record of a call whose arguments have this word; agents report late."""
        for _ in range(100):
            found = [each for each in self.records() if word in each.get("args", "")]
            if found:
                assert len(found) == 1, found
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no record of {word}")

    # --- the agent ----------------------------------------------------------------------------

    @functools.cached_property
    def settings(self) -> str:
        """The agent's settings with its hooks, installed once."""
        editing.write_scripts(str(self.home), self.agent, WAIT_S)
        return editing.with_hook(self.agent, str(self.home), "", WAIT_S)

    def run(
        self,
        *commands: str,
        steps: Sequence[Step] = (),
        sandboxed: bool = False,
        launched: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Have the agent's model ask for commands, or for other calls. `sandboxed`: all of the
        agent runs in our sandbox. `launched` is called when its settings are written."""
        asked = [Step(*hooks_of(self.agent).shell_call(command)) for command in commands] or list(steps)
        with serving(asked) as model:
            start = self.launched(model)
            launched()
            if sandboxed:
                start = self._sandboxed(start)
            ended = run(start, str(self.workspace), _RUN_S)
            said = ended.stdout + ended.stderr
            assert model.requests, said
        assert len(model.requests) >= 2, said
        return Outcome(list(tool_results(model.requests[-1])), said)

    def launched(self, model: ScriptedModel) -> Launch:
        program, home = str(PROGRAMS[self.agent]), str(self.agent_home)
        launched = launch(self.agent, program, self.settings, home, model.url)
        path = f"{TOOLS / '.bin'}:{launched.env['PATH']}"
        env = {**launched.env, "PATH": path}
        if self.agent == "codex":
            self._trust(env)
            launched.argv.remove("--dangerously-bypass-hook-trust")
        if self.asks_itself:
            launched.argv.remove(_UNASKED[self.agent])
        return Launch(launched.argv, env)

    def offered_tools(self) -> dict[str, set[str]]:
        """The arguments of each tool that the agent offers to its model."""
        with serving([]) as model:
            launched = self.launched(model)
            launched.env["ENABLE_TOOL_SEARCH"] = "false"  # Claude Code names all of them then
            run(launched, str(self.workspace), _RUN_S)
        return dict(_offered(tool for each in model.requests for tool in each.get("tools") or ()))

    def _sandboxed(self, launched: Launch) -> Launch:
        argv = [sys.executable, "-m", "callgate", "sandbox", "--", *launched.argv]
        return Launch(argv, {**launched.env, "CALLGATE_HOME": str(self.home)})

    def _trust(self, env: dict[str, str]) -> None:
        """What a person does in Codex when they review its hooks."""
        before = dict(os.environ)
        os.environ.update(CODEX_HOME=env["CODEX_HOME"], HOME=env["HOME"])
        try:
            mark = str(self.home / "hooks/codex")
            hooks = codex.listed_hooks(str(PROGRAMS["codex"]), str(self.workspace), mark)
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert hooks
        config = Path(env["CODEX_HOME"]) / "config.toml"
        state = "".join(f'\n[hooks.state."{each["key"]}"]\ntrusted_hash = "{each["currentHash"]}"\n' for each in hooks)
        config.write_text(config.read_text() + state)

    def ran(self, name: str) -> bool:
        return (self.workspace / name).exists()


def _offered(tools: Iterable[dict[str, Any]]) -> Iterator[tuple[str, set[str]]]:
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _offered(tool["tools"])
            continue
        for each in tool.get("functionDeclarations") or [tool.get("function", tool)]:
            keys = ("input_schema", "parameters", "parametersJsonSchema")
            schema = next((each[key] for key in keys if each.get(key)), {})
            yield each.get("name") or each["type"], set(schema.get("properties") or ())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def impostor(gate: Gate, answers: Sequence[bytes]) -> Iterator[None]:
    """In the instance's place: whoever answers garbage, one after the other."""
    following = itertools.cycle(answers)
    directory = gate.home / "hooks/sockets"
    directory.mkdir(parents=True, exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(directory / f"{os.getpid()}.sock"))
    listening.listen()
    held: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                held.append(connection)
                connection.recv(65_536)
                connection.sendall(next(following))
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (listening, *held):
            each.close()
        (directory / f"{os.getpid()}.sock").unlink()


def _bound(port: int, handler: type[BaseHTTPRequestHandler]) -> HTTPServer:
    """A server at a port that children of the killed instance may still share for a moment."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            return HTTPServer(("127.0.0.1", port), handler)
        time.sleep(0.05)
    raise AssertionError(f"port {port} stays in use")


@contextlib.contextmanager
def port_impostor(port: int, answer: bytes) -> Iterator[list[str]]:
    """At the HTTP port of an instance that ended: a process that gives one answer to everything.
    Yields the requests that it received."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            received.append(f"{self.requestline}\n{self.headers}")
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = _bound(port, Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


__all__ = ["PROGRAMS", "Gate", "impostor", "port_impostor"]
