"""Sessions of agents behind hooks, their open calls, and the tool that represents a call.

PerformedCall   the agent runs the call in its process, and reports its end
SandboxedCall   the agent redeems a ticket, and callgate runs the command in its sandbox
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from callgate.core.content import FileDiff, TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolCancelled, ToolError, ToolPermissionDenied
from callgate.core.ids import session_id
from callgate.core.local.environment import Environment, off_loop
from callgate.core.sessions import Client, OpenSession, Session
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.tools.sources import AGENT_HOOKS
from callgate.features.agents.hooks.agent_tools import Edit, Translated
from callgate.features.agents.hooks.events import HookEvent, Verdict
from callgate.features.agents.hooks.prompts import Peer, Process, Spans, is_running
from callgate.features.agents.hooks.protection import Guarded
from callgate.features.agents.known import KNOWN, hooked, hooks_of, settings_files
from callgate.policy.rules import is_within
from callgate.runtime import Runtime
from callgate.workspace.excerpts import diff
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable
from callgate.workspace.preserving import preserving

NO_REPORT = "The agent did not report the end of the call."


class Report(msgspec.Struct, frozen=True):
    """An agent's report on the end of a call."""

    failed: bool = False
    text: str | None = None


class PerformedCall:
    """One call that an agent runs itself. Connects its hook with its tool."""

    def __init__(
        self, arguments: dict[str, Any], edits: tuple[Edit, ...] = (), *, amendable: bool = False
    ) -> None:
        """`amendable`: the agent runs the command in the hook's answer."""
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        """The arguments with which the call may run."""
        self.report: asyncio.Future[Report] = loop.create_future()
        self.edits = edits
        self._arguments = arguments
        self._amendable = amendable

    def work(self, factory: ToolFactory) -> PerformedTool:
        return PerformedTool(self, factory)

    def start(self, arguments: dict[str, Any], schema: Mapping[str, Any], workspace: str) -> None:
        """Allow the call. `schema` is the tool's schema, whose defaults complete the arguments."""
        changed = _changed(self._arguments, arguments, schema, workspace)
        if changed - ({"command"} if self._amendable else set()):
            raise ToolPermissionDenied(
                "The answer changed the arguments, and this agent cannot be told to run others.",
                reason="not_amendable",
            )
        if not self.started.done():
            self.started.set_result(arguments)

    def end(self, report: Report) -> None:
        """End the call. Idempotent."""
        if not self.report.done():
            self.report.set_result(report)


class PerformedTool:
    def __init__(self, call: PerformedCall, factory: ToolFactory) -> None:
        self._call = call
        self._inner = factory()

    @property
    def definition(self) -> ToolDefinition:
        return self._inner.definition

    async def preview(
        self, input: dict[str, Any], environment: Environment
    ) -> Preview | str | None:
        if self._call.edits:
            return await _preview_edits(self._call.edits, input, environment)
        preview = getattr(self._inner, "preview", None)
        result: Any = None if preview is None else preview(input, environment)
        if inspect.isawaitable(result):
            result = await result
        shown: Preview | str | None = result
        return shown

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        paths = list(_written_paths(self.definition, input))
        if not paths:
            return self._output(await self._run(input, context), ())
        files = context.workspace_files
        assert isinstance(files, WorkspaceFileAPI)
        async with preserving(files, paths) as preserved:
            report = await self._run(input, context)
        return self._output(report, preserved.diffs)

    async def _run(self, input: dict[str, Any], context: ToolContext) -> Report:
        self._call.start(input, self.definition.input_schema, context.workspace_path)
        return await self._call.report

    def _output(self, report: Report, diffs: tuple[FileDiff, ...]) -> ToolOutput:
        return ToolOutput(
            content=[TextBlock(report.text or "The agent ran it.")],
            success=not report.failed,
            files_modified=[each.path for each in diffs] or None,
            diffs=diffs,
        )

    async def cancel(self) -> bool:
        """End the call without a report. The agent is not notified and may continue the call."""
        if not self._call.report.done():
            self._call.report.set_exception(ToolCancelled(NO_REPORT, reason="no_report"))
        return True


def _changed(
    given: dict[str, Any], arguments: dict[str, Any], schema: Mapping[str, Any], workspace: str
) -> set[str]:
    """Return the names of the arguments that differ from the agent's, except for defaults."""
    properties = schema.get("properties", {})
    expected = {key: each["default"] for key, each in properties.items() if "default" in each}
    expected |= given
    changed = {key for key in given if key not in arguments}
    for key, value in arguments.items():
        known = expected.get(key)
        if key == "cwd" and isinstance(known, str):
            known, value = (
                os.path.realpath(os.path.join(workspace, each)) for each in (known, value)
            )
        if key not in expected or value != known:
            changed.add(key)
    return changed


