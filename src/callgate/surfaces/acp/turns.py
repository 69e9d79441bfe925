"""A prompt of the editor, from its blocks to the reason for which its turn stopped.

/tool NAME {json}   one call, made by the person, without a model
/SKILL extra        what the skill says; by a sub-agent, where it says so
anything else       a turn of the model
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from callgate.agent.shows import SPAWN_AGENT
from callgate.agent.skills import SkillUnreadable, UnknownSkill
from callgate.core.calls import CallerKind
from callgate.core.content import ToolUseBlock
from callgate.core.ids import call_id
from callgate.core.messages import Message
from callgate.core.models import ModelError, ModelErrorKind
from callgate.core.stores import StoreError
from callgate.live_sessions import TurnInProgress
from callgate.protocol import strict_json
from callgate.protocol.acp.requests import Prompt, Prompted, Usage
from callgate.protocol.acp.updates import SessionInfoUpdate
from callgate.protocol.acp.values import AUTH_REQUIRED
from callgate.protocol.jsonrpc import INTERNAL_ERROR, RpcError
from callgate.sessions.titles import title_of
from callgate.surfaces.acp.contents import iso, sendable, session_title
from callgate.surfaces.acp.dependencies import Dependencies
from callgate.surfaces.acp.editor_sessions import EditorSession
from callgate.surfaces.acp.prompts import UserPrompt, read_prompt, refused

if TYPE_CHECKING:  # heavy
    from callgate.agent.turns import TurnEnd

_TOOL = re.compile(r"/tool[ \t]+([^\s{]+)[ \t]*(\{.*\})?\s*\Z", re.DOTALL)


async def prompt(
    dependencies: Dependencies, editor_session: EditorSession, request: Prompt
) -> Prompted:
    """One turn. Everything that is told of it comes before this returns."""
    if editor_session.is_busy:
        raise refused("a prompt of this session is under way")
    user_prompt = read_prompt(request.prompt)
    work = editor_session.begin(lambda: _turn(dependencies, editor_session, user_prompt))
    if work is None:
        return Prompted(stop_reason="cancelled")
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        editor_session.cancel()
        await asyncio.wait([work])
        raise


async def _turn(
    dependencies: Dependencies, editor_session: EditorSession, user_prompt: UserPrompt
) -> Prompted:
    title = editor_session.session.title
    editor_session.tell_commands()
    try:
        turn = await _begin(dependencies, editor_session, user_prompt)
        if turn is None:
            return Prompted(stop_reason="cancelled")
        if editor_session.is_cancelled:  # while it was begun
            dependencies.sessions.cancel_turn(editor_session.session.id)
        end = await dependencies.sessions.turn_end(editor_session.session.id, turn)
    except (StoreError, TurnInProgress) as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    _tell_info(editor_session, title)
    return _answer(dependencies, editor_session, end)


async def _begin(
    dependencies: Dependencies, editor_session: EditorSession, user_prompt: UserPrompt
) -> str | None:
    """The turn that was begun; None if it was cancelled before."""
    sessions, id, show = (
        dependencies.sessions,
        editor_session.session.id,
        editor_session.telling.show,
    )
    if not await editor_session.settled():
        return None
    if (use := _direct(user_prompt.text)) is not None:
        _name(editor_session, user_prompt)
        return await sessions.begin_call(
            id, user_prompt.message(user_prompt.text), use, CallerKind.ACP, show
        )
    try:
        composed = dependencies.skills.compose(user_prompt.text, editor_session.session)
    except UnknownSkill as error:
        raise refused(str(error)) from error
    except SkillUnreadable as error:
        raise RpcError(INTERNAL_ERROR, str(error)) from error
    agent = await open_agent(dependencies, editor_session.model)
    if user_prompt.images and not agent.model.images:
        raise refused(f"the model {agent.model.name} cannot be shown images")
    editor_session.telling.window = agent.model.context_tokens
    if editor_session.is_cancelled:
        return None
    _name(editor_session, user_prompt)
    if composed.delegate:
        given = {"task": composed.text}
        if composed.skill is not None:
            given["title"] = composed.skill.name
        use = ToolUseBlock(id=call_id(), name=SPAWN_AGENT, input=given)
        return await sessions.begin_call(
            id, user_prompt.message(user_prompt.text), use, CallerKind.ACP, show, agent
        )
    return await sessions.begin_turn(
        id, user_prompt.message(composed.text), editor_session.model, show
    )


async def open_agent(dependencies: Dependencies, model: str | None) -> Any:
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


def _answer(
    dependencies: Dependencies, editor_session: EditorSession, end: TurnEnd | None
) -> Prompted:
    if end is None or end.stop == "waiting" or editor_session.is_cancelled:
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
