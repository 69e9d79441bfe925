"""How many of our modules a command loads: more of them is a slower start."""

from __future__ import annotations

from benchmarks.modules import measure

MOST = {
    "--version": 10,
    "call with an instance": 16,
    "call without an instance": 178,  # with the guard, what a budget counts, sites of calls, lists of decisions
    "acp, before a greeting": 38,
    "acp, with a session": 257,  # with the same, the index that the guard looks into, and the check of file locks
}
"""Whoever needs one more says here for what; fewer is always right."""


def test_no_command_loads_more_of_our_modules_than_it_did() -> None:
    loaded = {name: each.ours for name, each in measure().items()}
    assert loaded.keys() == MOST.keys()
    assert {name: ours for name, ours in loaded.items() if ours > MOST[name]} == {}
