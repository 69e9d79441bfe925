"""Prompts and tool output of each session, to trace the values of a call to their sources.

    the user's words  --tell--->  SessionFacts  <---read--  outputs of tools
                                       |
              a call's destinations --of--> Flow --> policy.guard

A session has facts once its surface reports the user's words. A sub-agent shares the facts of
its parent session. Labels (private, untrusted) only grow; a user may clear one, with an event.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from callgate.core.calls import ToolCall, ToolResult
from callgate.core.content import SESSION_LABELS, Label
from callgate.core.events import LABEL_CLEARED, LABELLED, Actor, Event, EventSink
from callgate.core.ids import ulid
from callgate.core.ops import UpdateSession
from callgate.core.sessions import Mode, Session
from callgate.dispatch.permission.grants import Grants
from callgate.dispatch.subjects import Subject
from callgate.events.log import SessionLog
from callgate.policy.rules import GuardSettings

if TYPE_CHECKING:  # loaded with the first conversation
    from collections.abc import Iterable, Mapping

    from callgate.core.content import Message
    from callgate.dispatch.permission.session_facts import SessionFacts
    from callgate.policy.provenance.sources import Flow, Trace

_MOST_NOTED = 4_096
"""Maximum number of sessions without a conversation whose labels are remembered."""
INDEXED_AT_ONCE = 64 * 1024
"""Characters that are indexed on the event loop; more are indexed in a thread."""


class Flows:
    """The flows of one dispatcher."""

    def __init__(self, log: SessionLog, sink: EventSink, grants: Grants) -> None:
        self._log = log
        self._sink = sink
        self._grants = grants
        self.facts: dict[str, SessionFacts] = {}
        """By session; empty if no surface reports a conversation."""
        self._read_before: dict[str, dict[Label, str]] = {}
        """By session: labels of content that it read before the first words of its user."""

    # Input.

    def tell(self, session: Session, words: str, text: str = "") -> None:
        """Add words that the user wrote; `text` is the whole text around them."""
        facts = self._of(session)
        facts.tell(words, "" if text == words else text)
        for label, cause in self._read_before.pop(session.parent or session.id, {}).items():
            if label not in facts.labels:
                self._label(session, facts, label, cause)

    def answered(self, call: ToolCall, arguments: Mapping[str, Any] | None) -> None:
        """Add the arguments that an approver changed: the changes count as the user's words."""
        facts = self.facts.get(call.session.parent or call.session.id)
        if facts is not None and arguments is not None:
            facts.tell_changes(call.arguments, arguments)

    def approved(self, call: ToolCall, subject: Subject) -> None:
        """Remember the hosts of a call that a person approved."""
        facts = self.facts.get(call.session.parent or call.session.id)
        if facts is not None:
            facts.approved(subject, facts.settings)

    def refused(self, call: ToolCall) -> None:
        """Count a refused question of the guard: after several, outward effects wait."""
        facts = self.facts.get(call.session.parent or call.session.id)
        if facts is not None:
            facts.refused()

    def read(
        self, call: ToolCall, subject: Subject, result: ToolResult, guard: GuardSettings | None
    ) -> None:
        """Add the output of a tool. `guard=None` keeps the settings of the last call."""
        root = call.session.parent or call.session.id
        facts = self.facts.get(root)
        if facts is None and guard is not None and guard.without_conversation:
            facts = self._of(call.session)
        if facts is None:
            self._note(root, subject)
            return
        facts.settings = facts.settings if guard is None else guard
        labels = facts.read(call, subject, result, facts.settings)
        for label, cause in labels.items():
            self._label(call.session, facts, label, cause)

    def _note(self, session_id: str, subject: Subject) -> None:
        """Remember the labels of a session without a conversation, in case it gets one."""
        labels = SESSION_LABELS & subject.tool.output_labels
        if not labels:
            return
        known = self._read_before.setdefault(session_id, {})
        for label in labels - known.keys():
            known[label] = subject.tool.name
        if len(self._read_before) > _MOST_NOTED:
            del self._read_before[next(iter(self._read_before))]

    def load(
        self,
        session: Session,
        labels: Mapping[str, str],
        messages: Iterable[tuple[str | None, Message]],
        tool_labels: Mapping[str, frozenset[Label]],
    ) -> None:
        """Load the labels and the conversation of a resumed session. Each message comes with the
        part that the user wrote. `tool_labels` has the labels of the present tools."""
        facts = self._of(session)
        facts.load(labels, messages, tool_labels)
        if not facts.is_told and not facts.labels:
            del self.facts[session.parent or session.id]

    def clear(self, session: Session, label: Label) -> bool:
        """Clear a label for a user; return False if the session does not have it."""
        facts = self.facts.get(session.parent or session.id)
        if facts is None or facts.labels.pop(label, None) is None:
            return False
        self._emit(session, LABEL_CLEARED, "user", {"label": label})
        self._keep(session, facts)
        return True

    def labels(self, session: Session) -> Mapping[Label, str]:
        """Return the labels of the session, each with the first call that caused it."""
        facts = self.facts.get(session.parent or session.id)
        return {} if facts is None else facts.labels

    def assume(self, session: Session, labels: Iterable[Label]) -> None:
        """Set labels for a hypothetical decision, without an event."""
        self._of(session).labels.update(dict.fromkeys(labels, "assumed"))

    def note(self, session: Session, label: Label, cause: str) -> None:
        """Add a label together with the next words of the user."""
        self._read_before.setdefault(session.parent or session.id, {})[label] = cause

    def forget(self, session_id: str) -> None:
        self._read_before.pop(session_id, None)
        self.facts.pop(session_id, None)

    # Queries.

    def knows(self, session: Session) -> bool:
        """Whether the session has facts."""
        return bool(self.facts) and (session.parent or session.id) in self.facts

    def pending(self, session: Session) -> int:
        """Return the number of characters to index before the next decision."""
        facts = self.facts.get(session.parent or session.id)
        return 0 if facts is None else facts.index.pending_size

    def catch_up(self, session: Session) -> None:
        """Index the pending text. May run in a thread."""
        self._of(session).index.catch_up()

    def of(self, call: ToolCall, subject: Subject, guard: GuardSettings) -> Flow | None:
        """Return the sources of a call's destinations; None if the guard does not apply."""
        session = call.session
        if not guard.enabled:
            return None
        if not self.knows(session) and not guard.without_conversation:
            return None
        facts = self._of(session)
        facts.settings = guard
        return facts.flow(subject, guard, self._grants.destinations(session, subject.tool.name))

    def copied(self, call: ToolCall, subject: Subject) -> str:
        """Return why a call that writes a control file needs approval: it copies untrusted content,
        or names a new host. An empty text if it does not."""
        facts = self.facts.get(call.session.parent or call.session.id) if self.facts else None
        if facts is None:
            return ""
        is_tainted = Label.UNTRUSTED in facts.labels
        found = facts.copied_into_control_file(subject) if is_tainted else ""
        if found or (call.session.mode == Mode.WRITE and not is_tainted):
            return found
        return facts.names_new_address(subject)

    def traces(self, call: ToolCall, subject: Subject) -> tuple[Trace, ...]:
        """Return the sources of all values of a call, for the approver."""
        if not self.knows(call.session):
            return ()
        return self._of(call.session).traces(subject)

    def _of(self, session: Session) -> SessionFacts:
        root = session.parent or session.id
        facts = self.facts.get(root)
        if facts is None:
            from callgate.dispatch.permission.session_facts import (  # lazy: with a conversation  # noqa: PLC0415
                SessionFacts,
            )

            facts = self.facts[root] = SessionFacts()
        return facts

    def _label(self, session: Session, facts: SessionFacts, label: Label, cause: str) -> None:
        facts.labels[label] = cause
        self._emit(session, LABELLED, "system", {"label": label, "by": cause})
        self._keep(session, facts)

    def _keep(self, session: Session, facts: SessionFacts) -> None:
        owner: Session = getattr(session, "over", session)  # a sub-agent reads for its parent
        if owner.parent is None:
            labels = {label.value: cause for label, cause in facts.labels.items()}
            op = UpdateSession(session=owner.id, labels=labels, at=time.time())
            self._log.commit(owner, op, soon=True)

    def _emit(self, session: Session, type: str, actor: Actor, payload: Mapping[str, str]) -> None:
        event = Event(
            id=ulid(),
            timestamp=time.time(),
            session_id=session.id,
            turn_id=session.turn_id,
            type=type,
            actor=actor,
            payload=payload,
        )
        self._log.append(session, event)
        self._sink.emit(event)
