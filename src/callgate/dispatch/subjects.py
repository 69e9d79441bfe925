"""What the stages pass on about a call. Frozen: a stage returns a new value, it changes none."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.json_schema.schemas import Checked
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Mode
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import Decision, Question, Rulebook
from callgate.policy.provenance.sources import Flow
from callgate.sandbox.jails import Network


class Subject(msgspec.Struct, frozen=True):
    """What is to be authorized: a tool, its checked arguments, the places they name."""

    tool: Registered
    checked: Checked
    resolved_paths: tuple[ResolvedPath, ...] = ()
    enclosure: Enclosure | None = None
    """What its commands run in, for a tool that does all by commands."""
    named: tuple[ResolvedPath, ...] = ()
    """Places in the words of its command that a rule asks about."""

    @property
    def policy_key(self) -> str:
        """All that a decision without rules depends on, beside the mode and the caller."""
        if self.enclosure is None:
            return self.tool.policy_key
        around = self.enclosure
        return f"{self.tool.policy_key} {around.read_only} {around.widened} {self.contained}"

    @property
    def contained(self) -> bool:
        """Its commands run in a sandbox from which they reach no network."""
        around = self.enclosure
        return (
            around is not None
            and around.profile is not None
            and not around.delegated
            and around.network in (Network.NONE, Network.LOOPBACK)
        )

    @property
    def widened(self) -> bool:
        """It asks for more than the settings give to any command."""
        return self.enclosure is not None and self.enclosure.widened

    @property
    def reaches_network(self) -> bool:
        """Whether a yes to it is more than one to a command without the network: it asks for
        that, or runs where nobody keeps it away."""
        return self.enclosure is not None and (self.enclosure.widened or self.enclosure.delegated)


class Performer(msgspec.Struct, frozen=True):
    """Who runs a call in place of its tool: an agent of somebody else, which asks by a hook before.
    The call is judged, asked about and recorded as any other."""

    wrap: Callable[[ToolFactory], ToolFactory]
    """Makes what is run of what the tool would run."""
    by_agent: bool = True
    """Nothing of ours is around its commands, as in an editor's terminal."""
    is_doubtful: bool = False
    """It may do something that its words do not say: no mode lets it run without a question."""

    def take(self, tool: Registered) -> Registered:
        previewer = self.wrap(lambda: tool.previewer)()
        return msgspec.structs.replace(tool, factory=self.wrap(tool.factory), previewer=previewer)


class Findings(msgspec.Struct, frozen=True):
    """What the stages found out about a call until it ended: all of it, or what came before the
    stage that refused."""

    tool: Registered | None = None
    subject: Subject | None = None
    decision: Decision | None = None


def question(
    call: ToolCall, subject: Subject, book: Rulebook, flow: Flow | None = None
) -> Question:
    """What the policy is asked about a call. `flow` is where its destinations come from."""
    tool, session = subject.tool, call.session
    return Question(
        tool=tool.name,
        aliases=tool.definition.aliases,
        effect=tool.effect,
        destructive=tool.destructive,
        mode=Mode(session.mode),  # both may have been given as words
        caller=CallerKind(call.caller),
        workspace=book.directory or session.workspace,
        resolved_paths=(*subject.resolved_paths, *subject.named),
        arguments=subject.checked.arguments,
        arguments_sha256=subject.checked.sha256,
        read_only_sandbox=subject.enclosure is not None and subject.enclosure.read_only,
        network=subject.widened,
        contained=subject.contained,
        outward=tool.outward,
        flow=flow,
    )
