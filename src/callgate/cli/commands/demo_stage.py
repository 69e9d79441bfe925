"""The temporary home, workspace, runtime and approver of `callgate demo`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from callgate.cli.errors import CliError
from callgate.cli.programs import this_program
from callgate.cli.ui.confirmation_prompt import BY, until_closed
from callgate.cli.ui.dialog import Dialog, Lines
from callgate.cli.ui.terminal import Paint, columns, paint_for
from callgate.cli.ui.tty import Tty
from callgate.core.errors import ToolErrorClass
from callgate.core.stores import Store
from callgate.core.tasks import start_task
from callgate.dispatch.permission import questions
from callgate.dispatch.permission.confirmations import Answer
from callgate.policy.rules import Outcome

KEY_PATH = ".ssh/id_ed25519"
KEY = "This is not a real key. The callgate demo planted it.\n"
PROGRAM = "greet.sh"
GREETING = 'echo "hello, $1"\n'
PROMPT = "Make the greeting nicer."
_STOP_S = 10.0
_SCRIPT = """
[[replies]]
text = "I read the program, and look for a private key."
calls = [
  { tool = "read_file", input = { path = "greet.sh" } },
  { tool = "read_file", input = { path = "../.ssh/id_ed25519" } },
]

[[replies]]
text = "I propose a friendlier greeting."
calls = [
  { tool = "patch_file", input = { path = "greet.sh", old = "hello", new = "Good morning" } },
]

[[replies]]
text = "I try the key once more, with a command, and run the program."
calls = [{ tool = "shell", input = { command = "cat ~/.ssh/id_ed25519; sh greet.sh Ada" } }]

[[replies]]
text = "That is all."
"""
_SETTINGS = """
model = "demo"

[models.demo]
kind = "scripted"
path = {script}

[limits]
confirmation_timeout_s = {answer_within_s}

