"""Editors, streams and readers of events that flood, or are many: a slice in a turn of the loop.

Counted by a clock that moves a step with each look at it, so that whatever is done fills a slice.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from callgate.core.events import CHAT_DELTA, Event
from callgate.core.ids import ulid
from callgate.core.turns import SLICE_S, Pace, Pieces, PieceSize, fair_turns
from callgate.events.bus import Bus
from callgate.features.editor.peer import EditorPeer
from callgate.features.web.fanout import Fanout, Joined, Kind
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import Request
from callgate.socket.descriptors import Descriptors
from tests.features.web.instances import serving

LIMIT_S = 60.0
MANY = 200


@pytest.fixture
async def slow_clock() -> None:
    turns, clock = fair_turns(), count()
    turns.now = lambda: next(clock) * 2 * SLICE_S


class Passing:
    """How often the loop turned for others, until it is stopped."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1


@asynccontextmanager
async def others() -> AsyncIterator[Passing]:
    passing = Passing()
    task = asyncio.get_running_loop().create_task(passing.run())
    try:
        yield passing
    finally:
        task.cancel()


def event(number: int, session: str = "s", type: str = CHAT_DELTA) -> Event:
    payload = {"n": number}
    return Event(id=ulid(), timestamp=0.0, session_id=session, type=type, actor="system", payload=payload)


class Editor:
    """A peer over two real pipes, and what it was told."""

    def __init__(self, enough: int) -> None:
        self.notes: list[Any] = []
        self.answered: list[str] = []
        self.enough = enough
        self.done = asyncio.Event()
        self.read, self.to_peer = os.pipe()
        self.from_peer, write = os.pipe()
        self.descriptors = Descriptors(self.read, write)
        self.peer = EditorPeer(self.descriptors.write, self.answer, self.note)

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        self.answered.append(method)
        self._look()

    def note(self, method: str, params: Any) -> None:
        self.notes.append(params)
        self._look()

    def _look(self) -> None:
        if len(self.notes) + len(self.answered) == self.enough:
            self.done.set()


@pytest.mark.usefixtures("slow_clock")
async def test_an_editor_that_floods_with_notifications_has_a_piece_taken_in_a_turn() -> None:
    editor = Editor(MANY)
    await editor.descriptors.open(editor.peer, lambda: None)
    line = jsonrpc.notification("session/cancel", {"sessionId": "x" * 200})
    os.write(editor.to_peer, line * MANY)
    async with others() as passing:
        await asyncio.wait_for(editor.done.wait(), LIMIT_S)
    editor.descriptors.close()
    assert passing.turns >= len(line) * MANY // PieceSize.MOST + MANY // 2


@pytest.mark.usefixtures("slow_clock")
async def test_of_many_requests_of_an_editor_a_few_begin_in_a_turn() -> None:
    editor = Editor(MANY)
    begun: list[int] = []
    async with others() as passing:
        for number in range(MANY):
            editor.peer.feed(jsonrpc.request(number, "session/list", {}))
        while not editor.done.is_set():
            before = len(editor.answered)
            await asyncio.sleep(0)
            begun.append(len(editor.answered) - before)
        assert passing.turns >= MANY // 10
    assert max(begun) <= 10
    for each in (editor.read, editor.to_peer, editor.from_peer):
        os.close(each)


async def test_what_an_editor_sends_before_it_closes_its_end_is_all_taken() -> None:
    editor, ended = Editor(10_000), asyncio.Event()
    await editor.descriptors.open(editor.peer, ended.set)
    data = b"".join(jsonrpc.notification("session/cancel", {"sessionId": f"{number}"}) for number in range(10_000))

    def write() -> None:
        with open(editor.to_peer, "wb") as pipe:
            pipe.write(data)

    await asyncio.to_thread(write)
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    await asyncio.wait_for(editor.peer.taken(), LIMIT_S)
    editor.descriptors.close()
    assert [each["sessionId"] for each in editor.notes] == [f"{number}" for number in range(10_000)]


class Client:
    def __init__(self) -> None:
        self.data = b""
        self.frames = 0

    def put(self, data: bytes, count: int = 1) -> None:
        self.data += data
        self.frames += count


