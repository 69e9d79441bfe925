"""The Authorization API 1.0 of OpenID AuthZEN: others ask what our policy says of a call.

    subject    who: its type is a kind of caller, if it is one of those that are not trusted
    action     `call`; `properties.arguments` are those of the call
    resource   type `tool`, and its name as id
    context    `workspace`, `mode`: where, and under which ceiling

True is for what would run without a question, and for nothing else. Whoever asks runs it, outside
of our sandbox: what only that would keep in bounds is no. Nothing runs, nobody is asked, nothing
is recorded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode
from callgate.policy.rules import Outcome
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import bad_request
from callgate.surfaces.http.responses import HttpResponse, json_response
from callgate.surfaces.http.routes.values import Directory

EVALUATION = "/access/v1/evaluation"
EVALUATIONS = "/access/v1/evaluations"
MOST = 200
"""Evaluations in one request."""
_ACTIONS = ("call", "execute")
_LONGEST_ID = 256

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Properties = dict[str, Any]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    type: Name
    id: Name
    properties: Properties = {}


class CallProperties(msgspec.Struct, frozen=True, kw_only=True):
    arguments: dict[str, Any] | UnsetType = UNSET
    """Of the call."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    properties: CallProperties = CallProperties()


class CallContext(CallProperties, frozen=True, kw_only=True):
    workspace: Directory | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    """The ceiling; a wider one than the instance has counts as that."""


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
    """What is missing is as the request says for all of them."""

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


async def evaluate(context: Context, request: Request) -> HttpResponse:
    return _answer(request, _evaluated(context, request.body))


async def evaluate_all(context: Context, request: Request) -> HttpResponse:
    body: Evaluations = request.body
    if len(body.evaluations) > MOST:
        raise bad_request(f"At most {MOST} evaluations are taken at once.")
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


async def get_configuration(context: Context, request: Request) -> Configuration:
    base = context.names.public or context.names.servers_url
    return Configuration(
        policy_decision_point=base,
        access_evaluation_endpoint=f"{base}{EVALUATION}",
        access_evaluations_endpoint=f"{base}{EVALUATIONS}",
    )


def _whole(part: PartialEvaluation, all_of_it: PartialEvaluation) -> Evaluation:
    fields: dict[str, Any] = {}
    for name in PartialEvaluation.__struct_fields__:
        own = getattr(part, name)
        value = getattr(all_of_it, name) if own is UNSET else own
        if value is not UNSET:
            fields[name] = value
        elif name != "context":
            raise bad_request(f"An evaluation has no {name}.")
    return Evaluation(**fields)


def _evaluated(context: Context, asked: Evaluation) -> Evaluated:
    if asked.resource.type != "tool":
        return _no("unknown_resource", f"Only tools are known, no {asked.resource.type!r}.")
    if asked.action.name not in _ACTIONS:
        return _no("unknown_action", f"A tool can be called, and no {asked.action.name!r}.")
    about_call = asked.action.properties.arguments
    arguments = asked.context.arguments if about_call is UNSET else about_call
    where = asked.context.workspace
    mode = asked.context.mode
    try:
        session = context.sessions.fresh(
            None if where is UNSET else where, None if mode is UNSET else mode
        )
        call = ToolCall(
            tool=asked.resource.id,
            arguments={} if arguments is UNSET else arguments,
            session=session,
            caller=_caller(asked.subject.type),
            principal=asked.subject.id,
        )
        _, decision = context.runtime.explain(call, by_agent=True)
    except ToolError as error:
        return _no(error.reason or error.error_class, str(error), Outcome.DENY)
    allowed = decision.outcome is Outcome.ALLOW
    about = {
        "outcome": decision.outcome,
        "reason": decision.policy_reason,
        "reason_user": {"en": decision.sentence},
    }
    return Evaluated(decision=allowed, context=about)


def _caller(kind: str) -> CallerKind:
    """A message never makes itself a caller who is trusted."""
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


def _answer(request: Request, value: Evaluated | AllEvaluated) -> HttpResponse:
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
        "Say whether a call would run, as AuthZEN asks it.",
        evaluate,
        Evaluated,
        body=Evaluation,
        malformed=400,
        while_draining=True,
    ),
    Operation(
        "POST",
        EVALUATIONS,
        "The same of several calls.",
        evaluate_all,
        AllEvaluated,
        body=Evaluations,
        malformed=400,
        while_draining=True,
    ),
    Operation(
        "GET",
        "/.well-known/authzen-configuration",
        "Where AuthZEN's endpoints are.",
        get_configuration,
        Configuration,
        unlocked=True,
    ),
)
