"""The front half of the pipeline: contain and locate the work of a call, then decide about it.

    contain -> locate -> first consultation  -> narrower containment
                              |                       |
                              +--- the same policy ---+
                                                      v
                         second consultation -> decision -> question, record, sandbox

The policy is consulted twice by design. What contains a command depends on its arguments, on the
mode, on the rules, and on the host lists of the policy itself; what the policy decides depends on
the containment. The loop ends after one round, because the first consultation only takes something
away: the editor's terminal, if the guard objects to it, and hosts that the policy does not allow.
The second consultation decides about the call as it will run. After a wait the decision is checked
again (`permission.deciding`).

Used by the dispatcher, for calls that run and calls that are only explained, and by a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.dispatch.call_files import Policies
from callgate.dispatch.subjects import Findings, Subject, with_work
from callgate.policy.decisions import Decision
from callgate.policy.tightenings import Circumstances, tighten

Decide = Callable[[ToolCall, Subject], Decision]


class Site(Protocol):
    """The place of a call's work. Each method returns a new subject, or refuses."""

    async def prepare(self, call: ToolCall, subject: Subject) -> None:
        """Wait until `contain` and `locate` have their input, such as the sandbox backends."""
        ...

    def contain(self, call: ToolCall, subject: Subject, before: Subject | None = None) -> Subject:
        """Return the subject with the sandbox of its work. `before` is the subject that the
        approver saw, if the answer has other arguments."""
        ...

    def locate(self, call: ToolCall, subject: Subject) -> Subject:
        """Return the subject with the paths in its arguments, and with its network narrowed to the
        policy's hosts."""
        ...

    def is_unbound(self, call: ToolCall, subject: Subject) -> bool:
        """Whether path rules concern a command of the call and cannot bind it here."""
        ...

    def ensure(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        """Refuse a call whose containment this site cannot guarantee, before any question."""
        ...

    def relocate(self, call: ToolCall, subject: Subject) -> Subject:
        """Return the subject with its containment after a wait in the queue."""
        ...

    def launcher(self, call: ToolCall, subject: Subject) -> Launcher | None:
        """Return the launcher for commands of the call; None: no command starts here."""
        ...


class Consultations(msgspec.Struct, frozen=True):
    policies: Policies
    """Returns the rules of a workspace."""
    decide: Callable[[ToolCall, Subject], Decision]
    """Second consultation: returns the decision about a call with its containment."""

    def objects_to_terminal(self, call: ToolCall, subject: Subject) -> bool:
        """First consultation: whether the guard objects to a command outside the sandbox."""
        return self.decide(call, subject).reason.overrides_grants

    def hosts(
        self, call: ToolCall, subject: Subject
    ) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...] | None]:
        """First consultation: return the host lists that narrow a call with network, and the hosts
        that bound all commands of the workspace (None: any host)."""
        most = self.policies(call.session.workspace).most_hosts
        return self.decide(call, subject).hosts, most


def examine(
    call: ToolCall,
    is_confined: bool,
    subject: Subject,
    site: Site,
    decide: Decide,
    found: Findings,
) -> Decision:
    """Return the decision about a call, and store it and its subject in `found`.
    `is_confined`: the tool has path parameters or starts commands."""
    found.subject = subject = subject if call.handover is None else with_work(call, subject)
    if is_confined or call.session.pool is not None:
        found.subject = subject = site.contain(call, subject)
        found.subject = subject = site.locate(call, subject)
    found.decision = decision = decide(call, subject)
    if call.handover is not None:
        found.decision = decision = restricted(call, subject, site, decision)
    if subject.enclosure is not None:
        site.ensure(call, subject, decision)
    return decision


def restricted(call: ToolCall, subject: Subject, site: Site, decision: Decision) -> Decision:
    """Return the decision about handed-over work, tightened for this site."""
    facts = Circumstances(
        is_unbound=site.is_unbound(call, subject),
        is_understood=call.handover is None or call.handover.is_understood,
    )
    return tighten(decision, facts)
