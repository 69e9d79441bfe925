"""The guard above rules, grants and modes: what may leave a session that read untrusted content.

    untrusted content was read, and the call sends out or destroys
        -> every destination vouched for by the user, the settings or an answer?   as decided
        -> one is not                                                              ask
    a secret goes to a destination that nobody vouched for                         ask

`Flow` is what is known of one call: its destinations, each with where it stands, and what its
session has read. The guard only ever makes a decision stricter. Pure.
"""

from __future__ import annotations

from callgate.core.content import Label
from callgate.policy.provenance.sources import Flow, SourceKind

UNTRUSTED_DESTINATION = "untrusted_destination"
PRIVATE_OUTWARD = "private_outward"
SECRET_OUTWARD = "secret_outward"  # noqa: S105  # the name of a reason
_SHOWN = 80


def objection(flow: Flow) -> tuple[str, str] | None:
    """Why a call must be asked about whatever else allows it: a reason and a sentence for a person.
    None: the guard has nothing to say."""
    if flow.destinations and not flow.unvouched:
        return None
    first_read = flow.labels.get(Label.UNTRUSTED)
    if first_read is not None and (flow.outward or flow.destroys) and flow.unvouched:
        return UNTRUSTED_DESTINATION, (
            f"The session has read untrusted content ({first_read}), and {describe(flow)}"
        )
    if flow.destinations or flow.takes_destinations:
        return _secret(flow)
    is_private = first_read is not None and Label.PRIVATE in flow.labels
    if is_private and flow.outward and not flow.is_answered:
        return PRIVATE_OUTWARD, (
            f"The session has read untrusted content ({first_read}) and private content"
            f" ({flow.labels[Label.PRIVATE]}), and this sends something out."
        )
    return _secret(flow)


def _secret(flow: Flow) -> tuple[str, str] | None:
    if flow.outward and flow.carries_secret:
        return SECRET_OUTWARD, "It would send what looks like a secret to the outside."
    return None


def describe(flow: Flow) -> str:
    """Where the first destination that nobody vouched for comes from."""
    trace = flow.unvouched[0]
    more = len(flow.unvouched) - 1
    others = "" if not more else f" (and {more} more)"
    value = trace.value if len(trace.value) <= _SHOWN else trace.value[: _SHOWN - 1] + "…"
    what = f"{trace.parameter} {value!r}{others}"
    match trace.source.kind:
        case SourceKind.NOWHERE:
            return f"{what} does not stand in your words."
        case SourceKind.UNKNOWN:
            return f"nobody told what you wrote, so that {what} may come from anywhere."
        case _:
            return f"{what} does not come from your words but from {trace.source}."
