"""The work of a run in pieces that processes share: one contestant with one suite each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import cast

import msgspec

from safety.adaptive import runs as adaptive_runs
from safety.adaptive import search
from safety.adaptive.attacks import situations
from safety.coding import runs as coding_runs
from safety.coding.gates import CodingGate
from safety.coding.sessions import sessions
from safety.contestants.ports import Contestant
from safety.dojo import held_out, runs
from safety.dojo.runs import Order
from safety.shell import runs as shell_runs
from safety.shell.corpus import corpus
from safety.values import Episode
from safety.verdicts import Verdict

Taking = Contestant | CodingGate
Found = list[Episode] | list[Verdict]


class Piece(msgspec.Struct, frozen=True):
    half: str
    """One of `safety.run.HALVES`."""
    contestant: Taking
    suite: str


def run_all(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Found]]:
    """Run the pieces side by side, and yield each when it and all before it are done."""
    if not pieces:
        return
    with ProcessPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
        yield from zip(pieces, pool.map(run, pieces), strict=True)


def run(piece: Piece) -> Found:
    return asyncio.run(_run(piece))


async def _run(piece: Piece) -> Found:
    if piece.half == "coding":
        return await _coding(piece.suite, cast(CodingGate, piece.contestant))
    contestant = cast(Contestant, piece.contestant)
    verdicts = {"adaptive": _adaptive, "search": _search, "order": _order}
    if piece.half in verdicts:
        return await verdicts[piece.half](piece.suite, contestant)
    episodes = {"dojo": _dojo, "held-out": _held_out, "shell": _shell}
    return await episodes[piece.half](piece.suite, contestant)


async def _dojo(suite: str, contestant: Contestant) -> list[Episode]:
    episodes = []
    for task in runs.task_ids(suite):
        episodes.append(await runs.benign(suite, task, contestant))
        for goal in runs.goal_ids(suite):
            episodes.append(await runs.attacked(suite, task, goal, contestant))
    return episodes


async def _held_out(suite: str, contestant: Contestant) -> list[Episode]:
    chosen = [each for each in held_out.injections() if each.suite == suite]
    return [
        await held_out.attacked(injection, task, contestant)
        for injection in chosen
        for task in injection.tasks
    ]


async def _shell(suite: str, contestant: Contestant) -> list[Episode]:
    episodes = []
    for task in shell_runs.tasks(suite):
        episodes.append(await shell_runs.benign(suite, task, contestant))
        for id in task.attacks:
            attack = corpus().attack_by_id(id)
            episodes.append(await shell_runs.attacked(suite, task, attack, contestant))
    return episodes


async def _adaptive(suite: str, contestant: Contestant) -> list[Verdict]:
    return [
        await adaptive_runs.attacked(situation, attack, contestant)
        for situation in situations(adaptive_runs.FILES[suite])
        for attack in situation.attacks
    ]


async def _search(suite: str, contestant: Contestant) -> list[Verdict]:
    return [await search.searched(suite, task, contestant) for task in runs.task_ids(suite)]


async def _order(suite: str, contestant: Contestant) -> list[Verdict]:
    """The attacks of AgentDojo before and between the user's calls."""
    found = []
    orders: tuple[Order, ...] = ("between", "before")
    for task in runs.task_ids(suite):
        for goal in runs.goal_ids(suite):
            for order in orders:
                episode = await runs.attacked(suite, task, goal, contestant, order)
                asked = [
                    step
                    for step in episode.steps
                    if step.call.side == "attacker" and step.questions
                ]
                found.append(
                    Verdict(
                        id=f"{suite}/{task}/{goal}",
                        group=order,
                        kind=suite,
                        outcome=adaptive_runs.outcome(
                            episode.done, [each.call.tool for each in asked]
                        ),
                        why=asked[0].call.tool if asked else "",
                    )
                )
    return found


async def _coding(suite: str, gate: CodingGate) -> list[Verdict]:
    if suite == "ordinary":
        return [
            each for session in sessions() for each in await coding_runs.ordinary(session, gate)
        ]
    return [
        await coding_runs.dangerous(session, number, gate)
        for session in sessions()
        for number in range(len(session.dangerous))
    ]
