"""The question about a call, put to the person at the editor.

The editor shows it on the card of the call, with all of the arguments: where they are too long for
that, the call is refused and nobody is asked. Whoever answers first wins, here, in the dashboard
or at a terminal: the question is then taken back from the others. Whatever is not a plain yes
is a no; a person who stops the turn instead answers nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.presentation import (
    destinations_text,
    preview_heading,
    requester_text,
)
from callgate.policy.rules import Outcome
from callgate.protocol.acp.client import (
    METHODS,
    Cancelled,
    PermissionAnswer,
    PermissionOption,
    RequestPermission,
)
from callgate.protocol.acp.reading import read_result
from callgate.protocol.acp.values import Shown, ToolContent, ToolFields
from callgate.protocol.jsonrpc import RpcError, shown
from callgate.sessions.markdown import code, fenced, visible_lines
from callgate.surfaces.acp.contents import change, text
from callgate.surfaces.acp.peer import Peer, PeerGone

_log = logging.getLogger("callgate.acp")

_ADVICE = ", or raise longest_arguments in [acp]"
_ANSWERS = {
    "allow_once": (Outcome.ALLOW, Scope.ONCE),
    "allow_destination": (Outcome.ALLOW, Scope.DESTINATION),
    "allow_always": (Outcome.ALLOW, Scope.SESSION),
    "reject_once": (Outcome.DENY, Scope.ONCE),
    "reject_always": (Outcome.DENY, Scope.SESSION),
}


async def ask(
    peer: Peer,
    session_id: str,
    question: Confirmation,
    fields: ToolFields,
    cancel: Callable[[], None],
    by: str,
) -> Answer:
    """`session_id` is the one that the editor knows; `cancel` stops its turn."""
    offered = options_for(question)
    if question.session_id != session_id:  # no answer to a sub-agent is remembered
        offered = [each for each in offered if each.kind in ("allow_once", "reject_once")]
    request = RequestPermission(session_id=session_id, tool_call=fields, options=offered)
    method, answer = METHODS[RequestPermission]
    try:
        response = read_result(answer, await peer.request(method, request))
    except PeerGone:  # the turn is being stopped
        return await _nobody()
    except RpcError as error:
        _log.warning("the question about %s was not answered: %s", question.tool, error)
        reason = f"the editor could not ask: {shown(error.message)}"
        return Answer(decision=Outcome.DENY, reason=reason, by=by)
    assert isinstance(response, PermissionAnswer)
    if isinstance(response.outcome, Cancelled):
        cancel()
        return await _nobody()
    chosen = getattr(response.outcome, "option_id", "")
    decision, scope = _ANSWERS.get(chosen, (Outcome.DENY, Scope.ONCE))
    return Answer(decision=decision, scope=scope, by=by)


async def _nobody() -> Answer:
    """No answer comes from here; this ends when the question is withdrawn."""
    never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return await never


def options_for(question: Confirmation) -> list[PermissionOption]:
    """The narrow answer for the session before the wide one, where there is a narrow one."""
    always = f"any {question.tool} in this session"
    there = f"Always allow {question.tool} to {shown(destinations_text(question))}"
    narrow = PermissionOption(option_id="allow_destination", name=there, kind="allow_always")
    return [
        PermissionOption(option_id="allow_once", name="Allow", kind="allow_once"),
        *((narrow,) if question.destinations else ()),
        PermissionOption(
            option_id="allow_always", name=f"Always allow {always}", kind="allow_always"
        ),
        PermissionOption(option_id="reject_once", name="Deny", kind="reject_once"),
        PermissionOption(
            option_id="reject_always", name=f"Always deny {always}", kind="reject_always"
        ),
    ]


def content_of(question: Confirmation, longest: int) -> list[ToolContent]:
    """What the person has to know: the changes, all of the arguments, what the tool says of them,
    who asks, where it runs, why it is asked. Raises if the arguments are longer than `longest`.

    Editors read the texts as Markdown: what others wrote stands in fences, where nothing is
    hidden or acts.
    """
    from callgate.surfaces.whole_arguments import whole_arguments  # lazy: many sessions ask nothing  # noqa: PLC0415

    arguments = whole_arguments(question, longest, advice=_ADVICE)
    paragraphs = [f"Arguments:\n\n{fenced(arguments)}" if arguments else "No arguments."]
    if question.preview and not question.diffs:
        paragraphs.append(f"Preview, {preview_heading(question)}:\n\n{fenced(question.preview)}")
    about = [visible_lines(question.why), f"Asked by: {code(requester_text(question))}"]
    about += [f"Value: {code(line)}" for line in question.provenance_lines]
    if question.sandbox is not None:
        about.append(f"Runs in: {visible_lines(question.sandbox)}.")
    paragraphs.append("\n\n".join(about))
    return [*map(change, question.diffs), *(Shown(content=text(each)) for each in paragraphs)]