[[policy.rules]]
decision = "allow"
tool = "shell"
"""


class Stage:
    """The files of one demo. The directory belongs to the caller."""

    def __init__(self, directory: Path, answer_within_s: float, more_settings: str) -> None:
        """
        Args:
            more_settings: TOML that follows the demo's settings.
        """
        self.home = directory / "home"
        self.workspace = self.home / "project"
        self.key = self.home / KEY_PATH
        self.program = self.workspace / PROGRAM
        self.callgate_home = self.home / ".callgate"
        self.log = directory / "serve.log"
        self.key.parent.mkdir(parents=True, mode=0o700)
        self.callgate_home.mkdir(mode=0o700)
        self.workspace.mkdir()
        self.key.write_text(KEY)
        self.program.write_text(GREETING)
        script = directory / "script.toml"
        script.write_text(_SCRIPT)
        settings = _SETTINGS.format(
            script=_toml_string(str(script)), answer_within_s=float(answer_within_s)
        )
        (self.callgate_home / "settings.toml").write_text(f"{settings}{more_settings}")

    def environment(self) -> Mapping[str, str]:
        """The environment of this process without any setting of callgate."""
        passed = {k: v for k, v in os.environ.items() if not k.startswith(("CALLGATE_", "XDG_"))}
        return {**passed, "HOME": str(self.home), "CALLGATE_HOME": str(self.callgate_home)}

    def planted_key(self) -> str:
        """Return the present content of the key file; empty if the file is gone."""
        return self.key.read_text() if self.key.is_file() else ""

    async def run(self, *words: str) -> str:
        """Run a command in the workspace; return its stdout and stderr."""
        process = await asyncio.create_subprocess_exec(
            *this_program(),
            *words,
            cwd=self.workspace,
            env=self.environment(),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        printed, _ = await process.communicate()
        return printed.decode("utf-8", "replace")


@asynccontextmanager
async def served_stage(
    answer_within_s: float, more_settings: str = ""
) -> AsyncIterator[tuple[Stage, asyncio.Task[int]]]:
    """Yield a stage, and a task that ends with its instance. Removes both afterwards."""
    with tempfile.TemporaryDirectory(prefix="callgate-demo-") as directory:
        stage = Stage(Path(directory), answer_within_s, more_settings)
        with stage.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *this_program(),
                *("serve", "--http", "127.0.0.1:0"),
                cwd=stage.workspace,
                env=stage.environment(),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo, which stops the instance
            )
        ended = start_task(process.wait())
        try:
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise instance_ended(stage)
            yield stage, ended
        finally:
            await _stop(process, ended)


def instance_ended(stage: Stage) -> CliError:
    lines = stage.log.read_text("utf-8", "replace").strip().splitlines()
    reason = lines[-1] if lines else "it printed no reason"
    return CliError(
        f"the instance of the demo ended: {reason}",
        hint="callgate doctor checks this machine.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="demo_instance_ended",
    )


async def _stop(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):  # SIGTERM would let an open question drain
        if not ended.done():
            process.send_signal(number)
            await asyncio.wait({ended}, timeout=_STOP_S)


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


BY_DEMO = "callgate demo"
BY_YES = "--yes"
PATIENCE_S = 2.0
"""Time limit for an answer in the browser if there is no terminal."""
_INDENT = "   "
_WIDE = 120
_COLOURS = {"+": "green", "-": "red", "@": "dim"}
_CHOICES = {"y": "[y]es", "n": "[n]o"}
_DENIALS = frozenset({"n", "no", ""})


class QuestionLines(Lines):
    """A question on a screen, indented; the lines of a diff are coloured."""

    def __init__(self, lines: Collection[str], paint: Paint) -> None:
        super().__init__(lines)
        self._paint = paint

    def rows(self, width: int) -> Iterator[str]:
        for row in super().rows(width - len(_INDENT)):
            colour = _COLOURS.get(row[:1])
            yield _INDENT + (row if colour is None else self._paint(colour, row))


class Approver:
    """Answers one question at a time: by a person, by `--yes`, or by the demo."""

    def __init__(self, store: Store, tty: Tty | None, *, yes: bool) -> None:
        """`tty`: None if there is no terminal to ask at."""
        self._store = store
        self._tty = tty
        self._yes = yes

    def invitation(self) -> str | None:
        """Return a sentence about how a person can answer; None with `--yes`."""
        if self._yes:
            return None
        if self._tty is None:
            return f"No terminal: the demo answers yes after {PATIENCE_S:g} s without an answer."
        return "Answer here or in the browser."

    async def answer(self, id: str, lines: Collection[str]) -> None:
        """Ask, and return as soon as the question is closed, here or elsewhere."""
        stored = await self._store.get_confirmation(id)
        closed = start_task(until_closed(self._store, stored))
        answering = start_task(self._choose(lines))
        try:
            await asyncio.wait({answering, closed}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await questions.answer(self._store, id, answering.result())
        finally:
            closed.cancel()
            answering.cancel()
            await asyncio.wait({answering, closed})  # the terminal is as it was before

    async def _choose(self, lines: Collection[str]) -> Answer:
        if self._tty is not None and not self._yes:
            return await self._ask(self._tty, lines)
        document = QuestionLines(lines, paint_for(sys.stdout))
        print("\n".join(document.rows(columns(_WIDE))), flush=True)
        if self._yes:
            return Answer(decision=Outcome.ALLOW, by=BY_YES)
        await asyncio.sleep(PATIENCE_S)
        return Answer(decision=Outcome.ALLOW, by=BY_DEMO)

    async def _ask(self, tty: Tty, lines: Collection[str]) -> Answer:
        async with tty.asking():
            dialog = Dialog(tty, QuestionLines(lines, paint_for(sys.stdout)))
            while True:
                word = await dialog.choose(_CHOICES, {"y"}, f"{_INDENT}Allow this edit?")
                if word == "y":
                    return Answer(decision=Outcome.ALLOW, by=BY)
                if word is None or word in _DENIALS:
                    return Answer(decision=Outcome.DENY, by=BY)
