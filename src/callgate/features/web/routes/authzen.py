"""The Authorization API 1.0 of OpenID AuthZEN: decisions of callgate's policy for other programs.

    subject    the caller: its type is a kind of caller that is not trusted
    action     `call`; `properties.arguments` are the arguments
    resource   type `tool`, and its name as id
    context    `workspace`, `mode`: workspace and ceiling; `said`, `read`: the conversation

The decision is true only for calls that need no approval. The requesting program runs the call
itself, outside callgate's sandbox, so calls that only the sandbox would restrict are false. The
evaluation runs no tool, asks no approver and records nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core.calls import BY_ITS_AGENT, CallerKind, ToolCall
from callgate.core.content import Label
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode
from callgate.dispatch.subjects import Subject as CallSubject
from callgate.features.web.contexts import Context, Operation, ParsedRequest
from callgate.features.web.responses import HttpResponse, bad_request, json_response
from callgate.features.web.routes.values import Directory
from callgate.policy.decisions import Decision
from callgate.policy.rules import Outcome

EVALUATION = "/access/v1/evaluation"
EVALUATIONS = "/access/v1/evaluations"
MOST = 200
"""Evaluations in one request."""
_ACTIONS = ("call", "execute")
_LONGEST_ID = 256
_LONGEST_PROMPT = 400_000

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Properties = dict[str, Any]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    type: Name
    id: Name
    properties: Properties = {}


class CallProperties(msgspec.Struct, frozen=True, kw_only=True):
    arguments: dict[str, Any] | UnsetType = UNSET
    """The arguments of the call."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    properties: CallProperties = CallProperties()


class CallContext(CallProperties, frozen=True, kw_only=True):
    workspace: Directory | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    """The ceiling, at most that of the instance."""
    said: (
        Annotated[list[Annotated[str, Meta(max_length=_LONGEST_PROMPT)]], Meta(max_length=MOST)]
        | UnsetType
    ) = UNSET
    """The prompts of the user. The guard does not check a call without them."""
    read: set[Literal["private", "untrusted"]] = set()
    """Labels of the content that the agent has read. Needs `said`."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    type: Name
    id: Name
    properties: Properties = {}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    subject: Subject
    action: Action
    resource: Resource
    context: CallContext = CallContext()


class PartialEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Evaluation whose missing fields come from the whole request."""

    subject: Subject | UnsetType = UNSET
    action: Action | UnsetType = UNSET
    resource: Resource | UnsetType = UNSET
    context: CallContext | UnsetType = UNSET


class Options(msgspec.Struct, frozen=True, kw_only=True):
    evaluations_semantic: Literal["execute_all", "deny_on_first_deny", "permit_on_first_permit"] = (
        "execute_all"
    )


class Evaluations(PartialEvaluation, frozen=True, kw_only=True):
    evaluations: list[PartialEvaluation] = []
    options: Options = Options()


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    decision: bool
    context: dict[str, Any] = {}


class AllEvaluated(msgspec.Struct, frozen=True, kw_only=True):
    """One decision per evaluation, or one decision for a body without `evaluations`."""

    evaluations: list[Evaluated] | msgspec.UnsetType = msgspec.UNSET
    decision: bool | msgspec.UnsetType = msgspec.UNSET
    context: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    policy_decision_point: str
    access_evaluation_endpoint: str
    access_evaluations_endpoint: str


async def evaluate(context: Context, request: ParsedRequest) -> HttpResponse:
    return _answer(request, _evaluated(context, request.body))


async def evaluate_all(context: Context, request: ParsedRequest) -> HttpResponse:
    body: Evaluations = request.body
    if len(body.evaluations) > MOST:
        raise bad_request(f"A request may have at most {MOST} evaluations.")
    if not body.evaluations:
        alone = _evaluated(context, _whole(body, body))
        return _answer(request, AllEvaluated(decision=alone.decision, context=alone.context))
    found: list[Evaluated] = []
    stop_at = {"deny_on_first_deny": False, "permit_on_first_permit": True}
    for each in body.evaluations:
        found.append(_evaluated(context, _whole(each, body)))
        if found[-1].decision is stop_at.get(body.options.evaluations_semantic):
            break
    return _answer(request, AllEvaluated(evaluations=found))


