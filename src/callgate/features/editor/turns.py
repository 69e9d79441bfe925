"""A prompt of the editor, from its blocks to the stop reason of its turn.

/tool NAME {json}   one call of the user, without a model /SKILL extra        the instructions of
the skill; in a sub-agent if the skill requests it anything else       a turn of the model
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from callgate.core.calls import CallerKind
from callgate.core.content import Message, ToolUseBlock
from callgate.core.ids import call_id
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.stores import StoreError
from callgate.features.editor.contents import (
    UserPrompt,
    iso,
    read_prompt,
    refused,
    sendable,
    session_title,
)
from callgate.features.editor.editor_sessions import Dependencies, EditorSession
from callgate.protocol import strict_json
from callgate.protocol.acp.requests import Prompt, Prompted, Usage
from callgate.protocol.acp.updates import AUTH_REQUIRED, SessionInfoUpdate
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.sessions.conversations import title_of
from callgate.sessions.session_turns import SessionTurn, TurnInProgress
from callgate.sessions.shows import SPAWN_AGENT
from callgate.sources.skills import SkillUnreadable, UnknownSkill

if TYPE_CHECKING:  # heavy
    from callgate.features.chat.agent.agent import Agent
    from callgate.sessions.shows import TurnEnd

_TOOL = re.compile(r"/tool[ \t]+([^\s{]+)[ \t]*(\{.*\})?\s*\Z", re.DOTALL)


async def prompt(
    dependencies: Dependencies, editor_session: EditorSession, request: Prompt
) -> Prompted:
    """Run one turn. All updates are sent before this returns."""
    if editor_session.is_busy:
        raise refused("a prompt of this session is running")
    user_prompt = read_prompt(request.prompt)
    try:
        turn = editor_session.reserve_turn()
    except TurnInProgress as error:  # a process that ended left the turn open
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    answer = None
    if turn is not None:
        with editor_session.answering():
            answer = await turn.complete(
                lambda: _answer(dependencies, editor_session, user_prompt, turn)
            )
    return answer or Prompted(stop_reason="cancelled")


async def _answer(
    dependencies: Dependencies,
    editor_session: EditorSession,
    user_prompt: UserPrompt,
    turn: SessionTurn,
) -> Prompted | None:
    title = editor_session.session.title
    editor_session.tell_commands()
    try:
        prepared = await _prepare(dependencies, editor_session, user_prompt, turn)
        if prepared is None:
            return None
        _name(editor_session, user_prompt)
        await turn.begin(prepared.message, prepared.words or user_prompt.typed)
        end = await prepared.work()
    except StoreError as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    finally:
        await editor_session.cancels_received(turn)
    _tell_info(editor_session, title)
    return _prompted(dependencies, turn, end)


class _Prepared(NamedTuple):
    """A turn that is ready to start."""

    message: Message
    work: Callable[[], Awaitable[TurnEnd | None]]
    words: str = ""
    """The user's words for the guard, if they are not the typed text."""


async def _prepare(
    dependencies: Dependencies,
    editor_session: EditorSession,
    user_prompt: UserPrompt,
    turn: SessionTurn,
) -> _Prepared | None:
    """Return the work of a prompt; None if it was cancelled during the preparation."""
    sessions, show, text = dependencies.sessions, editor_session.telling.show, user_prompt.text
    if not await editor_session.settled(turn):
        return None
    if (use := _direct(text)) is not None:
        work = partial(sessions.make_call, turn, use, CallerKind.ACP, show)
        texts = [each for each in use.input.values() if isinstance(each, str)]
        return _Prepared(user_prompt.message(text), work, "\n".join(texts))
    try:
        composed = dependencies.skills.compose(text, editor_session.session)
    except UnknownSkill as error:
        raise refused(str(error)) from error
    except SkillUnreadable as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    agent = await open_agent(dependencies, editor_session.model)
    if user_prompt.images and not agent.model.images:
        raise refused(f"the model {agent.model.name} does not accept images")
    editor_session.telling.window = agent.model.context_tokens
    if turn.is_cancelled:
        return None
    if not composed.delegate:
        return _Prepared(user_prompt.message(composed.text), partial(agent.work, turn, show))
    given = {"task": composed.text}
    if composed.skill is not None:
        given["title"] = composed.skill.name
    use = ToolUseBlock(id=call_id(), name=SPAWN_AGENT, input=given)
    work = partial(sessions.make_call, turn, use, CallerKind.ACP, show, agent)
    return _Prepared(user_prompt.message(text), work)


async def open_agent(dependencies: Dependencies, model: str | None) -> Agent:
    """Return the agent of a model. Raises `RpcError` with advice if there is no usable model."""
    try:
        return await dependencies.sessions.agent(model)
    except ModelError as error:
        lacking = error.kind in (ModelErrorKind.KEY, ModelErrorKind.REQUEST)
        code = AUTH_REQUIRED if lacking else INTERNAL_ERROR
        raise RpcError(code, error.message, {"reason": f"model_{error.kind}"}) from error


def _direct(text: str) -> ToolUseBlock | None:
    """Return the call of a `/tool` prompt; None for all others."""
    if not text.startswith("/tool") or text[5:6] not in ("", " ", "\t", "\n"):
        return None
    found = _TOOL.match(text)
    if found is None:
        raise refused('the syntax of a call is /tool NAME {"argument": "value"}')
    try:
        given = strict_json.loads((found[2] or "{}").encode())
    except strict_json.StrictJsonError as error:
        raise refused(f"the arguments of {found[1]} are not JSON: {error}") from error
    return ToolUseBlock(id=call_id(), name=found[1], input=given)


def _name(editor_session: EditorSession, user_prompt: UserPrompt) -> None:
    """Give an untitled session a title from the typed text, not from the composed prompt."""
    session = editor_session.session
    session.title = session.title or title_of(Message.text("user", sendable(user_prompt.typed)))


def _tell_info(editor_session: EditorSession, title: str | None) -> None:
    session = editor_session.session
    fields: dict[str, Any] = {"updated_at": iso(time.time())}
    if session.title != title:
        fields["title"] = session_title(session.title)
    editor_session.tell(SessionInfoUpdate(**fields))


def _failure(dependencies: Dependencies, end: TurnEnd) -> RpcError:
    message = end.notice or "The turn failed."
    if end.failure is None:
        return RpcError(INTERNAL_ERROR, message)
    data = {"reason": f"model_{end.failure}"}
    if end.failure is not ModelErrorKind.KEY:
        return RpcError(INTERNAL_ERROR, message, data)
    dependencies.sessions.forget_agents()  # so that the next agent reads a corrected key
    return RpcError(AUTH_REQUIRED, message, data)


def _prompted(dependencies: Dependencies, turn: SessionTurn, end: TurnEnd | None) -> Prompted:
    if end is None or end.stop == "waiting" or turn.is_stopped_by_user:
        return Prompted(stop_reason="cancelled")
    if end.stop == "error":
        raise _failure(dependencies, end)
    if not dependencies.unstable:
        return Prompted(stop_reason=end.stop)
    used = end.usage
    return Prompted(
        stop_reason=end.stop,
        usage=Usage(
            total_tokens=used.input + used.output,
            input_tokens=used.input,
            output_tokens=used.output,
            cached_read_tokens=used.cache_read,
            cached_write_tokens=used.cache_write,
        ),
    )
