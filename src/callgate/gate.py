"""The library's face: a runtime on its embedded defaults, for one workspace.

    async with Gate(workspace=".", tools=[count_words], mode="ask", confirm=ask_me) as gate:
        result = await gate.call("count_words", {"path": "README.md"})

In an existing agent loop it takes two lines: `gate.definitions("anthropic")` goes into the
request, and `await gate.respond(message, "anthropic")` answers every tool use of the reply.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ToolUseBlock
from callgate.core.errors import ToolParseError
from callgate.core.ids import is_call_id
from callgate.core.messages import Message
from callgate.core.results import ToolResult
from callgate.core.sessions import Mode
from callgate.core.task_sets import start_task
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.events.bus import Subscription
from callgate.policy.decide import Decision
from callgate.protocol.definitions import (
    to_anthropic,
    to_mcp,
    to_openai_chat,
    to_openai_responses,
)
from callgate.protocol.results import (
    to_anthropic_result,
    to_mcp_result,
    to_openai_chat_result,
    to_openai_responses_result,
)
from callgate.protocol.tool_uses import UnreadableUse, read_tool_uses
from callgate.runtime import Resumed
from callgate.sessions.conversations import text_of_prompt
from callgate.wiring.registration import register_sources
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # loaded where a model is at work
    from callgate.agent.agent import Agent
    from callgate.agent.shows import Screen
    from callgate.agent.turns import TurnEnd
    from callgate.core.models import Model
    from callgate.sources.foreign import ForeignTools

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
    """One workspace, one session, one person to ask."""

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
        """`workspace` None means here; `tools` None means the built-in ones. With
        `sources="settings"` the hosts and MCP servers of the settings bring theirs. Without
        `confirm` nobody is asked: what must be asked is refused, or in a turn waits for an answer
        from elsewhere. Settings, sessions and the audit log lie in `home` (`CALLGATE_HOME`).
        `session` is the id of one to resume, with its workspace and mode."""
        if session is not None and (workspace, mode, title, tags) != (None, None, None, ()):
            raise ValueError("a resumed session has its own workspace, mode, tags and title")
        if sources not in (None, "settings"):
            raise ValueError(f"sources is 'settings' or None, not {sources!r}")
        resolved_home = Home.from_environment() if home is None else Home.at(os.fspath(home))
        self._wired = Wired(resolved_home)
        self.runtime = self._wired.runtime
        self._tracing = self._wired.tracing
        self.session = self._wired.session(
            "." if workspace is None else os.fspath(workspace),
            None if mode is None else Mode(mode),
            frozenset(tags),
        )
        self.session.title = title
        self.resumed: Resumed | None = None
        """Once entered, what was still open in the session that was resumed."""
        self._resumes = session
        if tools is None:
            self._wired.register_built_in()
        for factory in tools or ():
            self._wired.register(factory)
        self._sources = sources
        self._confirm = confirm
        self._agent: tuple[str | Model | None, Agent] | None = None
        self._attached = ExitStack()

    async def __aenter__(self) -> Gate:
        session_id = self._resumes or self.session.id
        try:
            if self._sources is not None:
                await register_sources(self._wired, await self._workspace())
            self._wired.warm()
            if self._wired.sharing is not None and self._wired.sharing.is_withheld:
                self._attached.callback(start_task(self._wired.sharing.follow()).cancel)
            if self._confirm is not None:
                self._attached.enter_context(self.runtime.attach(self._confirm, session_id))
            if self._resumes is not None:
                await self._resume(self._resumes)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _workspace(self) -> str:
        """Where the session works, also before it is resumed: then its open calls go on."""
        if self._resumes is None:
            return self.session.workspace
        return (await (await self.runtime.store()).get_session(self._resumes)).workspace

    @property
    def news(self) -> list[str]:
        """Hosts and MCP servers of the settings that are new, or bring no tools, and why."""
        return self._wired.notices

    async def __aexit__(self, *exc: object) -> None:
        self._attached.close()
        await self._wired.close()

    async def _resume(self, session_id: str) -> None:
        self.resumed = await self.runtime.resume(session_id)
        self.session = self.resumed.session
        self._wired.check_workspace(self.session.workspace)

    @asynccontextmanager
    async def turn(self, prompt: str | Message) -> AsyncIterator[str]:
        """A turn of an agent: what is called in it belongs to it. Its id.

        It is completed at the end of the `with`, and cancelled by an exception."""
        user_message = Message.text("user", prompt) if isinstance(prompt, str) else prompt
        with self.runtime.turns.reserve(self.session, stop=_only_by_the_program) as turn:
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
        """One turn of a model with the tools of this gate: it is asked, its calls run, until it
        is done. `model` is a name as in the settings, such as `anthropic/MODEL`, or a model;
        `screen` is shown what happens. Raises `ModelError` where there is no such model."""
        if self._agent is None or self._agent[0] != model:
            opened = await asyncio.to_thread(self._wired.open_agent, model)  # for its key
            self._agent = (model, opened)
        agent = self._agent[1]
        if screen is None:
            return await agent.turn(self.session, prompt)
        return await agent.turn(self.session, prompt, screen)

    async def end_turn(self, cancelled: str | None = None) -> None:
        """End the turn that was under way when the session was resumed; why, if it is given up."""
        await self.runtime.turns.end(self.session, cancelled=cancelled)

    async def say(self, message: str | Message) -> None:
        """Add what the model said, or what it was told, to the session's conversation."""
        new_message = Message.text("assistant", message) if isinstance(message, str) else message
        words = text_of_prompt(new_message) if new_message.role == "user" else None
        await self.runtime.conversations.say(self.session, new_message, user_words=words)

    async def messages(self) -> list[Message]:
        """The conversation of the session so far."""
        return await self.runtime.conversations.messages(self.session)

    def register(self, factory: ToolFactory) -> None:
        self._wired.register(factory)

    @cached_property
    def foreign_tools(self) -> ForeignTools:
        """Tools that an agent framework runs itself, for its adapter (`callgate.adapters`)."""
        from callgate.sources.foreign import ForeignTools  # lazy: only with a framework  # noqa: PLC0415

        tools = ForeignTools()
        self.runtime.dispatcher.registry.add(tools)
        return tools

    def definitions(self, dialect: Dialect) -> list[dict[str, Any]]:
        """The tools of this session, as a model provider wants to be told of them."""
        shapes = _shapes(dialect)
        return [shapes.definition(tool.definition) for tool in self.runtime.tools(self.session)]

    def call(
        self, tool: str, arguments: Any = None, *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, ToolResult]:
        """Run one tool. Refusals and failures come back in the result."""
        return self.runtime.call_promptly(
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
        """Run all tool uses of a message side by side; the results in their order.

        Takes a message or its tool uses in any dialect, or `ToolUseBlock`s."""
        return [result for _, result in await self._run_uses(tool_uses)]

    async def respond(self, message: Any, dialect: Dialect) -> list[dict[str, Any]]:
        """Run all tool uses of a model's message and give its results back in its words."""
        shapes = _shapes(dialect)
        return [shapes.result(result, id) for id, result in await self._run_uses(message)]

    def explain(self, tool: str, arguments: Any = None) -> Decision:
        """What would be decided about a call. Raises the `ToolError` it would end in."""
        call = ToolCall(
            tool=tool,
            arguments={} if arguments is None else arguments,
            session=self.session,
            caller=CallerKind.LIBRARY,
            turn_id=self.session.turn_id,
        )
        return self.runtime.explain(call)[1]

    def events(self, types: Collection[str] | None = None) -> Subscription:
        """A reader of what happens in this session: `async for event in gate.events()`."""
        return self.runtime.events(session_id=self.session.id, types=types)

    async def cancel(self) -> None:
        """Stop every call under way and wait until each has ended."""
        await self.runtime.cancel_session(self.session.id)

    async def _run_uses(self, tool_uses: Any) -> list[tuple[str, ToolResult]]:
        uses = read_tool_uses(tool_uses)
        readable = [self._as_call(use) for use in uses if isinstance(use, ToolUseBlock)]
        results = iter(await self.runtime.call_all(readable))
        return [
            (use.id, next(results) if isinstance(use, ToolUseBlock) else self._refuse(use))
            for use in uses
        ]

    def _as_call(self, use: ToolUseBlock) -> ToolCall:
        return self._call_for(use.id, use.name, use.input)

    def _refuse(self, use: UnreadableUse) -> ToolResult:
        call = self._call_for(use.id, use.name, {})
        return self.runtime.refuse(call, ToolParseError(use.message))

    def _call_for(self, id: str, name: str, arguments: Any) -> ToolCall:
        return ToolCall(  # with an id of our own: a model could name another call's
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
    """Nobody else can stop a turn that the program itself takes."""
    return False


def _shapes(dialect: str) -> _Shapes:
    try:
        return _DIALECTS[dialect]
    except KeyError:
        known = ", ".join(_DIALECTS)
        raise ValueError(f"unknown dialect {dialect!r}; known: {known}") from None
