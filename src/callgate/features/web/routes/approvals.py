"""Approvals: pending questions and their answers, and the dashboard's own calls that need approval.

The first answer to a question counts. Saving a rule and undoing changes are ordinary calls, which
are approved and recorded. Their tools are visible only in sessions that this module creates. A
rule can be saved only by a user who is logged in on this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from callgate.config.home import Home
from callgate.config.load import SettingsError, check_rule
from callgate.config.saved import save_rule
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.stores import ConfirmationNotFound
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.foreign_code import watched
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope
from callgate.dispatch.permission.questions import closed, read_question
from callgate.features.web.contexts import BoundTo, Context, Operation, ParsedRequest
from callgate.features.web.operations import DASHBOARD, while_connected
from callgate.features.web.responses import Settled, conflict, forbidden, invalid, not_found
from callgate.features.web.routes.values import Input, Result, Value, result_of
from callgate.policy.rules import Outcome
from callgate.runtime import Runtime

_DIRECT = "-"
"""Placeholder for the turn of a call that belongs to no turn."""
_BY = "http"


class ConfirmationQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class ConfirmationList(Value, frozen=True, kw_only=True):
    confirmations: list[Confirmation]


class Decision(Input, frozen=True, kw_only=True):
    decision: Literal["allow", "deny", "always-allow-this-tool"]
    scope: Literal["once", "run", "destination", "session", "always"] | None = None
    arguments: Mapping[str, Any] | None = None
    pattern: Annotated[str, Meta(max_length=4096)] | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    arguments_sha256: Annotated[str, Meta(max_length=64)] | None = None
    """Expected hash of the arguments; the answer is refused if it differs."""


class Decided(Value, frozen=True, kw_only=True):
    request_id: str
    decision: str
    """`allow` or `deny`; `timeout` or `cancelled` if there was no answer."""
    scope: str | None
    by: str | None
    applied: bool


async def list_confirmations(context: Context, request: ParsedRequest) -> ConfirmationList:
    query: ConfirmationQuery = request.query
    found = await context.runtime.permission.open_confirmations(query.session)
    return ConfirmationList(confirmations=found)


async def answer_confirmation(context: Context, request: ParsedRequest) -> Decided:
    """Answer a question. The path may restrict it to the questions of a session and a turn."""
    id = request.path["request"]
    question = await _question(context, id)
    of_turn = (question.session_id, question.turn_id or _DIRECT)
    if "turn" in request.path and (request.path["id"], request.path["turn"]) != of_turn:
        raise not_found("question")
    if request.body.arguments_sha256 not in (None, question.arguments_sha256):
        raise conflict("The question has other arguments.", "other_arguments")
    try:
        receipt = await context.runtime.permission.answer(
            id, _answer(request.body, approver(request))
        )
    except KeyError:
        raise not_found("question") from None
    except ValueError as error:
        raise conflict(str(error), "elsewhere") from None
    if receipt.applied:
        assert receipt.answer is not None
        return _decided(id, receipt.answer, applied=True)
    raise Settled(await _settled(context, id, receipt.answer))


async def _question(context: Context, id: str) -> Confirmation:
    try:
        return read_question(await (await context.runtime.sessions.store()).get_confirmation(id))
    except ConfirmationNotFound:
        raise not_found("question") from None


async def _settled(context: Context, id: str, answer: Answer | None) -> Decided:
    """Return the earlier decision about a question."""
    if answer is not None:
        return _decided(id, answer, applied=False)
    ended = closed(await (await context.runtime.sessions.store()).get_confirmation(id))
    decision = "cancelled" if ended is None else str(ended.event.payload["decision"])
    return Decided(request_id=id, decision=decision, scope=None, by=None, applied=False)


def _decided(id: str, answer: Answer, *, applied: bool) -> Decided:
    return Decided(
        request_id=id, decision=answer.decision, scope=answer.scope, by=answer.by, applied=applied
    )


def approver(request: ParsedRequest) -> str:
    """Return the name of the answering client for the audit log: the dashboard or a program."""
    return DASHBOARD if request.client.program == DASHBOARD else _BY


def _answer(body: Decision, by: str) -> Answer:
    always = body.decision == "always-allow-this-tool"
    if always and body.scope not in (None, "session"):
        raise invalid("always-allow-this-tool permits only the scope session.")
    return Answer(
        decision=Outcome.DENY if body.decision == "deny" else Outcome.ALLOW,
        scope=Scope.SESSION if always else Scope(body.scope or "once"),
        arguments=body.arguments,
        pattern=body.pattern,
        reason=body.reason,
        by=by,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/confirmations",
        "List the open questions.",
        list_confirmations,
        ConfirmationList,
        query=ConfirmationQuery,
    ),
    Operation(
        "POST",
        "/v1/confirmations/{request}",
        "Answer a question.",
        answer_confirmation,
        Decided,
        body=Decision,
        errors=(404, 503),
        declined=Decided,
        bound_to=BoundTo.AMENDED_CALL,
        while_draining=True,
    ),
    Operation(
        "POST",
        "/v1/sessions/{id}/turns/{turn}/confirmations/{request}",
        "Answer a question of a turn; - means a call without a turn.",
        answer_confirmation,
        Decided,
        body=Decision,
        errors=(404, 503),
        declined=Decided,
        bound_to=BoundTo.AMENDED_CALL,
        while_draining=True,
        short=True,
    ),
)


RULE_TAG = "save_rule"
_TEXT = {"type": "string", "minLength": 1}
_SAVE_RULE = ToolDefinition(
    name="save_rule",
    description="Add a rule to rules.toml, which then decides about calls without approval.",
    input_schema={
        "type": "object",
        "properties": {
            "decision": {"type": "string", "enum": [each.value for each in Outcome]},
            "tool": _TEXT,
            "command": _TEXT,
            "path": _TEXT,
            "caller": {"type": "string", "enum": [each.value for each in CallerKind]},
            "workspace": _TEXT,
            "arguments": {"type": "object", "additionalProperties": True},
            "without": {"type": "array", "items": _TEXT},
            "arguments_sha256": _TEXT,
            "network": {"type": "boolean"},
        },
        "required": ["decision"],
    },
    side_effects=SideEffects.WRITE,
    capabilities=frozenset({Capability.WRITES_FILES}),
    path_params=(),
    kind="edit",
    source="builtin",
    always_ask=True,
    requires_workspace=False,
    required_tags=frozenset({RULE_TAG}),
)

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class NewRule(Input, frozen=True, kw_only=True):
    decision: Outcome
    tool: Text | None = None
    command: Text | None = None
    path: Text | None = None
    caller: CallerKind | None = None
    workspace: Text | None = None
    arguments: Annotated[
        dict[Text, Annotated[str, Meta(max_length=4096)]], Meta(max_length=100)
    ] = {}
    without: Annotated[list[Text], Meta(max_length=100)] = []
    arguments_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    network: bool | None = None


class SaveRule:
    definition = _SAVE_RULE

    def __init__(self, home: Home, refresh: Callable[[], None]) -> None:
        self._home = home
        self._refresh = refresh

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        watched.set(["", context.session_id])  # settings files may be opened
        try:
            check_rule(input)  # an invalid rule would prevent every start
            await asyncio.to_thread(save_rule, self._home, input)
            self._refresh()
        except (SettingsError, OSError) as error:
            raise ToolExecutionError(f"The rule is not saved: {error}") from None
        return ToolOutput(
            content=[TextBlock(f"Saved in {self._home.saved_rules}.")],
            files_modified=[self._home.saved_rules],
        )

    async def cancel(self) -> bool:
        return False


def register_save_rule(runtime: Runtime, home: Home, refresh: Callable[[], None]) -> None:
    """Register the tool. Raises `ToolRegistrationError` if another tool has its name."""
    runtime.tools.register(lambda: SaveRule(home, refresh))


async def save_new_rule(context: Context, request: ParsedRequest) -> Result:
    body: NewRule = request.body
    if not (request.browser and context.names.address.is_local):
        message = "Only a user logged in on this machine may save rules; others edit settings.toml."
        raise forbidden(message, "login")
    session = context.sessions.fresh(client=request.client)
    session.tags |= {RULE_TAG}
    call = ToolCall(
        tool=_SAVE_RULE.name,
        arguments={
            key: value for key, value in structs.asdict(body).items() if value not in (None, {}, [])
        },
        session=session,
        caller=CallerKind.HTTP,
        client=request.client,
    )
    try:
        return result_of(await while_connected(request, context.runtime.calls.run(call)))
    finally:
        context.sessions.let_go(session)


RULE_OPERATIONS = (
    Operation(
        "POST",
        "/v1/policy/rules",
        "Save a rule after approval; only for a login on this machine.",
        save_new_rule,
        Result,
        body=NewRule,
        errors=(403, 503),
    ),
)