async def get_configuration(context: Context, request: ParsedRequest) -> Configuration:
    base = context.names.public or context.names.servers_url
    return Configuration(
        policy_decision_point=base,
        access_evaluation_endpoint=f"{base}{EVALUATION}",
        access_evaluations_endpoint=f"{base}{EVALUATIONS}",
    )


def _whole(part: PartialEvaluation, all_of_it: PartialEvaluation) -> Evaluation:
    fields: dict[str, Any] = {}
    for name in PartialEvaluation.__struct_fields__:
        given = getattr(part, name)
        value = getattr(all_of_it, name) if given is UNSET else given
        if value is not UNSET:
            fields[name] = value
        elif name != "context":
            raise bad_request(f"An evaluation has no {name}.")
    return Evaluation(**fields)


def _evaluated(context: Context, evaluation: Evaluation) -> Evaluated:
    if evaluation.resource.type != "tool":
        return _no(
            "unknown_resource",
            f"The resource type must be 'tool', not {evaluation.resource.type!r}.",
        )
    if evaluation.action.name not in _ACTIONS:
        return _no("unknown_action", f"The action must be 'call', not {evaluation.action.name!r}.")
    about_call = evaluation.action.properties.arguments
    arguments = evaluation.context.arguments if about_call is UNSET else about_call
    where = evaluation.context.workspace
    mode = evaluation.context.mode
    try:
        session = context.sessions.fresh(
            None if where is UNSET else where, None if mode is UNSET else mode
        )
        call = ToolCall(
            tool=evaluation.resource.id,
            arguments={} if arguments is UNSET else arguments,
            session=session,
            caller=_caller(evaluation.subject.type),
            principal=evaluation.subject.id,
            handover=BY_ITS_AGENT,
        )
        _, decision = _explained(context, call, evaluation.context)
    except ToolError as error:
        return _no(error.reason or error.error_class, str(error), Outcome.DENY)
    allowed = decision.outcome is Outcome.ALLOW
    about = {
        "outcome": decision.outcome,
        "reason": decision.policy_reason,
        "reason_user": {"en": decision.sentence},
        "conversation": "unknown" if evaluation.context.said is UNSET else "known",
    }
    return Evaluated(decision=allowed, context=about)


def _explained(
    context: Context, call: ToolCall, about: CallContext
) -> tuple[CallSubject, Decision]:
    """Decide with the conversation of the request, if it has one."""
    permission = context.runtime.permission
    if about.said is UNSET:
        return permission.explain(call)
    labels = [Label(each) for each in about.read]
    end = permission.assume(call.session, "\n".join(about.said), labels)
    try:
        return permission.explain(call)
    finally:
        end()


def _caller(kind: str) -> CallerKind:
    """Return the kind of caller; a request cannot claim a trusted kind."""
    try:
        caller = CallerKind(kind)
    except ValueError:
        return CallerKind.HTTP
    return CallerKind.HTTP if caller.trusted else caller


def _no(reason: str, sentence: str, outcome: Outcome | None = None) -> Evaluated:
    about: dict[str, Any] = {"reason": reason, "reason_user": {"en": sentence}}
    if outcome is not None:
        about["outcome"] = outcome
    return Evaluated(decision=False, context=about)


def _answer(request: ParsedRequest, value: Evaluated | AllEvaluated) -> HttpResponse:
    response = json_response(200, value)
    given = request.request_id
    if not given or len(given) > _LONGEST_ID or not (given.isascii() and given.isprintable()):
        return response
    headers = [*response.headers, (b"x-request-id", given.encode())]
    return response._replace(headers=headers)


OPERATIONS = (
    Operation(
        "POST",
        EVALUATION,
        "Decide whether a call would run, for AuthZEN clients.",
        evaluate,
        Evaluated,
        body=Evaluation,
        malformed=400,
        while_draining=True,
    ),
    Operation(
        "POST",
        EVALUATIONS,
        "Decide about several calls.",
        evaluate_all,
        AllEvaluated,
        body=Evaluations,
        malformed=400,
        while_draining=True,
    ),
    Operation(
        "GET",
        "/.well-known/authzen-configuration",
        "List the AuthZEN endpoints.",
        get_configuration,
        Configuration,
        unlocked=True,
    ),
)
