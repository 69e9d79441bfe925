"""Who floods takes turns with the others, a slice at a time: counted, never timed."""

from __future__ import annotations

import asyncio
import os

from callgate.core.commands import Stream
from callgate.core.events import OUTPUT_DELTA
from callgate.core.turns import SLICE_S, Turns
from callgate.dispatch.tool_output import OutputRedactor
from callgate.sandbox.processes.outputs import OutputPipes

LIMIT_S = 60.0


class Clock:
    """Moves on only when somebody works."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_of_many_who_flood_one_has_a_slice_in_each_turn_of_the_loop() -> None:
    turns = Turns(asyncio.get_running_loop(), Clock())
    done: list[str] = []

    def work(name: str) -> None:
        done.append(name)
        turns.wait(lambda: work(name))

    for name in "abc":
        turns.wait(lambda name=name: work(name))  # type: ignore[misc]
    counts = []
    for _ in range(9):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert counts == list(range(1, 10))
    assert "".join(done) == "abcabcabc"


async def test_work_that_fails_takes_no_turn_from_the_others() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    turns, done = Turns(loop, Clock()), asyncio.Event()
    turns.wait(lambda: 1 // 0)  # type: ignore[arg-type]
    turns.wait(done.set)
    await asyncio.wait_for(done.wait(), LIMIT_S)


class Loop:
    """Says when something is called, and calls nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call_soon(self, work: object) -> None:
        self.calls.append("soon")

    def call_later(self, delay: float, work: object) -> None:
        self.calls.append("later")


def test_while_somebody_light_is_served_the_loop_rests_between_slices() -> None:
    loop, clock = Loop(), Clock()
    turns = Turns(loop, clock)  # type: ignore[arg-type]
    turns.wait(lambda: None)
    turns = Turns(loop, clock)  # type: ignore[arg-type]
    turns.note_light()
    turns.wait(lambda: None)
    assert loop.calls == ["soon", "later"]


async def test_a_pipe_is_read_in_pieces_that_its_reader_can_take_within_a_slice() -> None:
    clock, ended = Clock(), asyncio.Event()
    read, write = os.pipe()
    os.set_blocking(read, False)
    pieces: list[int] = []

    def slow(stream: Stream, data: bytes) -> None:
        pieces.append(len(data))
        clock.now += len(data) * SLICE_S / 1_000  # a thousand bytes fill a slice

    OutputPipes({read: "stdout"}, slow, ended.set, Turns(asyncio.get_running_loop(), clock))
    os.write(write, b"x" * 60_000)
    os.close(write)
    turns = 0
    while not ended.is_set():
        await asyncio.sleep(0)
        turns += 1
    assert sum(pieces) == 60_000
    assert max(pieces[1:]) <= 1_000  # all but the first, by which it learnt
    assert turns >= len(pieces)


async def test_a_pipe_whose_reader_is_quick_is_read_in_large_pieces() -> None:
    ended = asyncio.Event()
    read, write = os.pipe()
    os.set_blocking(read, False)
    pieces: list[int] = []
    turns = Turns(asyncio.get_running_loop(), Clock())
    OutputPipes({read: "stdout"}, lambda _, data: pieces.append(len(data)), ended.set, turns)
    os.write(write, b"x" * 60_000)
    os.close(write)
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    assert sum(pieces) == 60_000 and len(pieces) <= 5


async def test_what_is_in_a_pipe_when_it_is_cut_is_handed_on() -> None:
    clock, ended = Clock(), asyncio.Event()
    read, write = os.pipe()
    os.set_blocking(read, False)
    pieces: list[int] = []

    def slow(stream: Stream, data: bytes) -> None:
        pieces.append(len(data))
        clock.now += len(data) * SLICE_S / 1_000

    pipes = OutputPipes({read: "stdout"}, slow, ended.set, Turns(asyncio.get_running_loop(), clock))
    os.write(write, b"x" * 60_000)
    while not pieces:
        await asyncio.sleep(0)
    pipes.cut()  # its writer holds it open, and would go on
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    assert sum(pieces) == 60_000
    assert len(pipes) == 0
    os.close(write)


def test_a_long_line_without_end_is_held_back_as_cheaply_as_a_short_one() -> None:
    output = OutputRedactor()
    line = "a" * 200_000
    (shown,) = output.of(OUTPUT_DELTA, {"stream": "stdout", "text": f"{line}\n{line} b"})
    assert shown["text"] == f"{line}\n{line} "
    assert list(output.flush()) == [{"stream": "stdout", "text": "b"}]
