"""Home, workspace, tools and recordings of one scripted call.

The sandbox is a fake: `Sandbox` computes the enclosure of a call as always, and commands start
with nothing around them. The snapshot is therefore independent of the backends of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from callgate import ToolContext, ToolExecutionError, error_result, ok_result, tool
from callgate.core.effects import SideEffects
from callgate.core.events import Event
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.instance.wiring.runtime import Wired
from callgate.sandbox.jails import Guarantee
from callgate.sandbox.plans import CannotGuarantee
from tests.features.contract.pipeline.cases import Case
from tests.features.contract.pipeline.masks import Mask
from tests.support import UnwalledLauncher, make_tool

LIMIT_S = 30.0
_PATH_LENGTH = 60
"""Length of every scene's path: sizes of arguments and of summaries must not depend on it."""


class Scene:
    """One case: its directories, and everything that was recorded about its calls."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.answer, self.is_containable = case.answer, case.is_containable
        self.base = _directory()
        self.home, self.work = self.base / "home", self.base / "work"
        self.home.mkdir(mode=0o700)
        self.work.mkdir()
        (self.work / "a.txt").write_text("hello\n")
        (self.work / "private").mkdir()
        (self.work / "private" / "key").write_text("k\n")
        mode = f'mode = "{case.mode}"\n'
        (self.home / "settings.toml").write_text(mode + case.settings)
        self.events: list[Event] = []
        self.questions: list[Confirmation] = []
        self.wire: list[Any] = []
        """Messages of the surface that belong to the snapshot, such as questions of an editor."""
        self.started = asyncio.Event()
        """A tool of this scene that waits for its end is running."""
        self.asked = asyncio.Event()
        """A question is stored."""

    def tools(self) -> Sequence[Any]:
        """Tools for situations that no built-in tool gets into."""

        @tool(side_effects="write", requires_workspace=False)
        async def put(what: str) -> str:
            """Store something."""
            return f"put {what}"

        transfer = make_tool(
            "transfer",
            SideEffects.WRITE,
            {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
            lambda input, context: f"transferred {input['amount']}",
            requires_workspace=False,
            always_ask=True,
        )

        @tool(side_effects="none")
        async def wait(context: ToolContext) -> str:
            """Wait until the call is stopped."""
            self.started.set()
            await context.cancel_event.wait()
            return "stopped"

        @tool(side_effects="write", requires_workspace=False)
        async def work(context: ToolContext) -> str:
            """Wait until the call is stopped, with side effects."""
            context.progress("half", 0.5)
            self.started.set()
            await context.cancel_event.wait()
            return "stopped"

        @tool(side_effects="none")
        async def fails(how: str) -> object:
            """Fail in the given way."""
            if how == "reported":
                return error_result("no such thing", reason="absent", details={"thing": 1})
            if how == "raised":
                raise ToolExecutionError("broken", reason="broken", details={"a": 1})
            raise RuntimeError("secret-9c1f")

        @tool(side_effects="read")
        async def lies() -> object:
            """Change a file although the tool declares that it only reads."""
            return ok_result({"a": 1}, diagnostics=["careful"], files_modified=["a.txt"])

        return put, transfer, wait, work, fails, lies

    def watch(self, wired: Wired) -> None:
        """Record the events of a runtime, and prepare the trouble of the case."""
        wired.bus.listen(self._record)
        if not self.case.is_recordable:
            assert wired._audit is not None
            wired._audit.ensure_open = _disk_full  # type: ignore[method-assign]

    def _record(self, event: Event) -> None:
        self.events.append(event)
        if event.type == "tool.confirmation_requested":
            self.asked.set()

    async def person(self, question: Confirmation) -> Answer:
        """Answer as the case says; without an answer, wait until the question is withdrawn."""
        self.questions.append(question)
        answer = self.answer
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    async def ended(self, count: int) -> None:
        """Wait until so many calls have an audit record."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.records()) < count:
                await asyncio.sleep(0.005)

    def records(self) -> list[dict[str, Any]]:
        path = self.home / "audit.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [record for line in lines if "tool" in (record := json.loads(line))]

    def lines(self, result: Any) -> list[dict[str, Any]]:
        """Everything about the case, masked, one part per line."""
        paths = {self.work: "<work>", self.home: "<home>", self.base: "<tmp>", self.base.parent: ""}
        mask = Mask({str(path): name for path, name in paths.items()})
        events = [each for each in self.events if each.type.startswith("tool.")]
        calls = list(dict.fromkeys(str(each.payload["call_id"]) for each in events))
        # Concurrent calls write in any order: the snapshot has one call after the other.
        events.sort(key=lambda each: calls.index(str(each.payload["call_id"])))
        records = sorted(self.records(), key=lambda each: calls.index(each["call_id"]))
        parts: list[dict[str, Any]] = [{"event": mask(msgspec.to_builtins(each))} for each in events]
        parts += [{"question": mask(_shown(each))} for each in self.questions]
        parts += [{"wire": mask(each)} for each in self.wire]
        parts += [{"record": mask(each)} for each in records]
        parts.append({"result": mask(msgspec.to_builtins(result))})
        return [{"case": self.case.name, **part} for part in parts]

    def close(self) -> None:
        shutil.rmtree(self.base, ignore_errors=True)


def _shown(question: Confirmation) -> dict[str, Any]:
    """The fields of a question that its event does not have."""
    fields: dict[str, Any] = msgspec.to_builtins(question)
    for name in ("input_summary", "why", "tool_use_id", "session_id", "side_effects", "command_summary"):
        del fields[name]
    return fields


def _directory() -> Path:
    """A new directory whose path has a fixed length."""
    parent = os.path.realpath(tempfile.gettempdir())
    name = f"cg{uuid.uuid4().hex}"
    missing = _PATH_LENGTH - len(parent) - 1 - len(name)
    path = Path(parent, name + "0" * max(0, missing))
    path.mkdir(mode=0o700)
    return path


def _disk_full() -> None:
    raise OSError(28, "No space left on device")


@contextmanager
def fake_sandbox(scene: Scene) -> Iterator[None]:
    """Start commands without a sandbox, or refuse all of them, as the scene says."""

    def find(self: Sandbox, enclosure: Enclosure, session: Any) -> Any:
        if enclosure.profile is not None and not scene.is_containable:
            return CannotGuarantee([Guarantee.WRITES_CONFINED], ["no backend"])
        return UnwalledLauncher()

    def rule_launcher(self: Sandbox, enclosure: Enclosure, session: Any, *more: Any, **named: Any) -> Any:
        return self.launcher(enclosure, session)

    async def ready(self: Sandbox) -> None:
        return None

    replaced: dict[str, Callable[..., Any]] = {"_find": find, "rule_launcher": rule_launcher, "ready": ready}
    with patch.multiple(Sandbox, **replaced):
        yield
