"""A call of a session whose workspace lives in a pool: judged here, run by a worker.

    locate on a worker -> judged and asked about here -> recorded as started -> sent, once
                                                                                 |
        without effects: lost? the next worker of the workspace  <---------------+
        with effects:    lost? `interrupted`; what it did is not known, and it is not run again

Tools of this machine that would touch its own files are refused in such a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.content import FileDiff
from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolHostUnavailable,
    ToolPermissionDenied,
    ToolProtocolError,
)
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.sessions import PoolWorkspace
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.checks import Registered
from callgate.policy.decide import Rulebook
from callgate.policy.rules import Origin, Rule
from callgate.protocol.host_v1 import failures, frames, parts, values
from callgate.protocol.host_v1.frames import Cancel, Object
from callgate.protocol.host_v1.workers import (
    SERVER,
    ListChanges,
    LocateCall,
    Located,
    PreviewCall,
    RunTool,
    WorkerContext,
)
from callgate.protocol.ndjson import Unsendable
from callgate.sources.hosts.in_flight import InvalidAnswer, Refused
from callgate.sources.workers.links import WorkerLink, WorkerLost
from callgate.sources.workers.pools import WorkerPools

INTERRUPTED = "interrupted"
_OF_WORKERS = ("builtin",)
"""Sources of tools that workers have too."""
_LOCATE_S = 30.0
_PREVIEW_S = 60.0
_MOST_WORKERS = 3
"""That a call without effects is given to, one after the other."""


class PooledCalls:
    """The `Placement` of a server."""

    def __init__(self, pools: WorkerPools, policies: Callable[[str], Rulebook]) -> None:
        self.pools = pools
        self._policies = policies

    async def place(self, call: ToolCall, subject: Subject) -> Subject:
        definition, pool = subject.tool.definition, call.session.pool
        assert pool is not None
        if _is_for_no_files(subject.tool):
            return subject
        if definition.source not in _OF_WORKERS:
            raise ToolPermissionDenied(
                f"Tool {subject.tool.name!r} works with files of the server; the session's"
                f" workspace is {call.session.workspace}.",
                reason="not_in_pool",
            )
        placed = PlacedCall(self, call, subject, pool)
        located = await placed.locate()
        enclosure = None
        if located.enclosure is not None:
            try:
                enclosure = msgspec.convert(located.enclosure, Enclosure)
            except msgspec.ValidationError as error:
                raise placed.misunderstood(error) from None
        tool = msgspec.structs.replace(
            subject.tool, factory=partial(WorkerTool, placed), previewer=WorkerTool(placed)
        )
        return Subject(tool, subject.checked, located.resolved_paths, enclosure, located.named)

    def refusal(self, tool: Registered, pool: PoolWorkspace) -> str | None:
        """Why a call of this tool is refused in a session of this workspace; None: it is not.

        While no worker of the workspace is connected here, all that one may have is offered."""
        if _is_for_no_files(tool):
            return None
        if tool.definition.source not in _OF_WORKERS:
            return f"it works with files of the server, and the workspace is {pool}"
        serving = self.pools.serving(pool)
        if serving and not any(tool.name in each.tools for each in serving):
            return f"no worker of pool {pool.pool} has it"
        return None

    def rules(self, workspace: str) -> list[Object]:
        """The rules that bind files and commands, wherever they are."""
        book = self._policies(workspace)
        policies = [book.user] if book.workspace is None else [book.user, book.workspace]
        return [
            msgspec.to_builtins(_without_origin(rule))
            for policy in policies
            for rule in policy.rules
            if rule.path is not None or isinstance(rule.network, tuple)
        ]

    async def changes(
        self, pool: PoolWorkspace, session: str
    ) -> tuple[WorkerLink | None, list[str]]:
        """The calls of a session whose changes a worker keeps, oldest first, and that worker."""
        for link in self.pools.serving(pool):
            try:
                found = await link.value(ListChanges(session_id=session), list[str], _LOCATE_S)
            except (WorkerLost, Refused, InvalidAnswer, TimeoutError):
                continue
            if found:
                return link, found
        return None, []


def _without_origin(rule: Rule) -> Rule:
    """The rule without the path of a file of this machine."""
    return msgspec.structs.replace(rule, origin=Origin(SERVER, rule.origin.line))


def _is_for_no_files(tool: Registered) -> bool:
    """Whether a tool has nothing to do with a workspace, and so runs on this machine."""
    needs_files = tool.definition.requires_workspace or tool.definition.sandboxed
    return not needs_files and not tool.path_params


class PlacedCall:
    """One call, and the worker that it was judged on."""

    def __init__(
        self, calls: PooledCalls, call: ToolCall, subject: Subject, pool: PoolWorkspace
    ) -> None:
        self.call = call
        self.definition: ToolDefinition = subject.tool.definition
        self.has_effects = subject.tool.has_effects
        self._calls = calls
        self._pool = pool
        self._arguments = subject.checked.arguments
        self._lost: list[WorkerLink] = []
        self._link: WorkerLink | None = None
        self._located = Located()
        self._id: str | None = None
        """Of the request under way."""

    async def locate(self) -> Located:
        """Where the call leads on a worker, which gets it from now on."""
        while True:
            link = await self._calls.pools.choose(
                self._pool, self.definition.name, self.call.session.id, self._lost
            )
            params = LocateCall(
                tool_name=self.definition.name,
                arguments=self._arguments,
                context=self._context(None),
            )
            try:
                located: Located = await self._value(link, params, Located, _LOCATE_S)
            except WorkerLost:
                self._lost.append(link)
                if len(self._lost) >= _MOST_WORKERS:
                    raise self._unavailable(link) from None
                continue
            self._link, self._located = link, located
            return located

    async def run(self, context: ToolContext) -> ToolOutput:
        """Have the worker run it."""
        pools = self._calls.pools
        while True:
            link = self._link
            assert link is not None
            await pools.room(link)
            if link.is_lost and self.has_effects:
                raise self._unavailable(link)
            try:
                return await self._run_on(link, context)
            except WorkerLost:
                if self.has_effects:
                    raise self._interrupted(link) from None
                await self._move_on(link)
            finally:
                pools.freed()

    async def _move_on(self, link: WorkerLink) -> None:
        """Nothing was changed by it: another worker of the workspace may do it."""
        self._lost.append(link)
        if len(self._lost) >= _MOST_WORKERS:
            raise self._unavailable(link)
        judged = [each.relative for each in self._located.resolved_paths]
        located = await self.locate()
        if [each.relative for each in located.resolved_paths] != judged:
            raise ToolHostUnavailable(
                f"Worker {link.identity.name} was lost, and on another one the paths lead"
                " elsewhere. Make the call again.",
                reason="worker_lost",
            )

    async def _run_on(self, link: WorkerLink, context: ToolContext) -> ToolOutput:
        judged = [each.real for each in self._located.resolved_paths]

        def tell(event: frames.Event) -> None:
            if event.type == EFFECT_MISMATCH and isinstance(event.payload, dict):
                context.publish(event.type, event.payload)
            else:
                context.publish(*parts.to_event(event))

        params = RunTool(
            tool_name=self.definition.name,
            arguments=self._arguments,
            context=self._context(judged),
        )
        try:
            self._id, outcome = link.ask(params, tell)
        except Unsendable as error:
            problem = f"The call does not fit: {error}."
            raise ToolExecutionError(problem, reason="unsendable") from None
        try:
            returned = await outcome
        except Refused as refused:
            raise failures.to_error(refused.failure, trusted=True) from None
        except InvalidAnswer as error:
            raise self._invalid(link, error) from None
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            link.abandon(self._id)
            self._id = None
        return values.to_output(returned.result.value, trusted=True)

    async def preview(self) -> Preview | None:
        link = self._link
        assert link is not None
        params = PreviewCall(
            tool_name=self.definition.name,
            arguments=self._arguments,
            context=self._context([each.real for each in self._located.resolved_paths]),
        )
        try:
            found = await self._value(link, params, _Preview | None, _PREVIEW_S)
        except WorkerLost:
            raise self._unavailable(link) from None
        return None if found is None else Preview(found.text, found.diffs)

    async def cancel(self) -> bool:
        """Have the worker end it; False if it does not run there."""
        link, id = self._link, self._id
        if link is None or id is None or link.is_lost:
            return False
        link.tell(Cancel(id=id))
        return True

    async def _value(self, link: WorkerLink, params: Any, type: Any, limit_s: float) -> Any:
        try:
            return await link.value(params, type, limit_s)
        except Refused as refused:
            raise failures.to_error(refused.failure, trusted=True) from None
        except InvalidAnswer as error:
            raise self._invalid(link, error) from None
        except TimeoutError:
            raise ToolHostUnavailable(
                f"Worker {link.identity.name} of pool {self._pool.pool} does not answer.",
                reason="worker_silent",
            ) from None

    def _context(self, judged: list[str] | None) -> WorkerContext:
        call = self.call
        return WorkerContext(
            session_id=call.session.id,
            turn_id=call.turn_id,
            tool_use_id=call.shown_id,
            workspace_path=call.session.workspace,
            scope=dict(call.scope or {}),
            call_id=call.id,
            caller=str(call.caller),
            mode=str(call.session.mode),
            timeout_s=call.timeout_s,
            rules=self._calls.rules(call.session.workspace),
            judged=judged,
        )

    def _interrupted(self, link: WorkerLink) -> ToolError:
        return ToolExecutionError(
            f"Worker {link.identity.name} of pool {self._pool.pool} was lost while it ran the call."
            " What it did until then is not known; it is not run again.",
            reason=INTERRUPTED,
            details={"worker": link.identity.name, "pool": self._pool.pool},
        )

    def _unavailable(self, link: WorkerLink) -> ToolError:
        return ToolHostUnavailable(
            f"Worker {link.identity.name} of pool {self._pool.pool} was lost before it ran the"
            " call. Nothing was done; make the call again.",
            reason="worker_lost",
        )

    def misunderstood(self, error: Exception) -> ToolError:
        """Refuse what the worker says about the call, which does not make sense."""
        assert self._link is not None
        return self._invalid(self._link, InvalidAnswer(f"its answer cannot be taken ({error})"))

    def _invalid(self, link: WorkerLink, error: InvalidAnswer) -> ToolError:
        problem = f"Worker {link.identity.name} of pool {self._pool.pool}: {error}."
        return ToolProtocolError(problem, reason="worker_answer")


class _Preview(msgspec.Struct, frozen=True):
    text: str
    diffs: tuple[FileDiff, ...] = ()


class WorkerTool:
    """The tool of one placed call, as the execute stage sees it."""

    def __init__(self, placed: PlacedCall) -> None:
        self._placed = placed

    @property
    def definition(self) -> ToolDefinition:
        return self._placed.definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        return await self._placed.run(context)

    async def preview(self, input: dict[str, Any], environment: object) -> Preview | None:
        return await self._placed.preview()

    async def cancel(self) -> bool:
        return await self._placed.cancel()
