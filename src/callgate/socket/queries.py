"""Information that a peer reads: its tools and hosts, the events of its session and its questions.

A peer never approves its own call. With `confirmer` its questions wait for a person, who answers
elsewhere: in a terminal or in the dashboard. The peer may withdraw a question by denying it. A peer
that a running call has started cannot ask questions or restart hosts: it could accept a changed
tool for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from msgspec import UNSET

from callgate.core.errors import ToolError, ToolPermissionDenied, ToolRegistrationError
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.sessions import Mode, Session
from callgate.core.stores import StoreError
from callgate.core.texts import visible_lines
from callgate.dispatch.permission.confirmations import Answer, Confirmation, Scope, arguments_text
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import ListTools, ToolsList
from callgate.protocol.socket_v1.values import describe, questions
from callgate.runtime import Registered, Runtime

_NO_HOSTS = "A running call cannot list or restart hosts."


class Hosting(Protocol):
    """The hosts of a runtime; `sources.host_provider.HostedTools` is one."""

    def entries(self) -> list[frames.HostEntry]: ...

    async def renew(self, name: str, *, forget: bool) -> frames.HostEntry:
        """Restart a host. Raises `KeyError`, `ToolError` or `ToolRegistrationError`."""
        ...


async def answer(
    hosts: Hosting | None, request: frames.ListHosts | frames.RenewHost, *, may_ask: bool
) -> frames.Reply:
    if not may_ask:
        return frames.Error(request_id=request.request_id, message=_NO_HOSTS)
    if isinstance(request, frames.ListHosts):
        listed = [] if hosts is None else hosts.entries()
        return frames.HostsList(request_id=request.request_id, hosts=listed)
    try:
        if hosts is None:
            raise KeyError
        host = await hosts.renew(request.name, forget=request.forget)
    except KeyError:
        return frames.Error(request_id=request.request_id, message="There is no such host here.")
    except (ToolError, ToolRegistrationError) as error:
        return frames.Error(request_id=request.request_id, message=str(error))
    return frames.HostRenewed(request_id=request.request_id, host=host)


def list_tools(runtime: Runtime, session: Session, request: ListTools) -> ToolsList:
    tools = runtime.tools.listed(session)
    if request.names is not None:
        find = partial(runtime.tools.find, session=session)
        tools = _named(find, tools, request.names)
    return ToolsList(
        request_id=request.request_id,
        tools=[describe(tool.definition, tool.timeout_s) for tool in tools],
        workspace=session.workspace,
        mode=session.mode,
        whole=every(runtime, session) if request.whole else UNSET,
        settings=runtime.permission.settings_state(session.workspace)
        if request.settings
        else UNSET,
    )


def every(runtime: Runtime, session: Session) -> list[dict[str, Any]]:
    """Return every registered tool with all its properties, and why it is hidden, if it is."""
    by_mode = "mode none runs no tool" if session.mode is Mode.NONE else None
    known = sorted(runtime.tools.with_reasons(session), key=lambda each: each[0].name)
    return [_described(tool, hidden or by_mode) for tool, hidden in known]


def _named(
    find: Callable[[str], Registered | None],
    visible: Collection[Registered],
    names: Collection[str],
) -> list[Registered]:
    seen = {tool.name: tool for tool in visible}
    found = dict.fromkeys(tool.name for each in names if (tool := find(each)))
    return [seen[name] for name in found if name in seen]


def _described(tool: Registered, hidden: str | None) -> dict[str, Any]:
    definition = tool.definition
    return {
        "name": tool.name,
        "side_effects": tool.effect,
        "capabilities": sorted(tool.capabilities),
        "description": definition.description,
        "input_schema": definition.input_schema,
        "aliases": list(definition.aliases),
        "source": definition.source,
        "timeout_s": tool.timeout_s,
        "visible": hidden is None,
        "hidden_because": hidden,
    }


_WITHIN_A_CALL = "A running call cannot answer its own questions."
_OWN_CALL = (
    "A peer cannot approve its own calls. A person can, with `callgate confirmations`, "
    "`callgate watch --answer` or the dashboard."
)
_NOT_OPEN = "no such question is open"


class Watcher:
    def __init__(self, runtime: Runtime, session_id: str) -> None:
        self._runtime = runtime
        self._session_id = session_id
        self._subscription: tuple[str, frozenset[str] | None] | None = None
        """Its id, and the requested event types."""
        self._attached = ExitStack()
        self.may_answer = False

    def close(self) -> None:
        self._subscription = None
        self._attached.close()

    @property
    def is_subscribed(self) -> bool:
        return self._subscription is not None

    def wanted(self, event: Event) -> str | None:
        """Return the id of the subscription that covers an event of this session, if one does."""
        if self._subscription is None:
            return None
        id, types = self._subscription
        return id if types is None or event.type in types else None

    def subscribe(self, request: frames.Subscribe) -> frames.Reply:
        if request.session not in ("own", self._session_id) or request.since is not None:
            message = "A connection receives only new events of its own session."
            return frames.Error(request_id=request.request_id, message=message)
        if request.confirmer and not self.may_answer:
            return frames.Error(request_id=request.request_id, message=_WITHIN_A_CALL)
        self._attached.close()
        id = "sub_" + ulid()
        self._subscription = id, None if request.types is None else frozenset(request.types)
        if request.confirmer:
            self._attached.enter_context(self._runtime.permission.attach(None, self._session_id))
        return frames.Subscribed(request_id=request.request_id, subscription_id=id)

    def unsubscribe(self, request: frames.Unsubscribe) -> frames.Reply:
        id = request.subscription_id
        if self._subscription is None or self._subscription[0] != id:
            message = "There is no such subscription."
            return frames.Error(request_id=request.request_id, message=message)
        self.close()
        return frames.Unsubscribed(request_id=request.request_id, subscription_id=id)

    async def look_up(
        self, request: frames.ListConfirmations | frames.AnswerConfirmation
    ) -> frames.Reply:
        """List the open questions, or answer one."""
        try:
            if isinstance(request, frames.ListConfirmations):
                return await self._list(request)
            return await self._answer(request)
        except KeyError:  # it was closed in between
            return frames.Error(request_id=request.request_id, message=_NOT_OPEN)
        except StoreError as error:
            return frames.Error(request_id=request.request_id, message=str(error))

    async def _list(self, request: frames.ListConfirmations) -> frames.Reply:
        id = request.confirmation_id
        confirmations = await self._runtime.permission.open_confirmations(self._session_id)
        listed = questions(each for each in confirmations if id in (None, each.id))
        return frames.ConfirmationsList(request_id=request.request_id, confirmations=listed)

    async def _answer(self, request: frames.AnswerConfirmation) -> frames.Reply:
        refusal = None if self.may_answer else _WITHIN_A_CALL
        if request.decision != "deny":
            refusal = refusal or _OWN_CALL
        if refusal is not None:
            return frames.Error(request_id=request.request_id, message=refusal)
        questions = await self._runtime.permission.open_confirmations(self._session_id)
        shown = {each.id: each.arguments_sha256 for each in questions}
        sha256 = shown.get(request.confirmation_id)
        if sha256 is None or request.arguments_sha256 not in (None, sha256):
            reason = _NOT_OPEN if sha256 is None else "the question is about other arguments"
            return frames.Error(request_id=request.request_id, message=reason)
        receipt = await self._runtime.permission.answer(
            request.confirmation_id, _answer_of(request)
        )
        standing = receipt.answer
        return frames.ConfirmationResult(
            request_id=request.request_id,
            confirmation_id=request.confirmation_id,
            applied=receipt.applied,
            decision=None if standing is None else standing.decision,
            scope=None if standing is None else standing.scope,
            by=None if standing is None else standing.by,
        )


def _answer_of(request: frames.AnswerConfirmation) -> Answer:
    return Answer(
        decision=Outcome.DENY,
        scope=Scope(request.scope),
        reason=request.reason,
        by="socket",
    )


LONGEST = 64 * 1024
"""Maximum characters of displayed arguments."""


def whole_arguments(question: Confirmation, longest: int = LONGEST, *, advice: str = "") -> str:
    """Return the arguments with invisible characters escaped. Raises if they exceed `longest`."""
    text = visible_lines(arguments_text(question.arguments))
    if len(text) > longest:
        raise ToolPermissionDenied(
            f"The arguments are too long for a question ({len(text):,} characters, at most"
            f" {longest:,}), so they cannot be reviewed: make smaller calls{advice}.",
            reason="arguments_too_long",
        )
    return text
