"""Values that the stages exchange about a call. All but `Findings` are frozen."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.schemas import Checked
from callgate.core.sessions import Mode, ResolvedPath
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision, Question
from callgate.policy.provenance.sources import Flow
from callgate.sandbox.jails import Network


class Work(msgspec.Struct, frozen=True):
    """Replacement for the tool of a handed-over call, and for its preview."""

    factory: ToolFactory
    previewer: Any


class Subject(msgspec.Struct, frozen=True):
    """The subject of a decision: a tool, its checked arguments, and the paths in them."""

    tool: Registered
    checked: Checked
    resolved_paths: tuple[ResolvedPath, ...] = ()
    enclosure: Enclosure | None = None
    """Sandbox of its commands, for a tool that has no other effects than its commands have."""
    named: tuple[ResolvedPath, ...] = ()
    """Paths in the text of its command that need approval by a rule."""
    work: Work | None = None
    """Replacement for the tool; None: the tool itself runs."""
    undone_by: str = ""
    """How `callgate undo` can revert all effects of the call; empty: it cannot."""

    @property
    def policy_key(self) -> str:
        """Key of all facts that a cached decision depends on, except mode, caller and rules."""
        key = f"{self.tool.policy_key} reversible" if self.undone_by else self.tool.policy_key
        if self.enclosure is None:
            return key
        around = self.enclosure
        facts = (around.read_only, around.reading, around.widened, self.contained)
        return f"{key} {facts}"

    @property
    def contained(self) -> bool:
        """Whether its commands run in a sandbox without network access before an approval."""
        around = self.enclosure
        return (
            around is not None
            and around.profile is not None
            and around.place is None
            and around.network in (Network.NONE, Network.LOOPBACK, Network.ASK)
        )

    @property
    def asks_hosts(self) -> bool:
        """Whether its commands may contact unlisted hosts after an approval."""
        return self.enclosure is not None and self.enclosure.network is Network.ASK

    @property
    def widened(self) -> bool:
        """Whether it requests more than the settings give to every command."""
        return self.enclosure is not None and self.enclosure.widened

    @property
    def reaches_network(self) -> bool:
        """Whether its approval includes the network: the call requests it, or its command runs
        outside our sandbox."""
        return self.enclosure is not None and (
            self.enclosure.widened or self.enclosure.place is not None
        )


def with_work(call: ToolCall, subject: Subject) -> Subject:
    """Return the subject with the work that a surface attached to its call, if any."""
    handover, tool = call.handover, subject.tool
    if handover is None:
        return subject
    previewer = tool.previewer
    if handover.previews:
        previewer = handover.work(lambda: tool.previewer)
    work = Work(partial(handover.work, tool.factory), previewer)
    return msgspec.structs.replace(subject, work=work)


class Findings(msgspec.Struct):
    """Facts about one call that the stages found so far; a refusal records them. The only value of
    the pipeline that changes: each stage sets its own field."""

    tool: Registered | None = None
    subject: Subject | None = None
    decision: Decision | None = None


def question(
    call: ToolCall, subject: Subject, book: Rulebook, flow: Flow | None = None
) -> Question:
    """Return the question to the policy. `flow` has the sources of the call's destinations."""
    tool, session = subject.tool, call.session
    return Question(
        tool=tool.name,
        aliases=tool.definition.aliases,
        effect=tool.effect,
        destructive=tool.destructive,
        mode=Mode(session.mode),  # callers may pass both as plain strings
        caller=CallerKind(call.caller),
        workspace=book.directory or session.workspace,
        resolved_paths=(*subject.resolved_paths, *subject.named),
        arguments=subject.checked.arguments,
        arguments_sha256=subject.checked.sha256,
        read_only_sandbox=subject.enclosure is not None and subject.enclosure.read_only,
        reading=subject.enclosure is not None and subject.enclosure.reading,
        network=subject.widened,
        contained=subject.contained,
        reversible=bool(subject.undone_by),
        outward=tool.outward,
        flow=flow,
    )