@pytest.mark.usefixtures("slow_clock")
async def test_many_clients_are_told_one_after_another_in_turns_and_all_in_one_order(
    tmp_path: Any,
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    async with serving(tmp_path / "home", tmp_path / "ws") as instance:
        fanout = Fanout(instance.runtime)
        await fanout.acquire()
        clients = [Client() for _ in range(MANY)]
        joined = [Joined(Kind.of("a", None, None), each) for each in clients]
        for each in joined:
            fanout.join(each)
        fanout._hear(event(1))
        assert sum(client.frames for client in clients) < MANY // 2
        fanout._hear(event(2))  # while the first is being told
        fanout.quit(joined[-1])
        late = Client()
        fanout.join(Joined(Kind.of("a", None, None), late))
        async with others() as passing:
            while clients[-2].frames < 2:
                await asyncio.sleep(0)
            assert passing.turns >= MANY // 2
        fanout.release()
    assert len({client.data for client in clients[:-1]}) == 1
    assert clients[0].data.index(b'"n":1') < clients[0].data.index(b'"n":2')
    assert clients[-1].frames == late.frames == 0


@pytest.mark.usefixtures("slow_clock")
async def test_a_reader_with_many_events_before_it_lets_others_have_their_turn() -> None:
    bus = Bus()
    with bus.subscribe() as reader:
        for number in range(MANY):
            bus.emit(event(number))
        read = []
        async with others() as passing:
            async for each in reader:
                read.append(each)
                if len(read) == MANY:
                    break
            assert passing.turns >= MANY - 1


async def test_whoever_wants_one_session_is_not_called_for_another() -> None:
    bus = Bus()
    calls: list[str] = []
    stops = [
        bus.listen(lambda event, id=id: calls.append(id), id)  # type: ignore[misc]
        for id in map(str, range(1_000))
    ]
    stops.append(bus.listen(lambda event: calls.append("all")))
    bus.emit(event(0, "7"))
    assert calls == ["all", "7"]
    for stop in stops:
        stop()
    bus.emit(event(0, "7"))
    assert calls == ["all", "7"]


@pytest.mark.usefixtures("slow_clock")
async def test_a_stream_that_floods_is_read_in_turns_and_answered_in_order(tmp_path: Any) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    async with serving(tmp_path / "home", tmp_path / "ws") as instance:
        client = instance.client()
        async with client.stream() as watcher:
            protocol = watcher.socket.protocol
            for number in range(MANY):
                protocol.send_text(json.dumps({"type": "unsubscribe", "id": f"{number}"}).encode())
            async with others() as passing:
                watcher.socket.transport.write(b"".join(protocol.data_to_send()))
                for number in range(MANY):
                    frame = await watcher.until(lambda each: each["type"] == "error")
                    assert frame["id"] == f"{number}"
                assert passing.turns >= MANY


async def test_pieces_come_in_order_and_grow_or_shrink_to_what_fits_a_slice() -> None:
    turns, clock = fair_turns(), [0.0]
    turns.now = lambda: clock[0]
    pieces: list[bytes] = []
    done = asyncio.Event()

    def take(piece: bytes) -> None:
        pieces.append(piece)
        clock[0] += len(piece) * SLICE_S / 1_000  # a thousand bytes fill a slice

    fed = Pieces(take, done.set)
    data = bytes(range(256)) * 80
    fed.feed(data)
    assert fed.waits and len(pieces) == 1
    fed.feed(data)
    await asyncio.wait_for(done.wait(), LIMIT_S)
    assert b"".join(pieces) == data + data
    assert max(map(len, pieces[1:])) <= 1_000
    assert not fed.waits


async def test_a_light_task_never_waits_for_a_turn() -> None:
    turns = fair_turns()
    turns.now = lambda: 0.0
    pace = Pace()
    for _ in range(1_000):
        await pace.step()  # a task that had to wait would not get here without the loop
    turns.now = lambda: 1.0
    step = asyncio.ensure_future(pace.step())
    await asyncio.sleep(0)
    assert not step.done()
    await asyncio.wait_for(step, LIMIT_S)
