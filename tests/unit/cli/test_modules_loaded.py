"""How many of our modules a command loads: more of them is a slower start."""

from __future__ import annotations

from benchmarks.modules import measure

MOST = {
    "--version": 10,
    "call with an instance": 17,
    "call without an instance": 204,  # with the guard: where values come from, and what a budget counts
    "acp, before a greeting": 41,
    "acp, with a session": 294,  # with the index that the guard looks into, and the check of file locks
}
"""Whoever needs one more says here for what; fewer is always right."""


def test_no_command_loads_more_of_our_modules_than_it_did() -> None:
    loaded = {name: each.ours for name, each in measure().items()}
    assert loaded.keys() == MOST.keys()
    assert {name: ours for name, ours in loaded.items() if ours > MOST[name]} == {}
