"""A small project, an agent at work in it, and you as the one who is asked: `make demo`.

Everything is real but the model, which plays a script: an instance serves a temporary
workspace, the agent reads, proposes an edit and waits for your answer, in the browser or here,
runs a command in the sandbox, and the edit is taken back. At the end stands the record of it.
Without a terminal nobody answers, so after a few seconds the demonstration does, and ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

CALLGATE = [sys.executable, "-m", "callgate"]
PATIENCE_S = 2.0
"""How long a question waits when there is no terminal to answer it from."""
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ

GREET = '"""Greets whoever is named."""\n\nimport sys\n\nprint("hello", sys.argv[1])\n'
SCRIPT = r"""
chunk = 6
delay_s = 0.03

[[replies]]
text = "I look at the program first."
calls = [
  { tool = "list_dir", input = { path = "." } },
  { tool = "read_file", input = { path = "greet.py" } },
]

[[replies]]
text = "The greeting is plain. I propose a friendlier one."

[[replies.calls]]
tool = "patch_file"
[replies.calls.input]
path = "greet.py"
old = 'print("hello", sys.argv[1])'
new = 'print(f"Good morning, {sys.argv[1]}!")'

[[replies]]
text = "Now I run it, and try to see more than I should."

[[replies.calls]]
tool = "shell"
[replies.calls.input]
command = "python3 greet.py Ada; cat ~/.ssh/id_ed25519; touch /etc/was-here; true"

[[replies]]
text = "It greets. Your keys and the rest of the machine were out of reach."
"""


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def say(text: str) -> None:
    print(paint("1;36", f"\n── {text}"), flush=True)


def note(text: str) -> None:
    print("\n".join(paint("2", f"   {line}") for line in text.splitlines()), flush=True)


class Instance:
    """A running `callgate serve`, over HTTP."""

    def __init__(self, workspace: Path, environment: dict[str, str]) -> None:
        self.workspace = workspace
        self.environment = environment
        self.link = self.run("dashboard", "--no-open").strip()
        base = json.loads(self.run("status", "--json"))["instances"][0]["http"]
        token = next(Path(environment["CALLGATE_HOME"], "run").glob("*.token")).read_text().strip()
        self.http = httpx2.Client(
            base_url=base, headers={"Authorization": f"Bearer {token}"}, timeout=30
        )

    def run(self, *arguments: str) -> str:
        """One command of the shell, as you would type it."""
        return subprocess.run(
            [*CALLGATE, *arguments],
            cwd=self.workspace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    def get(self, path: str, **query: Any) -> Any:
        return self.http.get(path, params=query).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return self.http.post(path, json=body)


@contextmanager
def instance(directory: Path) -> Iterator[Instance]:
    workspace, home = directory / "project", directory / "home"
    workspace.mkdir()
    home.mkdir(mode=0o700)
    (workspace / "greet.py").write_text(GREET)
    (directory / "script.toml").write_text(SCRIPT)
    (home / "settings.toml").write_text(
        f'model = "demo"\n\n[models.demo]\nkind = "scripted"\npath = "{directory}/script.toml"\n'
    )
    environment = {**os.environ, "CALLGATE_HOME": str(home)}
    complaints = directory / "serve.log"
    with complaints.open("w") as log:
        served = subprocess.Popen(
            [*CALLGATE, "serve", "--http", "127.0.0.1:0"],
            cwd=workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        assert served.stdout is not None
        if not served.stdout.readline():
            sys.exit(f"callgate serve did not start: {complaints.read_text()}")
        yield Instance(workspace, environment)
    finally:
        served.send_signal(signal.SIGTERM)
        served.wait(10)


def show(event: dict[str, Any]) -> None:
    said = event["payload"]
    match event["type"]:
        case "output.chat":
            print(f"   {said['content']}", flush=True)
        case "tool.called":
            note(f"● {said['tool_name']}")
        case "tool.output_delta":
            note("\n".join(f"  | {line}" for line in said["text"].splitlines()))
        case "tool.completed":
            note(f"  done in {said['latency_ms']:.0f} ms")
        case "tool.failed":
            note(f"  {said['error_class']}: {said['message']}")
        case "tool.confirmation_resolved":
            note(f"  {said['decision']} by {said.get('by', 'someone')}")


def ask(server: Instance, question: dict[str, Any]) -> None:
    """Put a question here, while it is open in the browser too: the first answer counts."""
    print(paint("33", f"   ? {question['tool']}: {question['why']}"))
    note(question["preview"] or question["input_summary"])
    terminal = sys.stdin.isatty()
    patience = "y or n, or answer in the browser" if terminal else f"yes in {PATIENCE_S:g} s"
    print(paint("33", f"   > {patience}: "), end="", flush=True)
    ends = time.monotonic() + PATIENCE_S
    while is_open(server, question["id"]):
        if terminal:
            ready, _, _ = select.select([sys.stdin], [], [], 0.3)
            said = sys.stdin.readline().strip().lower() if ready else None
        else:
            time.sleep(0.1)
            said = "y" if time.monotonic() > ends else None
        if said is not None:
            decision = "allow" if said in ("y", "yes") else "deny"
            server.post(f"/v1/confirmations/{question['id']}", {"decision": decision})
            print(decision)
            return
    print("answered elsewhere")


def is_open(server: Instance, question: str) -> bool:
    return any(each["id"] == question for each in server.get("/v1/confirmations")["confirmations"])


def turn(server: Instance, session: str) -> None:
    server.post(f"/v1/sessions/{session}/turns", {"prompt": "Make the greeting nicer."})
    seen, over = 0, False
    while not over:
        page = server.get(f"/v1/sessions/{session}/events", after=seen)
        for seq, event in page["events"]:
            seen = seq
            show(event)
            over |= event["type"] in ("turn.completed", "turn.cancelled")
        for question in server.get("/v1/confirmations", session=session)["confirmations"]:
            ask(server, question)
        time.sleep(0.1)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, instance(Path(directory)) as server:
        say("An instance serves a small project. Look on here (the link works once):")
        print(f"   {paint('1;4', server.link)}")
        say('You ask the agent: "Make the greeting nicer."')
        session = server.post("/v1/sessions", {"title": "Make the greeting nicer"}).json()["id"]
        turn(server, session)
        say("What the file says now")
        note((server.workspace / "greet.py").read_text())
        say("You take the edit back: callgate undo")
        undone = server.post(f"/v1/sessions/{session}/undo", {"confirmed": True})
        note("greet.py is what it was" if undone.is_success else "there was nothing to take back")
        say("The record of it: callgate audit tail, callgate audit verify")
        note(server.run("audit", "tail"))
        note(server.run("audit", "verify"))
        if sys.stdin.isatty() and sys.stdout.isatty():
            say("The dashboard stays up. Ctrl-C ends it.")
            print(f"   {paint('1;4', server.run('dashboard', '--no-open').strip())}", flush=True)
            signal.pause()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
