"""A call of a session whose workspace is in a pool: decided here, run by a worker.

    locate on a worker -> decided and approved here -> recorded as started -> sent, once
                                                                                 |
        without effects: lost? the next worker of the workspace  <---------------+
        with effects:    lost? `interrupted`; its effect is unknown, and it is not repeated

`InPool` is the site of such a call, on the machine of the worker. The worker contains the call and
locates its paths with the same code (`features.fleet.worker`). The server decides on that basis,
asks, records, and sends the call to the worker. Tools of this machine that would use its files are
refused in such a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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
from callgate.core.sessions import PoolWorkspace, ResolvedPath
from callgate.core.tasks import start_task
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject, Work
from callgate.dispatch.tools.checks import Registered
from callgate.features.fleet.pools import WorkerLink, WorkerLost, WorkerPools
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision
from callgate.policy.rules import Origin, Rule
from callgate.protocol.host_v1 import frames, values
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
from callgate.protocol.strict_json import Unsendable
from callgate.sources.host_links import HostRefused, InvalidAnswer


class Placed(msgspec.Struct, frozen=True):
    """A call on its chosen worker."""

    work: Work | None = None
    """None: the call is unrelated to the workspace, so its tool runs on this machine."""
    enclosure: Enclosure | None = None
    resolved_paths: tuple[ResolvedPath, ...] = ()
    named: tuple[ResolvedPath, ...] = ()


class Workers(Protocol):
    """The workers of an instance; `placing.PooledCalls` implements it."""

    async def assign(self, call: ToolCall, subject: Subject) -> Placed:
        """Choose a worker, which contains and locates the call.

        Raises a `ToolError` if no worker has the workspace, if a path leaves it, or if the tool
        would use files of this machine.
        """
        ...


class InPool:
    """The site of one call. `running` is the call that waits for its worker."""

    def __init__(self, workers: Callable[[], Workers], running: RunningCall | None) -> None:
        if running is None:
            raise ToolExecutionError(
                "Only the worker knows the files of this call.", reason="in_pool"
            )
        self._workers = workers
        self._running = running
        self._placed = Placed()

    async def prepare(self, call: ToolCall, subject: Subject) -> None:
        placing = start_task(self._workers().assign(call, subject))
        self._placed = await self._running.until(placing)

    def contain(self, call: ToolCall, subject: Subject, before: Subject | None = None) -> Subject:
        work = self._placed.work or subject.work
        return msgspec.structs.replace(subject, enclosure=self._placed.enclosure, work=work)

    def locate(self, call: ToolCall, subject: Subject) -> Subject:
        placed = self._placed
        return msgspec.structs.replace(
            subject, resolved_paths=placed.resolved_paths, named=placed.named
        )

    def is_unbound(self, call: ToolCall, subject: Subject) -> bool:
        return False

    def ensure(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        pass  # the worker has checked it

    def relocate(self, call: ToolCall, subject: Subject) -> Subject:
        return subject

    def launcher(self, call: ToolCall, subject: Subject) -> None:
        return None


INTERRUPTED = "interrupted"
_OF_WORKERS = ("builtin",)
"""Sources of tools that workers also have."""
_LOCATE_S = 30.0
_PREVIEW_S = 60.0
_MOST_WORKERS = 3
"""Maximum number of workers for a call without effects, one after the other."""


class PooledCalls:
    """The workers of a server, for the site `InPool`."""

    def __init__(self, pools: WorkerPools, policies: Callable[[str], Rulebook]) -> None:
        self.pools = pools
        self._policies = policies

    async def assign(self, call: ToolCall, subject: Subject) -> Placed:
        definition, pool = subject.tool.definition, call.session.pool
        assert pool is not None
        if _is_for_no_files(subject.tool):
            return Placed()
        if definition.source not in _OF_WORKERS or call.handover is not None:
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
        work = Work(partial(WorkerTool, placed), WorkerTool(placed))
        return Placed(work, enclosure, located.resolved_paths, located.named)

    def refusal(self, tool: Registered, pool: PoolWorkspace) -> str | None:
        """Return why a tool is refused in sessions of this workspace, or None.

        While no worker of the workspace is connected here, all tools that a worker may have are
        offered.
        """
        if _is_for_no_files(tool):
            return None
        if tool.definition.source not in _OF_WORKERS:
            return f"it works with files of the server, and the workspace is {pool}"
        serving = self.pools.serving(pool)
        if serving and not any(tool.name in each.tools for each in serving):
            return f"no worker of pool {pool.pool} has it"
        return None

    def rules(self, workspace: str) -> list[Object]:
        """Return the rules about files and network hosts, without their location."""
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
        """Return the calls of a session whose changes a worker stores, oldest first, and that
        worker.
        """
        for link in self.pools.serving(pool):
            try:
                found = await link.value(ListChanges(session_id=session), list[str], _LOCATE_S)
            except (WorkerLost, HostRefused, InvalidAnswer, TimeoutError):
                continue
            if found:
                return link, found
        return None, []


def _without_origin(rule: Rule) -> Rule:
    """Return a rule without the path of a file on this machine."""
    return msgspec.structs.replace(rule, origin=Origin(SERVER, rule.origin.line))


def _is_for_no_files(tool: Registered) -> bool:
    """Whether a tool needs no workspace, and so runs on this machine."""
    needs_files = tool.definition.requires_workspace or tool.definition.sandboxed
    return not needs_files and not tool.path_params


class PlacedCall:
    """One call, and its worker."""

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
        """Id of the running request."""

    async def locate(self) -> Located:
        """Choose a worker and return the call's paths there."""
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
        """Run the call on its worker."""
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
        """Choose another worker of the workspace, because the lost one changed nothing."""
        self._lost.append(link)
        if len(self._lost) >= _MOST_WORKERS:
            raise self._unavailable(link)
        judged = [each.relative for each in self._located.resolved_paths]
        located = await self.locate()
        if [each.relative for each in located.resolved_paths] != judged:
            raise ToolHostUnavailable(
                f"Worker {link.identity.name} was lost, and the paths resolve differently on"
                " another one. Make the call again.",
                reason="worker_lost",
            )

    async def _run_on(self, link: WorkerLink, context: ToolContext) -> ToolOutput:
        judged = [each.real for each in self._located.resolved_paths]

        def tell(event: frames.Event) -> None:
            if event.type == EFFECT_MISMATCH and isinstance(event.payload, dict):
                context.publish(event.type, event.payload)
            else:
                context.publish(*values.to_event(event))

        params = RunTool(
            tool_name=self.definition.name,
            arguments=self._arguments,
            context=self._context(judged),
        )
        try:
            self._id, outcome = link.ask(params, tell)
        except Unsendable as error:
            problem = f"The call cannot be sent to the worker: {error}."
            raise ToolExecutionError(problem, reason="unsendable") from None
        try:
            returned = await outcome
        except HostRefused as refused:
            raise values.to_error(refused.failure, trusted=True) from None
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
        """Cancel the call on its worker. False if it does not run there."""
        link, id = self._link, self._id
        if link is None or id is None or link.is_lost:
            return False
        link.tell(Cancel(id=id))
        return True

    async def _value(self, link: WorkerLink, params: Any, type: Any, limit_s: float) -> Any:
        try:
            return await link.value(params, type, limit_s)
        except HostRefused as refused:
            raise values.to_error(refused.failure, trusted=True) from None
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
        """Return the error for an invalid description of the call by its worker."""
        assert self._link is not None
        return self._invalid(self._link, InvalidAnswer(f"its answer is invalid ({error})"))

    def _invalid(self, link: WorkerLink, error: InvalidAnswer) -> ToolError:
        problem = f"Worker {link.identity.name} of pool {self._pool.pool}: {error}."
        return ToolProtocolError(problem, reason="worker_answer")


class _Preview(msgspec.Struct, frozen=True):
    text: str
    diffs: tuple[FileDiff, ...] = ()


class WorkerTool:
    """The tool of one placed call, for the execute stage."""

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
