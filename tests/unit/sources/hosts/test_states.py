"""What hosts want to be reminded of does not grow without end."""

from __future__ import annotations

import pytest

from callgate.sources.hosts import states as module
from callgate.sources.hosts.states import States


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> States:
    monkeypatch.setattr(module, "MOST_SESSIONS", 3)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    return States()


def kept(states: States) -> dict[str, object]:
    return {session: states.get(session, {}) for session in "abcde" if session in states}


def test_the_sessions_that_were_kept_first_go_first(states: States) -> None:
    for n, session in enumerate("abacd"):
        states.keep(session, {"n": n})
    assert kept(states) == {"a": {"n": 2}, "c": {"n": 3}, "d": {"n": 4}}


def test_a_large_state_takes_the_place_of_others(states: States) -> None:
    large = {"text": "x" * 80}
    states.keep("a", {"n": 1})
    states.keep("b", large)
    assert kept(states) == {"a": {"n": 1}, "b": large}
    states.keep("c", {"text": "y" * 80})
    assert [*kept(states)] == ["c"]
    states.keep("d", {"text": "z" * 200})  # too large for all of them
    assert kept(states) == {}


def test_what_was_forgotten_leaves_its_room(states: States) -> None:
    for _ in range(10):
        states.keep("a", {"text": "x" * 80})
        states.forget("a")
        states.forget("a")
    states.keep("b", {"text": "x" * 80})
    assert ([*kept(states)], states.get("a", {"n": 0})) == (["b"], {"n": 0})
