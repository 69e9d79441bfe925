"""`Gate`: the library interface, a runtime with its defaults for one workspace.

    async with Gate(workspace=".", tools=[count_words], mode="ask", confirm=ask_me) as gate:
        result = await gate.call("count_words", {"path": "README.md"})

A program without an event loop writes `with Gate(...)`: the gate then has a loop in its own thread.

In an existing agent loop it takes two lines: `gate.definitions("anthropic")` goes into the
request, and `await gate.respond(message, "anthropic")` answers every tool use of the reply.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.content import Message, ToolUseBlock
from callgate.core.errors import ToolParseError
from callgate.core.ids import is_call_id
from callgate.core.sessions import Mode
from callgate.core.tasks import BackgroundLoop, start_task
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.events.bus import Subscription
from callgate.instance.wiring.builder import build, register_sources
from callgate.instance.wiring.runtime import Wired
from callgate.policy.decisions import Decision
from callgate.protocol.provider_shapes import (
    UnreadableUse,
    read_tool_uses,
    to_anthropic,
    to_anthropic_result,
    to_mcp,
    to_mcp_result,
    to_openai_chat,
    to_openai_chat_result,
    to_openai_responses,
    to_openai_responses_result,
)
from callgate.runtime import Resumed
from callgate.sessions.conversations import text_of_prompt

if TYPE_CHECKING:  # loaded where a model is at work
    from callgate.core.models import Model
    from callgate.instance.wiring.runtime import AnyAgent
    from callgate.sessions.shows import Screen, TurnEnd
    from callgate.sources.foreign import ForeignTools
    from callgate.workspace.undo.comparing import ChangeSet

T = TypeVar("T")
Dialect = Literal["anthropic", "openai", "openai-responses", "mcp"]


class _Shapes(NamedTuple):
    definition: Callable[[ToolDefinition], dict[str, Any]]
    result: Callable[[ToolResult, str], dict[str, Any]]


_DIALECTS: Mapping[str, _Shapes] = {
    "anthropic": _Shapes(to_anthropic, to_anthropic_result),
    "openai": _Shapes(to_openai_chat, to_openai_chat_result),
    "openai-responses": _Shapes(to_openai_responses, to_openai_responses_result),
    "mcp": _Shapes(to_mcp, lambda result, tool_use_id: to_mcp_result(result)),
}


class Gate:
    """One workspace, one session, and one approver."""

    def __init__(
        self,
        workspace: str | os.PathLike[str] | None = None,
        tools: Iterable[ToolFactory] | None = None,
        *,
        mode: Mode | str | None = None,
        confirm: Confirmer | None = None,
        home: str | os.PathLike[str] | None = None,
        tags: Collection[str] = (),
        title: str | None = None,
        session: str | None = None,
        sources: Literal["settings"] | None = None,
    ) -> None:
        """Defaults: the current directory as `workspace`, and the built-in `tools`.

        Args:
            confirm: the approver. Without it, calls that need approval are refused; in a turn they
                wait for an answer from elsewhere.
            home: the directory of settings, sessions and the audit log (`CALLGATE_HOME`).
            session: the id of a session to resume, with its workspace and mode.
            sources: `"settings"` adds the tools of the configured hosts and MCP servers.
        """
        if session is not None and (workspace, mode, title, tags) != (None, None, None, ()):
            raise ValueError("a resumed session has its own workspace, mode, tags and title")
        if sources not in (None, "settings"):
            raise ValueError(f"sources is 'settings' or None, not {sources!r}")
        resolved_home = Home.from_environment() if home is None else Home.at(os.fspath(home))

        def register(wired: Wired, _: str) -> None:
            if tools is None:
                wired.register_built_in()
            for factory in tools or ():
                wired.register(factory)

        self._wired = build(resolved_home, "", register)
        self.runtime = self._wired.runtime
        self._tracing = self._wired.tracing
        self.session = self._wired.session(
            "." if workspace is None else os.fspath(workspace),
            None if mode is None else Mode(mode),
            frozenset(tags),
        )
        self.session.title = title
        self.resumed: Resumed | None = None
        """The open calls of the resumed session, once the gate was entered."""
        self._resumes = session
        self._sources = sources
        self._confirm = confirm
        self._agent: tuple[str | Model | None, AnyAgent] | None = None
        self._attached = ExitStack()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the gate was entered. Its calls run there, even if an adapter
        of a framework is called in another thread or loop.
        """
        self._thread: BackgroundLoop | None = None

    def __enter__(self) -> Gate:
        """Enter the gate without an event loop, for synchronous runs of agent frameworks.

        It has a loop in a separate thread until the end of the `with`, where `confirm` is called.
        """
        thread = BackgroundLoop()
        thread.__enter__()
        try:
            thread.do(self.__aenter__())
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    def __exit__(self, *exc: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.do(self.__aexit__())
            finally:
                thread.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this gate, such as `gate.call(...)`, and wait for its result.

        Only inside `with Gate(...)`; inside `async with`, await it.
        """
        if self._thread is None:
            work.close()
            raise RuntimeError("wait_for needs a gate that was opened with `with Gate(...)`")
        return self._thread.do(work)

    async def __aenter__(self) -> Gate:
        self.loop = asyncio.get_running_loop()
        session_id = self._resumes or self.session.id
        try:
            if self._sources is not None:
                await register_sources(self._wired, await self._workspace())
            self._wired.warm()
            if self._wired.sharing is not None and self._wired.sharing.is_withheld:
                self._attached.callback(start_task(self._wired.sharing.follow()).cancel)
            if self._confirm is not None:
                self._attached.enter_context(
                    self.runtime.permission.attach(self._confirm, session_id)
                )
            if self._resumes is not None:
                await self._resume(self._resumes)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _workspace(self) -> str:
        """Return the workspace, also of a session that is resumed later, with its open calls."""
        if self._resumes is None:
            return self.session.workspace
        return (await (await self.runtime.sessions.store()).get_session(self._resumes)).workspace

    @property
    def news(self) -> list[str]:
        """Notices about configured hosts and MCP servers that are new, or provide no tools."""
        return self._wired.notices

    async def __aexit__(self, *exc: object) -> None:
        self._attached.close()
        await self._wired.close()

    async def _resume(self, session_id: str) -> None:
        self.resumed = await self.runtime.sessions.resume(session_id)
        self.session = self.resumed.session
        self._wired.check_workspace(self.session.workspace)

    @asynccontextmanager
    async def turn(self, prompt: str | Message) -> AsyncIterator[str]:
        """Begin a turn of an agent, which contains the calls made in the `with`; yields its id.

        The turn is completed at the end of the `with`, and cancelled by an exception.
        """
        user_message = Message.text("user", prompt) if isinstance(prompt, str) else prompt
        with self.runtime.sessions.turns.reserve(self.session, stop=_only_by_the_program) as turn:
            id = await turn.begin(user_message)
            try:
                yield id
            except BaseException as error:
                why = "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
                await turn.end(cancelled=why)
                raise
            await turn.end()

    async def run(
        self,
        prompt: str | Message,
        *,
        model: str | Model | None = None,
        screen: Screen | None = None,
    ) -> TurnEnd:
        """Run one turn of a model with the tools of this gate, until the model is done.

        Args:
            model: a name as in the settings, such as `anthropic/MODEL`, or a model.
            screen: receives the output.

        Raises `ModelError` if there is no such model.
        """
        if self._agent is None or self._agent[0] != model:
            opened = await asyncio.to_thread(self._wired.open_agent, model)  # reads its key
            self._agent = (model, opened)
        agent = self._agent[1]
        if screen is None:
            return await agent.turn(self.session, prompt)
        return await agent.turn(self.session, prompt, screen)

    async def end_turn(self, cancelled: str | None = None) -> None:
        """End the turn that was running when the session was resumed; `cancelled` is the reason."""
        await self.runtime.sessions.turns.end(self.session, cancelled=cancelled)

    async def say(self, message: str | Message) -> None:
        """Add a message of the model, or to the model, to the session's conversation."""
        new_message = Message.text("assistant", message) if isinstance(message, str) else message
        words = text_of_prompt(new_message) if new_message.role == "user" else None
        await self.runtime.sessions.conversations.say(self.session, new_message, user_words=words)

    async def messages(self) -> list[Message]:
        """Return the conversation of the session so far."""
        return await self.runtime.sessions.conversations.messages(self.session)

    def register(self, factory: ToolFactory) -> None:
        self._wired.register(factory)

    @cached_property
    def foreign_tools(self) -> ForeignTools:
        """Tools that an agent framework runs itself, for its adapter (`callgate.adapters`)."""
        from callgate.sources.foreign import ForeignTools  # lazy: only with a framework  # noqa: PLC0415

        tools = ForeignTools()
        self._wired.registry.add(tools)
        return tools

    def definitions(self, dialect: Dialect) -> list[dict[str, Any]]:
        """Return the definitions of this session's tools in the format of a model provider."""
        shapes = _shapes(dialect)
        return [
            shapes.definition(tool.definition) for tool in self.runtime.tools.listed(self.session)
        ]

    def call(
        self, tool: str, arguments: Any = None, *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run one tool. Refusals and failures are returned in the result."""
        return self.runtime.calls.run_promptly(
            ToolCall(
                tool=tool,
                arguments={} if arguments is None else arguments,
                session=self.session,
                caller=CallerKind.LIBRARY,
                turn_id=self.session.turn_id,
                timeout_s=timeout_s,
                trace=None if self._tracing is None else self._tracing.current(),
            )
        )

    async def call_all(self, tool_uses: Any) -> list[ToolResult]:
        """Run all tool uses of a message concurrently; return the results in their order.

        Takes a message or its tool uses in any dialect, or `ToolUseBlock`s.
        """
        return [result for _, result in await self._run_uses(tool_uses)]

    async def respond(self, message: Any, dialect: Dialect) -> list[dict[str, Any]]:
        """Run all tool uses of a model's message; return the results in the provider's format."""
        shapes = _shapes(dialect)
        return [shapes.result(result, id) for id, result in await self._run_uses(message)]

    def explain(self, tool: str, arguments: Any = None) -> Decision:
        """Return the decision about a call. Raises its refusal, a `ToolError`."""
        call = ToolCall(
            tool=tool,
            arguments={} if arguments is None else arguments,
            session=self.session,
            caller=CallerKind.LIBRARY,
            turn_id=self.session.turn_id,
        )
        return self.runtime.permission.explain(call)[1]

    async def changes(self, call_id: str) -> ChangeSet | None:
        """Return the files that a call changed, with diffs without secrets; None if callgate
        stores no change of that call. For people: do not pass it to a model."""
        from callgate.workspace.undo import timelines  # lazy: few programs ask  # noqa: PLC0415
        from callgate.workspace.undo.history import History  # lazy: as above  # noqa: PLC0415

        history = History(os.path.join(self._wired.home.path, "undo"))
        return await asyncio.to_thread(timelines.of_call, history, call_id)

    def events(self, types: Collection[str] | None = None) -> Subscription:
        """Return a reader for events of this session: `async for event in gate.events()`."""
        return self.runtime.sessions.events(session_id=self.session.id, types=types)

    async def cancel(self) -> None:
        """Stop all running calls of this gate's session, and wait until each has ended."""
        await self.runtime.sessions.cancel(self.session.id)

    async def _run_uses(self, tool_uses: Any) -> list[tuple[str, ToolResult]]:
        uses = read_tool_uses(tool_uses)
        readable = [self._as_call(use) for use in uses if isinstance(use, ToolUseBlock)]
        async with asyncio.TaskGroup() as group:
            run = self.runtime.calls.run_promptly
            tasks = iter([group.create_task(run(call)) for call in readable])
        return [
            (use.id, next(tasks).result() if isinstance(use, ToolUseBlock) else self._refuse(use))
            for use in uses
        ]

    def _as_call(self, use: ToolUseBlock) -> ToolCall:
        return self._call_for(use.id, use.name, use.input)

    def _refuse(self, use: UnreadableUse) -> ToolResult:
        call = self._call_for(use.id, use.name, {})
        return self.runtime.calls.refuse(call, ToolParseError(use.message))

    def _call_for(self, id: str, name: str, arguments: Any) -> ToolCall:
        return ToolCall(  # with a new id: a model could use the id of another call
            external_id=None if is_call_id(id) else id,
            tool_use_id=id,
            tool=name,
            arguments=arguments,
            session=self.session,
            caller=CallerKind.LIBRARY,
            turn_id=self.session.turn_id,
            trace=None if self._tracing is None else self._tracing.current(),
        )


def _only_by_the_program() -> bool:
    """Return False: only the program can stop its own turn."""
    return False


def _shapes(dialect: str) -> _Shapes:
    try:
        return _DIALECTS[dialect]
    except KeyError:
        known = ", ".join(_DIALECTS)
        raise ValueError(f"unknown dialect {dialect!r}; known: {known}") from None
