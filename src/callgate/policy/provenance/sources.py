"""Where a value stands, as data: a kind of source, and which text of that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from callgate.core.content import Label


class SourceKind(StrEnum):
    """In the order in which they vouch for a value: of several texts the first kind counts."""

    USER = "user"
    """What the person wrote: a prompt, or a value in an answer."""
    SETTINGS = "settings"
    NAMED = "named"
    """The id of a record, which a tool returned as data, whose name the person wrote."""
    ANSWER = "answer"
    """A person allowed this tool to go to this destination for the rest of the session."""
    VOUCHED = "vouched"
    """The output of a tool that is declared to be as good as the user's words."""
    ATTACHED = "attached"
    """A file that the person sent along with a prompt."""
    WORKSPACE = "workspace"
    """A file of the workspace, as a tool showed it."""
    MEMORY = "memory"
    TOOL = "tool"
    """The output of any other tool."""
    NOWHERE = "nowhere"
    """The model made it, or changed it beyond recognition."""
    UNKNOWN = "unknown"
    """Nobody told us what the user said."""


VOUCHING = frozenset(
    {
        SourceKind.USER,
        SourceKind.SETTINGS,
        SourceKind.NAMED,
        SourceKind.ANSWER,
        SourceKind.VOUCHED,
    }
)
"""Kinds that are enough for an effect outside the workspace."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: SourceKind
    tool: str = ""
    """Whose output it is."""
    number: int = 0
    """Which call of the session it was, from 1."""
    call_id: str = ""
    untrusted: bool = False
    """Whether strangers can have written the text."""

    def __str__(self) -> str:
        match self.kind:
            case SourceKind.USER:
                return "your words"
            case SourceKind.SETTINGS:
                return "your settings"
            case SourceKind.NAMED:
                return "what you named"
            case SourceKind.ANSWER:
                return "an earlier answer of yours"
            case SourceKind.ATTACHED:
                return "a file that you attached"
            case SourceKind.NOWHERE:
                return "nowhere: the model made it"
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
"""A value of so many words stands in many texts."""


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value of a call's arguments, and where it stands."""

    parameter: str
    value: str
    source: Source
    is_destination: bool = False
    """It says where an effect goes."""

    @property
    def vouched(self) -> bool:
        return self.source.kind in VOUCHING


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Where the values of a call come from, and what its session has read."""

    outward: bool
    """It sends something out: also a read over the network, whose URL carries data."""
    destroys: bool
    labels: Mapping[Label, str] = {}
    """What the session has read, and by which call first."""
    destinations: tuple[Trace, ...] = ()
    takes_destinations: bool = True
    """Its author says which parameters are destinations: where none is given, the effect stays in
    the account of the user."""
    carries_secret: bool = False
    hosts: tuple[str, ...] = ()
    """Of a command: the hosts in its words. It reaches no others."""
    is_answered: bool = False
    """A person allowed this tool, which says no destination, for the rest of the session."""

    @property
    def unvouched(self) -> tuple[Trace, ...]:
        return tuple(trace for trace in self.destinations if not trace.vouched)

    @property
    def vouched(self) -> bool:
        """Whether all destinations come from the user, the settings, or an answer."""
        return bool(self.destinations) and not self.unvouched

    @property
    def is_led_out(self) -> bool:
        """It sends something to a destination that a file or a tool brought in."""
        return self.outward and any(
            trace.source.kind is not SourceKind.NOWHERE for trace in self.unvouched
        )

    @property
    def inside(self) -> bool:
        """The same for an effect inside the workspace, whose own texts count there."""
        return all(
            trace.vouched or trace.source.kind is SourceKind.WORKSPACE
            for trace in self.destinations
        )


def lines_for_person(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Where the values that matter come from, a short line each: of destinations all, of other
    values those that untrusted content brought in. What nobody vouched for comes first."""
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