def _written_paths(definition: ToolDefinition, input: dict[str, Any]) -> Iterator[str]:
    if definition.effect is not SideEffects.WRITE:
        return
    for name in definition.path_params or ():
        value = input.get(name)
        yield from [value] if isinstance(value, str) else value or ()


async def _preview_edits(
    edits: tuple[Edit, ...], input: dict[str, Any], environment: Environment
) -> Preview:
    path = input["path"]
    try:
        old = await environment.read_text(path)
    except ToolError as error:
        return Preview(f"Nothing would change: {error}")
    return await off_loop(_preview_of, edits, old, readable(path))


def _preview_of(edits: tuple[Edit, ...], old: str, path: str) -> Preview:
    new = old
    for edit in edits:
        if edit.old and edit.old not in new:
            return Preview("Nothing would change: the file lacks a text to replace.")
        new = new.replace(edit.old, edit.new, -1 if edit.everywhere else 1)
    return Preview(diff(old, new, path) or "Nothing would change.")


_MOST = 256


class Redeemed(msgspec.Struct, frozen=True):
    """Output and exit code of the agent's process."""

    text: str
    exit_code: int


class SandboxedCall:
    """One command that runs when its ticket is redeemed."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ticket = secrets.token_urlsafe(32)
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.redeemed: asyncio.Future[None] = loop.create_future()
        self.output: asyncio.Future[Redeemed] = loop.create_future()

    def work(self, factory: ToolFactory) -> SandboxedTool:
        return SandboxedTool(self, factory)


class Tickets:
    """Issued tickets that were not redeemed yet."""

    def __init__(self) -> None:
        self._calls: dict[str, SandboxedCall] = {}

    def add(self, call: SandboxedCall) -> None:
        while len(self._calls) >= _MOST:
            del self._calls[next(iter(self._calls))]
        self._calls[call.ticket] = call

    def withdraw(self, call: SandboxedCall) -> None:
        self._calls.pop(call.ticket, None)

    async def redeem(self, ticket: str) -> Redeemed | None:
        """Run the call of a ticket. None if the ticket is unknown or already redeemed."""
        call = self._calls.pop(ticket, None)
        if call is None or call.redeemed.done():
            return None
        call.redeemed.set_result(None)
        return await asyncio.shield(call.output)


class SandboxedTool:
    def __init__(self, call: SandboxedCall, factory: ToolFactory) -> None:
        self._call = call
        self._inner = factory()
        self._running = False
        if hasattr(self._inner, "preview"):
            self.preview = self._inner.preview

    @property
    def definition(self) -> ToolDefinition:
        return self._inner.definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        call = self._call
        call.started.set_result(input)
        text, code = "The command did not run.", 1
        try:
            await call.redeemed
            self._running = True
            output = await self._inner.execute(input, context)
            text = "".join(block.text for block in output.content if isinstance(block, TextBlock))
            found = output.value.get("exit_code") if isinstance(output.value, dict) else None
            code = found if isinstance(found, int) and 0 <= found < 256 else int(not output.success)
            return output
        except ToolError as error:
            text = f"callgate: {error}"
            raise
        finally:
            if not call.output.done():
                call.output.set_result(Redeemed(text, code))

    async def cancel(self) -> bool:
        if self._running:
            return await self._inner.cancel()
        if not self._call.redeemed.done():
            self._call.redeemed.set_exception(
                ToolCancelled("The agent did not run the command.", reason="not_redeemed")
            )
        return True


MOST_SESSIONS = 256
MOST_REMEMBERED = 512
MOST_PROMPTS = 16
"""Maximum number of prompts before the first call."""


class OpenCall(msgspec.Struct):
    """A call that an agent may be running."""

    forms: set[str]
    """The hooks that reported the call: an agent may run the hooks of another one as well."""
    digest: str
    """Hash of tool and arguments. A call id alone proves nothing, because a model's server sets
    it."""
    performed: PerformedCall | None
    """None: callgate runs the call in its sandbox."""
    decided: asyncio.Future[Verdict]

    @property
    def was_allowed(self) -> bool:
        return self.decided.done() and self.decided.result().allowed


class AgentSession:
    def __init__(self, agent: str, session: Session, home: str) -> None:
        self.agent = agent
        self.session = session
        files = [path for each in hooked() for path in settings_files(each, session.workspace)]
        for hooks in hooked().values():  # `.env` is a file of the workspace, not of an agent
            names = (each for each in hooks.switches.env_files if "/" in each)
            files += [os.path.join(session.workspace, each) for each in names]
        self.guarded = Guarded(home, dict.fromkeys(files), session.workspace)
        self.open: dict[str, list[OpenCall]] = {}
        """Open calls by key. An agent without call ids may run the same call twice concurrently."""
        self.refused: deque[str] = deque(maxlen=MOST_REMEMBERED)
        self.finished: deque[str] = deque(maxlen=MOST_REMEMBERED)
        """Keys of calls that ended in callgate before the agent reported their end."""
        self.unapproved: dict[str, str] = {}
        """Key -> the hook that reported an effect without permission. The agent's other hook
        reports the same effect again."""
        self.rewritten: dict[str, str] = {}
        """Key of a rewritten call -> key of the original call."""
        self.agent_process: Process | None = None
        """The process that reports the calls; None: unknown."""
        self.spans = Spans()
        self.prompts: list[tuple[Process, str]] = []
        """Prompts before the first call of their process."""
        self.is_contested = False
        """Whether two processes reported calls, so that no prompt counts any more."""
        self.present = ExitStack()

    def check_directory(self, cwd: str | None) -> None:
        """Refuse a directory outside the workspace: the session's rules do not apply there."""
        workspace = self.session.workspace
        if cwd is None or cwd == workspace:
            return
        if not os.path.isabs(cwd) or not is_within(os.path.realpath(cwd), workspace):
            raise ToolPermissionDenied(
                f"{cwd[:200]} is outside {workspace}, the directory of this conversation.",
                reason="cwd_outside",
            )

    def identify(self, peer: Peer | None) -> list[str]:
        """Note the process that reports a call. Return the prompts that it reported before."""
        if peer is None or peer.agent == self.agent_process:
            return []
        if self.agent_process is not None and is_running(self.agent_process):
            self.is_contested = True
            return []
        self.agent_process = peer.agent
        mine = [words for process, words in self.prompts if process == peer.agent]
        self.prompts.clear()
        return mine

    def rewrite(self, key: str, other: str) -> None:
        """Record that the agent will report a call under another key."""
        while len(self.rewritten) >= MOST_REMEMBERED:
            del self.rewritten[next(iter(self.rewritten))]
        self.rewritten[other] = key

    def take(self, key: str) -> OpenCall | None:
        """Remove and return the oldest open call of a key."""
        calls = self.open.get(key)
        if not calls:
            return None
        call = calls.pop(0)
        if not calls:
            del self.open[key]
        return call

    def add(self, key: str, call: OpenCall) -> None:
        self.open.setdefault(key, []).append(call)

    def drop(self, key: str, call: OpenCall) -> None:
        calls = self.open.get(key, [])
        if call in calls:
            calls.remove(call)
        if not calls:
            self.open.pop(key, None)


