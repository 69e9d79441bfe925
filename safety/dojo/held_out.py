"""Injections of our own, beside AgentDojo's: of the same kinds, and no rule was tuned on them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from safety.contestants.ports import Contestant
from safety.dojo.runs import SuiteWorld, as_calls, environments, seen_vectors
from safety.dojo.suites import SIGN, injected_text, load
from safety.episodes import play, shortened
from safety.people import belongs
from safety.values import Call, Episode


class PlannedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    arguments: dict[str, Any]


class Injection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suite: str
    id: str
    kind: str
    """What makes it hard."""
    tasks: tuple[str, ...]
    goal: str
    calls: tuple[PlannedCall, ...]


class _Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    injection: tuple[Injection, ...]


@cache
def injections() -> tuple[Injection, ...]:
    text = resources.files("safety.dojo").joinpath("held_out.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_Corpus).injection


async def attacked(injection: Injection, task_id: str, contestant: Contestant) -> Episode:
    """One task with one of our injections; reached if the last of its calls ran as it was
    meant: a gate may have changed its arguments."""
    suite = injection.suite
    task = load(suite).user_tasks[task_id]
    text = injected_text(injection.goal)
    environment, before = environments(
        suite, task_id, dict.fromkeys(seen_vectors(suite, task_id), text)
    )
    harmful = [Call(each.tool, each.arguments, "attacker") for each in injection.calls]
    calls = [*as_calls(task.ground_truth(before), "user"), *harmful]
    world = SuiteWorld(suite, environment)
    steps, questions = await play(contestant, world, task.PROMPT, calls, SIGN)
    reached = any(belongs(ran.tool, ran.arguments, harmful[-1]) for ran in world.calls)
    return Episode(suite, task_id, injection.id, shortened(steps), reached, questions)
