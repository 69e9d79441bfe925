"""Decisions under rules are cached: a change of anything that they depend on shows in the next call."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from callgate import Gate, Mode, tool
from callgate.config.policies import LOOK_EVERY_S

_PLAIN = """
[[policy.rules]]
decision = "deny"
path = "/srv/**"
[[policy.rules]]
decision = "deny"
tool = "other_*"
"""
_ARGUMENT = """
[[policy.rules]]
decision = "deny"
tool = "ship"
arguments = { to = "abroad*" }
"""


@tool(side_effects="write")
def ship(to: str) -> str:
    """Ship a parcel."""
    return to


class World:
    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "home", base / "ws"
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        self.count = 0
        self.set(_PLAIN)

    def set(self, text: str) -> None:
        settings = self.home / "settings.toml"
        settings.write_text(f'[policy.per_tool]\nship = "auto"\n{text}')
        self.count += 1  # two changes of one moment look different
        os.utime(settings, ns=(self.count * 10**9, self.count * 10**9))

    def gate(self) -> Gate:
        return Gate(self.ws, [ship], home=self.home)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def reason(gate: Gate, to: str = "home") -> str | None:
    result = await gate.call("ship", {"to": to})
    return None if result.error is None else result.error.reason


async def test_a_new_rule_about_the_tool_counts_for_the_next_call(world: World) -> None:
    async with world.gate() as gate:
        assert [await reason(gate) for _ in range(3)] == [None] * 3
        world.set(_PLAIN + '[[policy.rules]]\ndecision = "deny"\ntool = "ship"\n')
        await asyncio.sleep(LOOK_EVERY_S)
        assert await reason(gate) == "policy_deny"
        world.set(_PLAIN)
        await asyncio.sleep(LOOK_EVERY_S)
        assert await reason(gate) is None


async def test_a_rule_about_arguments_looks_at_each_call(world: World) -> None:
    world.set(_PLAIN + _ARGUMENT)
    async with world.gate() as gate:
        found = [await reason(gate, to) for to in ("home", "abroad", "home", "abroad far", "home")]
    assert found == [None, "policy_deny", None, "policy_deny", None]


async def test_the_mode_of_the_session_counts_for_the_next_call(world: World) -> None:
    async with world.gate() as gate:
        assert await reason(gate) is None
        gate.session.mode = Mode.READ
        assert await reason(gate) == "mode_read"
        gate.session.mode = Mode.ASK
        assert await reason(gate) is None


async def test_a_grant_of_a_person_is_not_remembered_with_the_decision(world: World) -> None:
    world.set(_PLAIN + '[[policy.rules]]\ndecision = "ask"\ntool = "ship"\n')
    answers = iter([True, False, True])

    async def confirm(question: object) -> bool:
        return next(answers)

    async with Gate(world.ws, [ship], home=world.home, confirm=confirm) as gate:
        assert [await reason(gate) for _ in range(3)] == [None, "user_denied", None]
