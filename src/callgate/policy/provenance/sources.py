"""Sources of values, as data: a kind, and a text of this kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from callgate.core.content import Label


class SourceKind(StrEnum):
    """Ordered by trust: if a value appears in several texts, the first kind counts."""

    USER = "user"
    """The person wrote it: a prompt, or a value in an answer."""
    SETTINGS = "settings"
    NAMED = "named"
    """The id of a record in a tool's data output, whose name the person wrote."""
    ANSWER = "answer"
    """A person allowed this tool to use this destination for the rest of the session."""
    VOUCHED = "vouched"
    """The output of a tool that is declared as trusted as the user's words."""
    MENTIONED = "mentioned"
    """The person wrote it, but not for this use; `Source.reason` tells why."""
    ATTACHED = "attached"
    """A file that the person attached to a prompt."""
    WORKSPACE = "workspace"
    """A file of the workspace, as shown by a tool."""
    MEMORY = "memory"
    TOOL = "tool"
    """The output of any other tool."""
    NOWHERE = "nowhere"
    """Made by the model, or changed beyond recognition."""
    UNKNOWN = "unknown"
    """The user's prompts are not known."""


VOUCHING = frozenset(
    {
        SourceKind.USER,
        SourceKind.SETTINGS,
        SourceKind.NAMED,
        SourceKind.ANSWER,
        SourceKind.VOUCHED,
    }
)
"""Kinds that permit an effect outside the workspace."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: SourceKind
    tool: str = ""
    """The tool whose output it is."""
    number: int = 0
    """The number of the call in the session, from 1."""
    call_id: str = ""
    untrusted: bool = False
    """Whether third parties may have written the text."""
    reason: str = ""
    """Why words of the user do not vouch for the use: "which only ask about it"."""

    def __str__(self) -> str:
        match self.kind:
            case SourceKind.USER:
                return "your words"
            case SourceKind.MENTIONED:
                return f"your words, {self.reason}"
            case SourceKind.SETTINGS:
                return "your settings"
            case SourceKind.NAMED:
                return "what you named"
            case SourceKind.ANSWER:
                return "an earlier answer of yours"
            case SourceKind.ATTACHED:
                return "a file that you attached"
            case SourceKind.NOWHERE:
                return "no text that proves its origin"
            case SourceKind.UNKNOWN:
                return "unknown: the conversation is not known here"
            case SourceKind.WORKSPACE:
                where = "the workspace, first seen in"
            case SourceKind.MEMORY:
                where = "memory, read by"
            case SourceKind.VOUCHED:
                where = "the trusted output of"
            case SourceKind.TOOL:
                where = "untrusted content of" if self.untrusted else "the output of"
        return f"{where} {self.tool} #{self.number}"


NOWHERE = Source(SourceKind.NOWHERE)
UNKNOWN = Source(SourceKind.UNKNOWN)


_MOST_LINES = 6
_LONGEST_VALUE = 80
_FEW_WORDS = 2
"""Values with at most this number of words appear in many texts."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value of a call's arguments, and its source."""

    parameter: str
    value: str
    source: Source
    is_destination: bool = False
    """Whether it determines where an effect goes."""

    @property
    def vouched(self) -> bool:
        return self.source.kind in VOUCHING


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the values of a call, and the labels of its session."""

    outward: bool
    """The call sends data out: also a read over the network, whose URL carries data."""
    destroys: bool
    labels: Mapping[Label, str] = {}
    """Labels of the session, each with the first call that read such content."""
    destinations: tuple[Trace, ...] = ()
    has_effects: bool = True
    """False for a call that only reads."""
    takes_destinations: bool = True
    """The author of the tool declares its destination parameters: if none is set, the effect
    stays in the account of the user.
    """
    carries_secret: bool = False
    hosts: tuple[str, ...] = ()
    """For a command: the hosts in its words. It reaches no others."""
    unnamed_hosts: tuple[str, ...] = ()
    """Hosts that appear neither in the user's words, nor in settings, nor in an approval."""
    is_paused: bool = False
    """A person refused so many questions of the guard that outward effects wait for the user."""
    is_answered: bool = False
    """A person allowed this tool, which has no destination, for the rest of the session."""

    @property
    def unvouched(self) -> tuple[Trace, ...]:
        return tuple(trace for trace in self.destinations if not trace.vouched)

    @property
    def vouched(self) -> bool:
        """Whether all destinations come from the user, the settings, or an answer."""
        return bool(self.destinations) and not self.unvouched

    @property
    def is_led_out(self) -> bool:
        """Whether it sends data to a destination that comes from a file or a tool."""
        return self.outward and any(
            trace.source.kind not in (SourceKind.NOWHERE, SourceKind.MENTIONED)
            for trace in self.unvouched
        )

    @property
    def inside(self) -> bool:
        """Whether all destinations are trusted within the workspace, whose files count too."""
        return all(
            trace.vouched or trace.source.kind is SourceKind.WORKSPACE
            for trace in self.destinations
        )


def lines_for_person(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return a short line about the source of each important value; unvouched values come first.

    These are all destinations, and other values from untrusted content.
    """
    chosen = [
        each
        for each in traces
        if each.is_destination or (each.source.untrusted and len(each.value.split()) > _FEW_WORDS)
    ]
    chosen.sort(key=lambda each: (each.vouched, not each.is_destination))
    lines = [f"{each.parameter}: {_shortened(each.value)}, from {each.source}" for each in chosen]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"and {len(lines) - _MOST_LINES + 1} more values"]
    return tuple(lines)


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"