def digest_of(call: Translated) -> str:
    """Return a hash of tool and arguments."""
    text = json.dumps((call.tool, call.arguments), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ReadCall(msgspec.Struct, frozen=True):
    """One event, read as a call."""

    call: Translated
    digest: str
    refusal: ToolError | None = None
    """Why the call is refused, independent of the policy."""
    is_doubtful: bool = False
    """Whether the command may have effects that its words do not show."""


def key_of(event: HookEvent, read: ReadCall, agent: str) -> str:
    """Return the key that connects the events of one call: before, after, and of two hooks."""
    if event.use_id is not None and hooks_of(agent).names_calls:
        return event.use_id
    return read.digest


class AgentSessions:
    """Sessions by agent and by the agent's session id."""

    def __init__(self, runtime: Runtime, open_session: OpenSession, home: str) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._home = home
        self._sessions: dict[tuple[str, str], AgentSession] = {}

    def find(self, agent: str, event: HookEvent) -> AgentSession | None:
        return self._sessions.get((agent, event.session))

    def all(self) -> list[AgentSession]:
        return list(self._sessions.values())

    async def open(self, agent: str, event: HookEvent) -> AgentSession:
        """Return the session of an event, or open it.

        Raises `ToolPermissionDenied` if the directory is not served or outside the session.
        """
        found = self.find(agent, event)
        if found is not None:
            found.check_directory(event.cwd)
            return found
        session = self._open_session(event.cwd, session_id())
        session.tags |= {AGENT_HOOKS}
        session.client = Client(name=KNOWN[agent].label)
        session.title = f"{KNOWN[agent].label} in {session.workspace}"
        opened = AgentSession(agent, session, self._home)
        # A question stays in the inbox for any approver while the hook waits.
        opened.present.enter_context(self._runtime.permission.attach(None, session.id))
        self._sessions[agent, event.session] = opened
        await self._bound()
        return opened

    async def open_anywhere(self, agent: str, event: HookEvent) -> AgentSession:
        """Return the session for a report, also if its directory is not served."""
        try:
            return await self.open(agent, event)
        except ToolPermissionDenied:
            return await self.open(agent, msgspec.structs.replace(event, cwd=None))

    async def _bound(self) -> None:
        while len(self._sessions) > MOST_SESSIONS:
            key = next((key for key, each in self._sessions.items() if not each.open), None)
            await self._end(self._sessions.pop(key or next(iter(self._sessions))))

    async def _end(self, session: AgentSession) -> None:
        session.present.close()
        await self._runtime.sessions.close(session.session)

    async def close(self) -> None:
        for session in self.all():
            session.present.close()
        self._sessions.clear()
