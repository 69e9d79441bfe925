"""The work of a run in pieces that processes share: one contestant with one suite each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from safety.contestants.ports import Contestant
from safety.dojo import held_out, runs
from safety.shell import runs as shell_runs
from safety.shell.corpus import corpus
from safety.values import Episode


class Piece(msgspec.Struct, frozen=True):
    half: str
    """`dojo`, `held-out` or `shell`."""
    contestant: Contestant
    suite: str


def run_all(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, list[Episode]]]:
    """Run the pieces side by side, and yield each when it and all before it are done."""
    if not pieces:
        return
    with ProcessPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
        yield from zip(pieces, pool.map(run, pieces), strict=True)


def run(piece: Piece) -> list[Episode]:
    return asyncio.run(_run(piece))


async def _run(piece: Piece) -> list[Episode]:
    if piece.half == "dojo":
        return await _dojo(piece)
    if piece.half == "held-out":
        return await _held_out(piece)
    return await _shell(piece)


async def _dojo(piece: Piece) -> list[Episode]:
    suite, contestant = piece.suite, piece.contestant
    episodes = []
    for task in runs.task_ids(suite):
        episodes.append(await runs.benign(suite, task, contestant))
        for goal in runs.goal_ids(suite):
            episodes.append(await runs.attacked(suite, task, goal, contestant))
    return episodes


async def _held_out(piece: Piece) -> list[Episode]:
    chosen = [each for each in held_out.injections() if each.suite == piece.suite]
    return [
        await held_out.attacked(injection, task, piece.contestant)
        for injection in chosen
        for task in injection.tasks
    ]


async def _shell(piece: Piece) -> list[Episode]:
    episodes = []
    for task in shell_runs.tasks(piece.suite):
        episodes.append(await shell_runs.benign(piece.suite, task, piece.contestant))
        for id in task.attacks:
            attack = corpus().attack_by_id(id)
            episodes.append(await shell_runs.attacked(piece.suite, task, attack, piece.contestant))
    return episodes
