"""A prompt of the editor, from its blocks to the reason for which its turn stopped.

/tool NAME {json}   one call, made by the person, without a model
/SKILL extra        what the skill says; by a sub-agent, where it says so
anything else       a turn of the model
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from callgate.agent.shows import SPAWN_AGENT
from callgate.agent.skills import SkillUnreadable, UnknownSkill
from callgate.core.calls import CallerKind
from callgate.core.content import ToolUseBlock
from callgate.core.ids import call_id
from callgate.core.messages import Message
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.stores import StoreError
from callgate.protocol import strict_json
from callgate.protocol.acp.requests import Prompt, Prompted, Usage
from callgate.protocol.acp.updates import SessionInfoUpdate
from callgate.protocol.acp.values import AUTH_REQUIRED
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.sessions.conversations import title_of
from callgate.sessions.session_turn import SessionTurn, TurnInProgress
from callgate.surfaces.acp.contents import iso, sendable, session_title
from callgate.surfaces.acp.dependencies import Dependencies
from callgate.surfaces.acp.editor_sessions import EditorSession
from callgate.surfaces.acp.prompts import UserPrompt, read_prompt, refused

if TYPE_CHECKING:  # heavy
    from callgate.agent.agent import Agent
    from callgate.agent.turns import TurnEnd

_TOOL = re.compile(r"/tool[ \t]+([^\s{]+)[ \t]*(\{.*\})?\s*\Z", re.DOTALL)


async def prompt(
    dependencies: Dependencies, editor_session: EditorSession, request: Prompt
) -> Prompted:
    """One turn. Everything that is told of it comes before this returns."""
    if editor_session.is_busy:
        raise refused("a prompt of this session is under way")
    user_prompt = read_prompt(request.prompt)
    try:
        turn = editor_session.reserve_turn()
    except TurnInProgress as error:  # it was left open
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
        await turn.begin(prepared.message, user_prompt.typed)
        end = await prepared.work()
    except StoreError as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    finally:
        await editor_session.cancels_received(turn)
    _tell_info(editor_session, title)
    return _prompted(dependencies, turn, end)


class _Prepared(NamedTuple):
    """A turn that can begin."""

    message: Message
    work: Callable[[], Awaitable[TurnEnd | None]]


async def _prepare(
    dependencies: Dependencies,
    editor_session: EditorSession,
    user_prompt: UserPrompt,
    turn: SessionTurn,
) -> _Prepared | None:
    """What a prompt asks for; None if it was cancelled before that is known."""
    sessions, show, text = dependencies.sessions, editor_session.telling.show, user_prompt.text
    if not await editor_session.settled(turn):
        return None
    if (use := _direct(text)) is not None:
        work = partial(sessions.make_call, turn, use, CallerKind.ACP, show)
        return _Prepared(user_prompt.message(text), work)
    try:
        composed = dependencies.skills.compose(text, editor_session.session)
    except UnknownSkill as error:
        raise refused(str(error)) from error
    except SkillUnreadable as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    agent = await open_agent(dependencies, editor_session.model)
    if user_prompt.images and not agent.model.images:
        raise refused(f"the model {agent.model.name} cannot be shown images")
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
    """Raises `RpcError` with what to do where there is no model to work with."""
    try:
        return await dependencies.sessions.agent(model)
    except ModelError as error:
        lacking = error.kind in (ModelErrorKind.KEY, ModelErrorKind.REQUEST)
        code = AUTH_REQUIRED if lacking else INTERNAL_ERROR
        raise RpcError(code, error.message, {"reason": f"model_{error.kind}"}) from error


def _direct(text: str) -> ToolUseBlock | None:
    """The call that a person makes; None for any other prompt."""
    if not text.startswith("/tool") or text[5:6] not in ("", " ", "\t", "\n"):
        return None
    found = _TOOL.match(text)
    if found is None:
        raise refused('a call is written /tool NAME {"argument": "value"}')
    try:
        given = strict_json.loads((found[2] or "{}").encode())
    except strict_json.StrictJsonError as error:
        raise refused(f"the arguments of {found[1]} are not JSON: {error}") from error
    return ToolUseBlock(id=call_id(), name=found[1], input=given)


def _name(editor_session: EditorSession, user_prompt: UserPrompt) -> None:
    """Call a session that has no name by what was typed, not by what is made of it."""
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
    dependencies.sessions.forget_agents()  # or a better key would not be looked at
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
