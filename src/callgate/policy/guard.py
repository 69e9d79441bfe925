"""The guard above rules, grants and modes: data flow out of a session with untrusted content.

    untrusted content was read, and the call sends out or destroys
        -> the user, the settings or an answer vouch for all destinations   unchanged
        -> they do not                                                      ask
    a secret goes to an unvouched destination                               ask

`Flow` has the facts about one call: its destinations with their sources, and the labels of the
content that its session has read. The guard only makes a decision stricter. Pure.
"""

from __future__ import annotations

from callgate.core.content import Label
from callgate.policy.decisions import Reason
from callgate.policy.provenance.sources import Flow, SourceKind

_SHOWN = 80


def objection(flow: Flow) -> tuple[Reason, str] | None:
    """Return why a call needs approval even if all else allows it, as a reason and a sentence.

    None: the guard does not object.
    """
    if flow.destinations and not flow.unvouched:
        return None
    first_read = flow.labels.get(Label.UNTRUSTED)
    if first_read is not None and (flow.outward or flow.destroys) and flow.unvouched:
        return Reason.UNTRUSTED_DESTINATION, (
            f"The session has read untrusted content ({first_read}), and {describe(flow)}"
        )
    if flow.destinations or flow.takes_destinations:
        return _secret(flow)
    is_private = Label.PRIVATE in flow.labels
    may_follow = first_read is not None and (is_private or flow.has_effects)
    if may_follow and flow.outward and not flow.is_answered:
        private = f" and private content ({flow.labels[Label.PRIVATE]})" if is_private else ""
        return Reason.PRIVATE_OUTWARD, (
            f"The session has read untrusted content ({first_read}){private}, and this call sends"
            " data out without a destination that callgate knows."
        )
    return _secret(flow)


def is_paused(flow: Flow) -> bool:
    """Whether the call waits for the user, who refused several questions of the guard."""
    may_go_on = not flow.outward or (not flow.has_effects and flow.vouched)
    return flow.is_paused and not may_go_on


def unnamed_host(flow: Flow) -> str:
    """Return why a host needs its first approval; an empty text if all hosts are named."""
    if not flow.unnamed_hosts:
        return ""
    first, *others = flow.unnamed_hosts
    more = f" (and {len(others)} more)" if others else ""
    return f"The host {first!r}{more} appears neither in your words nor in your settings."


def _secret(flow: Flow) -> tuple[Reason, str] | None:
    if flow.outward and flow.carries_secret:
        return Reason.SECRET_OUTWARD, Reason.SECRET_OUTWARD.sentence
    return None


def describe(flow: Flow) -> str:
    """Describe the source of the first unvouched destination."""
    trace = flow.unvouched[0]
    more = len(flow.unvouched) - 1
    others = "" if not more else f" (and {more} more)"
    value = trace.value if len(trace.value) <= _SHOWN else trace.value[: _SHOWN - 1] + "…"
    subject = f"{trace.parameter} {value!r}{others}"
    match trace.source.kind:
        case SourceKind.NOWHERE:
            return f"{subject} does not appear in anything you wrote."
        case SourceKind.MENTIONED:
            return f"{subject} is not covered by your words, {trace.source.reason}."
        case SourceKind.UNKNOWN:
            return f"what you wrote is unknown, so {subject} may come from anywhere."
        case _:
            return f"{subject} does not come from your words but from {trace.source}."
