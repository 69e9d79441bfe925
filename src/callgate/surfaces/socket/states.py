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

Bytes are read in READING alone. In every other state the peer has to wait, or says no more.
A transition that is not in the table is a defect of ours: `ValueError`, and the connection ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ConnectionState(StrEnum):
    __hash__ = str.__hash__  # an enum's own is written in Python, and asked with every request

    NEW = "new"
    """There is no transport yet."""
    READING = "reading"
    """Everything that came is taken; more is read."""
    TAKING = "taking"
    """The requests in what came are being taken, within one slice of the loop's time."""
    WAITING = "waiting"
    """There are more than fit a slice: it waits for its next turn."""
    BLOCKED = "blocked"
    """Too many requests beside calls are unanswered: the first answer goes on from here."""
    FULL = "full"
    """So many calls wait for others that no more is read."""
    HALF_CLOSED = "half_closed"
    """The peer says no more, and still listens for its answers."""
    CLOSING = "closing"
    """Nothing is taken or answered any more; what was written still goes out."""
    CLOSED = "closed"


class Transition(StrEnum):
    __hash__ = str.__hash__

    OPEN = "open"
    RECEIVE = "receive"
    """Bytes came."""
    YIELD = "yield"
    """The slice is over, or much waits to go out."""
    TURN = "turn"
    BLOCK = "block"
    ANSWER = "answer"
    """A request beside calls was answered."""
    TAKEN = "taken"
    """Every request in what came is taken."""
    FILL = "fill"
    """The same, and there is no room for more."""
    DRAIN = "drain"
    """No call waits for others any more."""
    EOF = "eof"
    """The peer says no more, and answers are due."""
    CLOSE = "close"
    """The transport is closing, whoever closed it."""
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
"""In which a peer is served."""
PAUSED = frozenset({ConnectionState.WAITING, ConnectionState.BLOCKED, ConnectionState.FULL})
"""In which nothing is read from a peer that may have more to say."""
LOOKED_AT = frozenset({ConnectionState.FULL, ConnectionState.HALF_CLOSED, ConnectionState.CLOSING})
"""In which only a look at the socket shows that the peer has gone."""


def next_state(state: ConnectionState, transition: Transition) -> ConnectionState:
    """Where a transition leads. `ValueError` where there is none of this name."""
    following = TRANSITIONS[state].get(transition)
    if following is None:
        raise ValueError(f"a connection that is {state} has no transition {transition}")
    return following
