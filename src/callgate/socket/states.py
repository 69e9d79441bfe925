"""The states of one connection, and the only transitions between them. Pure.

    NEW
     | OPEN
     v          RECEIVE              YIELD
    READING ---------------> TAKING ---------> WAITING <--+
     | ^ ^                    | | | <---------            |
     | | +------- TAKEN ------+ | |    TURN               | ANSWER
     | +- DRAIN - FULL <- FILL -+ +- BLOCK -> BLOCKED ----+
     | EOF
     v
    HALF_CLOSED              every state but NEW: --CLOSE--> CLOSING --LOST--> CLOSED

Bytes are read only in READING. In all other states the peer waits, or has sent its last byte.
A transition that is not in the table is a bug: it raises `ValueError`, and the connection ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ConnectionState(StrEnum):
    __hash__ = str.__hash__  # the enum's own is Python code, and this runs for every request

    NEW = "new"
    """There is no transport yet."""
    READING = "reading"
    """All received bytes are processed; more are read."""
    TAKING = "taking"
    """The received requests are being processed, within one time slice of the loop."""
    WAITING = "waiting"
    """The remaining requests wait for the next time slice."""
    BLOCKED = "blocked"
    """Too many requests other than calls are unanswered. The next answer ends this state."""
    FULL = "full"
    """Too many calls are queued, so nothing is read."""
    HALF_CLOSED = "half_closed"
    """The peer has sent its last byte, and still reads its answers."""
    CLOSING = "closing"
    """Nothing is processed or answered any more; written data is still sent."""
    CLOSED = "closed"


class Transition(StrEnum):
    __hash__ = str.__hash__

    OPEN = "open"
    RECEIVE = "receive"
    """Bytes arrived."""
    YIELD = "yield"
    """The time slice is over, or much output is pending."""
    TURN = "turn"
    BLOCK = "block"
    ANSWER = "answer"
    """A request other than a call was answered."""
    TAKEN = "taken"
    """All received requests are processed."""
    FILL = "fill"
    """All received requests are processed, and the queue of calls is full."""
    DRAIN = "drain"
    """No call is queued any more."""
    EOF = "eof"
    """The peer has sent its last byte, and answers are pending."""
    CLOSE = "close"
    """The transport is closing, on either side."""
    LOST = "lost"


_END = {Transition.CLOSE: ConnectionState.CLOSING, Transition.LOST: ConnectionState.CLOSED}

TRANSITIONS: Mapping[ConnectionState, Mapping[Transition, ConnectionState]] = {
    ConnectionState.NEW: {Transition.OPEN: ConnectionState.READING},
    ConnectionState.READING: {
        Transition.RECEIVE: ConnectionState.TAKING,
        Transition.EOF: ConnectionState.HALF_CLOSED,
        **_END,
    },
    ConnectionState.TAKING: {
        Transition.YIELD: ConnectionState.WAITING,
        Transition.BLOCK: ConnectionState.BLOCKED,
        Transition.TAKEN: ConnectionState.READING,
        Transition.FILL: ConnectionState.FULL,
        **_END,
    },
    ConnectionState.WAITING: {Transition.TURN: ConnectionState.TAKING, **_END},
    ConnectionState.BLOCKED: {Transition.ANSWER: ConnectionState.WAITING, **_END},
    ConnectionState.FULL: {Transition.DRAIN: ConnectionState.READING, **_END},
    ConnectionState.HALF_CLOSED: _END,
    ConnectionState.CLOSING: {Transition.LOST: ConnectionState.CLOSED},
    ConnectionState.CLOSED: {},
}

OPEN = frozenset(state for state, edges in TRANSITIONS.items() if Transition.CLOSE in edges)
"""States in which a peer is served."""
PAUSED = frozenset({ConnectionState.WAITING, ConnectionState.BLOCKED, ConnectionState.FULL})
"""States in which nothing is read from a peer that may send more."""
LOOKED_AT = frozenset({ConnectionState.FULL, ConnectionState.HALF_CLOSED, ConnectionState.CLOSING})
"""States in which only a check of the socket detects that the peer has disconnected."""


def next_state(state: ConnectionState, transition: Transition) -> ConnectionState:
    """Return the next state. Raises `ValueError` if the state has no such transition."""
    following = TRANSITIONS[state].get(transition)
    if following is None:
        raise ValueError(f"a connection that is {state} has no transition {transition}")
    return following
