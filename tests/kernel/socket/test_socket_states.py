"""The states of a connection: each transition where it is drawn, and refused everywhere else."""

from __future__ import annotations

from itertools import product

import pytest

from callgate.socket.states import LOOKED_AT, OPEN, PAUSED, TRANSITIONS, ConnectionState, Transition, next_state

DRAWN = {
    (ConnectionState.NEW, Transition.OPEN): ConnectionState.READING,
    (ConnectionState.READING, Transition.RECEIVE): ConnectionState.TAKING,
    (ConnectionState.READING, Transition.EOF): ConnectionState.HALF_CLOSED,
    (ConnectionState.TAKING, Transition.YIELD): ConnectionState.WAITING,
    (ConnectionState.TAKING, Transition.BLOCK): ConnectionState.BLOCKED,
    (ConnectionState.TAKING, Transition.TAKEN): ConnectionState.READING,
    (ConnectionState.TAKING, Transition.FILL): ConnectionState.FULL,
    (ConnectionState.WAITING, Transition.TURN): ConnectionState.TAKING,
    (ConnectionState.BLOCKED, Transition.ANSWER): ConnectionState.WAITING,
    (ConnectionState.FULL, Transition.DRAIN): ConnectionState.READING,
    **{
        (state, Transition.CLOSE): ConnectionState.CLOSING
        for state in (
            ConnectionState.READING,
            ConnectionState.TAKING,
            ConnectionState.WAITING,
            ConnectionState.BLOCKED,
            ConnectionState.FULL,
            ConnectionState.HALF_CLOSED,
        )
    },
    **{
        (state, Transition.LOST): ConnectionState.CLOSED
        for state in ConnectionState
        if state not in (ConnectionState.NEW, ConnectionState.CLOSED)
    },
}


@pytest.mark.parametrize(("state", "given"), list(product(ConnectionState, Transition)))
def test_every_transition_leads_where_it_is_drawn_and_any_other_is_refused(
    state: ConnectionState, given: Transition
) -> None:
    if (state, given) in DRAWN:
        assert next_state(state, given) is DRAWN[state, given]
    else:
        with pytest.raises(ValueError, match="has no transition"):
            next_state(state, given)


def test_every_state_is_reached_from_the_first_and_ends_closed() -> None:
    def reached(start: ConnectionState) -> set[ConnectionState]:
        seen, waiting = {start}, [start]
        while waiting:
            new = set(TRANSITIONS[waiting.pop()].values()) - seen
            seen |= new
            waiting += new
        return seen

    assert reached(ConnectionState.NEW) == set(ConnectionState)
    assert all(ConnectionState.CLOSED in reached(state) for state in ConnectionState)
    assert reached(ConnectionState.CLOSED) == {ConnectionState.CLOSED}


def test_one_that_is_closing_is_never_served_again() -> None:
    assert set(TRANSITIONS[ConnectionState.CLOSING].values()) == {ConnectionState.CLOSED}
    assert set(ConnectionState) - OPEN == {ConnectionState.NEW, ConnectionState.CLOSING, ConnectionState.CLOSED}


def test_nobody_is_held_back_or_looked_at_before_there_is_a_peer_or_when_it_is_gone() -> None:
    assert PAUSED < OPEN
    assert LOOKED_AT.isdisjoint({ConnectionState.NEW, ConnectionState.CLOSED})
