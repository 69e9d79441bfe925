"""One peer as somebody who watches its own session, and the questions about its calls.

A peer never allows its own call. With `confirmer` its questions wait for a person, who answers
elsewhere: at a terminal, in the dashboard. It may take a question back with a no. For a peer
that a running call has started nobody is asked.
"""

from __future__ import annotations

from contextlib import ExitStack

from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.stores import StoreError
from callgate.dispatch.permission.confirmations import Answer, Scope
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.descriptors import questions
from callgate.runtime import Runtime

_WITHIN_A_CALL = "A running call cannot approve what it asks for."
_OWN_CALL = (
    "A peer does not allow its own calls: a person does, with `callgate confirmations`, "
    "`callgate watch --answer` or the dashboard."
)
_NOT_OPEN = "no such question is open"


class Watcher:
    def __init__(self, runtime: Runtime, session_id: str) -> None:
        self._runtime = runtime
        self._session_id = session_id
        self._subscription: tuple[str, frozenset[str] | None] | None = None
        """Its id, and the types it wants."""
        self._attached = ExitStack()
        self.may_answer = False

    def close(self) -> None:
        self._subscription = None
        self._attached.close()

    @property
    def is_subscribed(self) -> bool:
        return self._subscription is not None

    def wanted(self, event: Event) -> str | None:
        """The subscription that wants an event of this session."""
        if self._subscription is None:
            return None
        id, types = self._subscription
        return id if types is None or event.type in types else None

    def subscribe(self, request: frames.Subscribe) -> frames.Reply:
        if request.session not in ("own", self._session_id) or request.since is not None:
            message = "A connection sees its own session, from now on."
            return frames.Error(request_id=request.request_id, message=message)
        if request.confirmer and not self.may_answer:
            return frames.Error(request_id=request.request_id, message=_WITHIN_A_CALL)
        self._attached.close()
        id = "sub_" + ulid()
        self._subscription = id, None if request.types is None else frozenset(request.types)
        if request.confirmer:
            self._attached.enter_context(self._runtime.attach(None, self._session_id))
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
        confirmations = await self._runtime.open_confirmations(self._session_id)
        listed = questions(each for each in confirmations if id in (None, each.id))
        return frames.ConfirmationsList(request_id=request.request_id, confirmations=listed)

    async def _answer(self, request: frames.AnswerConfirmation) -> frames.Reply:
        refusal = None if self.may_answer else _WITHIN_A_CALL
        if request.decision != "deny":
            refusal = refusal or _OWN_CALL
        if refusal is not None:
            return frames.Error(request_id=request.request_id, message=refusal)
        questions = await self._runtime.open_confirmations(self._session_id)
        shown = {each.id: each.arguments_sha256 for each in questions}
        sha256 = shown.get(request.confirmation_id)
        if sha256 is None or request.arguments_sha256 not in (None, sha256):
            reason = _NOT_OPEN if sha256 is None else "it is about other arguments"
            return frames.Error(request_id=request.request_id, message=reason)
        receipt = await self._runtime.answer(request.confirmation_id, _answer_of(request))
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
