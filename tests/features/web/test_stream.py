"""The stream: each event once and in order, whenever one subscribes; nobody harms another."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from callgate.core.budgets import PruneEvents
from callgate.core.events import CHAT_DELTA, EVENTS_PRUNED, Event
from callgate.core.ids import ulid
from callgate.core.sessions import Session
from callgate.features.web import server
from callgate.features.web.fanout import Fanout, Joined, Kind
from callgate.features.web.server import ConnectionLimits, HttpServer
from callgate.features.web.websocket import Subscription
from callgate.storage.sqlite.store import SqliteStore
from tests.features.web.instances import Client, Instance, Watcher, serving, watching
from tests.kernel.contract.stores import append, new_session


def emit(instance: Instance, session: Session, n: int, type: str = "test.counted", **payload: Any) -> None:
    instance.runtime.sessions.conversations.emit(session, type, "system", {"n": n, **payload}, keep=type != CHAT_DELTA)


async def counted(watcher: Watcher, last: dict[str, int], id: str = "s") -> list[Any]:
    """The frames of a subscription up to the last count of each session."""
    missing, frames = dict(last), []
    while missing:
        frame = await watcher.until(lambda each: each["type"] == "event" and each["id"] == id)
        frames.append(frame)
        if missing.get(frame["session"]) == frame["event"]["payload"].get("n"):
            del missing[frame["session"]]
    return frames


async def test_what_was_missed_comes_first_and_then_what_happens(instance: Instance) -> None:
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    for n in range(5):
        emit(instance, session, n)
    await instance.runtime.sessions.conversations.flush()
    async with client.stream() as watcher:
        ack = await watcher.subscribe(session=id, since=2)
        assert ack == {"type": "subscribe_ack", "id": "s", "last": 6}
        emit(instance, session, 5)
        frames = await counted(watcher, {id: 5})
        assert [(each["seq"], each["event"]["payload"]["n"]) for each in frames] == [
            (3, 1),
            (4, 2),
            (5, 3),
            (6, 4),
            (7, 5),
        ]
        assert {each["session"] for each in frames} == {id}
        kept = await client.get(f"/v1/sessions/{id}/events", after=2)
        assert [[each["seq"], each["event"]] for each in frames] == kept["events"]
        later = frames[-1]["cursor"]
        emit(instance, session, 6)
        await counted(watcher, {id: 6})
        await watcher.subscribe("all", since=later)
        assert [each["event"]["payload"]["n"] for each in await counted(watcher, {id: 6}, "all")] == [6]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=4)
async def test_whenever_one_subscribes_each_event_comes_once_and_in_order(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    base = tmp_path_factory.mktemp("burst")
    (base / "home").mkdir(mode=0o700)
    async with serving(base / "home", base / "ws") as instance:
        client = instance.client()
        ids = [await client.session() for _ in range(3)]
        sessions = [instance.sessions.find(id) for id in ids]
        start = (await (await instance.runtime.sessions.store()).behind()).cursor
        counts = dict.fromkeys(ids, -1)

        async def burst() -> None:
            for _ in range(chance.randrange(300, 900)):
                session = chance.choice(sessions)
                assert session is not None
                counts[session.id] += 1
                emit(instance, session, counts[session.id])
                if chance.random() < 0.05:
                    await asyncio.sleep(chance.random() * 0.01)
            for session in sessions:
                assert session is not None
                counts[session.id] += 1
                emit(instance, session, counts[session.id])

        async def watch(delay_s: float, which: str | None) -> list[Any]:
            await asyncio.sleep(delay_s)
            since = {"since": start} if which is None else {"since": 1}
            async with client.stream() as watcher:
                await watcher.send(type="subscribe", id="s", session=which, **since)
                await watcher.until(lambda frame: frame["type"] == "subscribe_ack")
                await bursting
                return await counted(watcher, {which: counts[which]} if which else dict(counts))

        bursting = asyncio.get_running_loop().create_task(burst())
        watched = [chance.choice([None, *ids]) for _ in range(6)]
        seen = await asyncio.gather(*(watch(chance.random() * 0.15, which) for which in watched))
        for which, frames in zip(watched, seen, strict=True):
            for id in ids if which is None else [which]:
                of_one = [(each["seq"], each["event"]["payload"]["n"]) for each in frames if each["session"] == id]
                assert of_one == [(n + 2, n) for n in range(counts[id] + 1)]


class Collected:
    """A client that keeps what it is sent."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def put(self, data: bytes, count: int = 1) -> None:
        found = [int(each) for each in re.findall(rb'"n":(\d+)', data)]
        assert len(found) == count
        self.counts += found

    async def drained(self) -> None:
        pass


class Meanwhile:
    """A store that is always out of date: before a page is handed over, more was told to others."""

    def __init__(self, store: Any, instance: Instance, session: Session, fanout: Fanout) -> None:
        self._store = store
        self._instance = instance
        self._session = session
        self._fanout = fanout
        self.said = 0
        self.left = 4

    async def more(self) -> None:
        if self.left:
            self.left -= 1
            for _ in range(2):
                emit(self._instance, self._session, self.said)
                self.said += 1
        await self.told()

    async def told(self) -> None:
        async with asyncio.timeout(60):
            while self._fanout.last_sent(self._session.id) < self.said + 1:
                await self._fanout.moved()

    async def read_events(self, *given: Any) -> Any:
        page = await self._store.read_events(*given)
        await self.more()
        return page

    async def read_all(self, *given: Any) -> Any:
        page = await self._store.read_all(*given)
        await self.more()
        return page


@pytest.mark.parametrize("of_all", [True, False])
async def test_what_is_told_to_others_while_one_reads_is_neither_lost_nor_doubled(
    instance: Instance, of_all: bool
) -> None:
    id = await instance.client().session()
    session = instance.sessions.find(id)
    serving_ = instance.server._serving
    assert session is not None and serving_ is not None
    fanout = serving_.context.fanout
    store = await fanout.acquire()
    began = fanout.cursor
    late = Meanwhile(store, instance, session, fanout)
    await late.more()
    client = Collected()
    subscription = Subscription(Kind.of("s", None if of_all else id, None), client, fanout, late)  # type: ignore[arg-type]
    await (subscription.follow_all(began) if of_all else subscription.follow_session(id, 1, 3))
    late.left = 1
    await late.more()
    subscription.quit()
    fanout.release()
    assert (late.left, client.counts) == (0, list(range(late.said)))


async def test_one_who_has_read_further_than_was_told_hears_nothing_twice(instance: Instance) -> None:
    id = await instance.client().session()
    session = instance.sessions.find(id)
    serving_ = instance.server._serving
    assert session is not None and serving_ is not None
    fanout = serving_.context.fanout
    store = await fanout.acquire()
    late = Meanwhile(store, instance, session, fanout)
    emit(instance, session, 0)
    emit(instance, session, 1)
    client = Collected()
    fanout.join(Joined(Kind.of("s", id, None), client, seq=2))  # it has seen 0, numbered 2
    emit(instance, session, 2)
    late.said = 3
    await late.told()
    emit(instance, session, 3)
    late.said = 4
    await late.told()
    fanout.release()
    assert client.counts == [1, 2, 3]


async def test_a_snapshot_says_what_is_open_at_the_place_where_the_events_begin(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = asyncio.get_running_loop().create_task(client.call("put", session, what="a"))
        question = (await watcher.event("tool.confirmation_requested"))["payload"]["confirmation_request_id"]
        for id, which in (("one", {"session": session}), ("all", {})):
            await watcher.subscribe(id, snapshot=True, **which)
            snapshot = await watcher.until(lambda frame: frame["type"] == "snapshot")
            assert [each["id"] for each in snapshot["confirmations"]] == [question]
            shown = [(each["tool"], each["state"], each["summary"]) for each in snapshot["calls"]]
            assert shown == [("put", "asked", '{"what":"a"}')]
        await client.post(f"/v1/confirmations/{question}", decision="deny")
        await running


async def test_a_preset_and_types_choose(instance: Instance) -> None:
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    async with client.stream() as watcher:
        await watcher.subscribe("chat", session=id, preset="chat")
        await watcher.subscribe("some", session=id, types=["test.two", "output.chat"])
        await watcher.subscribe("both", session=id, preset="chat", types=["test.two", "output.chat"])
        for type in ("test.one", "test.two", "output.chat"):
            emit(instance, session, 0, type)
        emit(instance, session, 1, "turn.notice")
        frames = []
        while len(frames) < 5:
            frames.append(await watcher.until(lambda frame: frame["type"] == "event"))
        assert sorted((each["id"], each["event"]["type"]) for each in frames) == [
            ("both", "output.chat"),
            ("chat", "output.chat"),
            ("chat", "turn.notice"),
            ("some", "output.chat"),
            ("some", "test.two"),
        ]


async def test_what_is_not_kept_stands_between_the_events_around_it(instance: Instance) -> None:
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    async with client.stream() as watcher:
        await watcher.subscribe(session=id)
        types = ["turn.started", CHAT_DELTA, CHAT_DELTA, "output.chat", CHAT_DELTA, "turn.completed"]
        for n, type in enumerate(types):
            emit(instance, session, n, type)
            if n == 4:
                await asyncio.sleep(0)
        frames = await counted(watcher, {id: 5})
        assert [(each["event"]["type"], each["seq"]) for each in frames] == [
            ("turn.started", 2),
            (CHAT_DELTA, None),
            (CHAT_DELTA, None),
            ("output.chat", 3),
            (CHAT_DELTA, None),
            ("turn.completed", 4),
        ]
        await asyncio.sleep(0)
        emit(instance, session, 6, CHAT_DELTA)
        assert (await counted(watcher, {id: 6}))[-1]["seq"] is None


async def test_too_much_to_replay_is_refused(instance: Instance) -> None:
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    start = (await (await instance.runtime.sessions.store()).behind()).cursor
    for n in range(10_001):
        emit(instance, session, n)
    await instance.runtime.sessions.conversations.flush()
    async with client.stream() as watcher:
        for which in ({"session": id, "since": 1}, {"since": start}):
            error = await watcher.subscribe(**which)
            assert (error["type"], error["reason"]) == ("error", "replay_too_large")
        assert (await watcher.subscribe(session=id, since=2))["last"] == 10_002
        frames = await counted(watcher, {id: 10_000})
        assert [each["seq"] for each in frames] == list(range(3, 10_003))


@pytest.mark.spec("T31")
async def test_an_attach_token_opens_one_session_once_and_knows_of_no_other(instance: Instance) -> None:
    client = instance.client()
    mine, theirs = await client.session(), await client.session()
    token = (await client.get(f"/v1/sessions/{mine}"))["attach_token"]
    async with watching(instance.port, f"?attach={token}") as watcher:
        errors = [await watcher.subscribe(session=which) for which in (theirs, "sess_01M7HKPPB28G8YWK64CR00000A", "x")]
        assert [(each["type"], each["reason"], each["message"]) for each in errors] == [
            ("error", "not_found", errors[0]["message"])
        ] * 3
        assert (await watcher.subscribe(session=mine))["type"] == "subscribe_ack"
        assert (await watcher.subscribe("own"))["type"] == "subscribe_ack"
        await client.call("show", theirs, what="a")
        await client.call("show", mine, what="b")
        assert (await watcher.until(lambda frame: frame["type"] == "event"))["session"] == mine
        for which in (theirs, "nobody"):
            await watcher.send(type="cancel", session=which)
            assert await watcher.until(lambda frame: frame["type"] == "cancel_ack") == {
                "type": "cancel_ack",
                "session": which,
                "cancelled": False,
            }
        with pytest.raises(InvalidStatus):
            async with watching(instance.port, f"?attach={token}"):
                pass


@pytest.mark.spec("T31")
async def test_ids_of_one_session_mean_nothing_in_another(instance: Instance) -> None:
    client = instance.client()
    unknown = await client.http.get("/v1/sessions/nobody/messages")
    paths = [
        "/v1/sessions/nobody",
        "/v1/sessions/nobody/events",
        "/v1/calls/nobody",
        "/v1/sessions/%00/messages",
        "/v1/sessions/%F0%9F%98%80",
    ]
    assert {(await client.http.get(path)).status_code for path in paths} == {404} == {unknown.status_code}
    mine, theirs = await client.session(), await client.session()
    assert (await client.http.delete(f"/v1/sessions/{theirs}/turns/turn_x")).status_code == 404
    assert (await client.get("/v1/calls", session=mine))["calls"] == []
    await client.call("show", theirs)
    assert (await client.get("/v1/calls", session=mine))["calls"] == []


async def test_a_client_that_does_not_read_is_closed_and_the_others_do_not_notice(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GIVE_UP_S", 60.0)
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    slow = await stuck(instance)
    slow.setblocking(False)
    async with client.stream() as watcher:
        await watcher.subscribe(session=id)
        for n in range(3_000):
            emit(instance, session, n, text="x" * 4_000)
            if n % 50 == 49:
                frames = await counted(watcher, {id: n})
                assert frames[-1]["event"]["payload"]["n"] == n
        assert frames[-1]["seq"] == 3_001
    await told_that_it_is_too_slow(slow)


async def test_a_client_that_does_not_read_is_closed_before_few_large_frames_fill_the_memory(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_BYTES", 2**20)
    monkeypatch.setattr(server, "GIVE_UP_S", 60.0)
    client = instance.client()
    id = await client.session()
    session = instance.sessions.find(id)
    assert session is not None
    slow = await stuck(instance)
    async with client.stream() as watcher:
        await watcher.subscribe(session=id)
        for n in range(200):
            emit(instance, session, n, text="x" * 100_000)
            if n % 5 == 4:
                await counted(watcher, {id: n})
    await told_that_it_is_too_slow(slow)


async def stuck(instance: Instance) -> socket.socket:
    """A client that subscribes to everything and reads nothing more."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    await loop.sock_connect(made, ("127.0.0.1", instance.port))
    head = (
        f"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1:{instance.port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"authorization: Bearer {instance.token}\r\n\r\n"
    )
    await loop.sock_sendall(made, head.encode())
    assert b" 101 " in await loop.sock_recv(made, 4096)
    await loop.sock_sendall(made, masked(b'{"type":"subscribe","id":"s"}'))
    assert b"subscribe_ack" in await loop.sock_recv(made, 4096)
    return made


async def told_that_it_is_too_slow(slow: socket.socket) -> None:
    """Read on, to the frame that closes; nothing comes behind it."""
    closes = b"\x88\x11" + struct.pack("!H", 1008) + b"client_too_slow"
    received = b""
    with slow:
        async with asyncio.timeout(60):
            while not received.endswith(closes):
                data = await asyncio.get_running_loop().sock_recv(slow, 1 << 20)
                assert data, f"it ends with {received[-40:]!r}"
                received = received[-len(closes) :] + data


def masked(payload: bytes, first: int = 0x81) -> bytes:
    key = os.urandom(4)
    size = len(payload)
    length = (
        bytes([0x80 | size])
        if size < 126
        else b"\xfe" + struct.pack("!H", size)
        if size < 65536
        else b"\xff" + struct.pack("!Q", size)
    )
    return bytes([first]) + length + key + bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))


@pytest.mark.spec("T41")
@pytest.mark.parametrize(("extra", "is_read"), [(0, True), (1, False), (2, False)])
@pytest.mark.parametrize("parts", [1, 3])
async def test_a_message_may_be_a_mebibyte_and_not_a_byte_more(
    instance: Instance, extra: int, is_read: bool, parts: int
) -> None:
    frame = json.dumps({"type": "pong", "x": ""})
    text = frame[:-2] + "y" * (1024 * 1024 + extra - len(frame)) + frame[-2:]
    async with instance.client().stream() as watcher:
        step = -(-len(text) // parts)
        await watcher.socket.send(text if parts == 1 else [text[at : at + step] for at in range(0, len(text), step)])
        if is_read:
            assert (await watcher.read())["type"] == "error"
            assert (await watcher.subscribe())["type"] == "subscribe_ack"
        else:
            assert (await watcher.closed())[0] == 1009


@pytest.mark.spec("T41")
async def test_what_is_packed_is_not_unpacked(instance: Instance) -> None:
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (packing.compress(b" " * 100_000_000) + packing.flush(zlib.Z_SYNC_FLUSH))[:-4]
    where = f"ws://127.0.0.1:{instance.port}/v1/stream"
    async with connect(where, additional_headers=instance.client().headers, compression="deflate", proxy=None) as made:
        assert "Sec-WebSocket-Extensions" not in made.response.headers
        made.transport.write(masked(bomb, 0xC1))
        await made.wait_closed()
        assert made.close_code == 1002


async def test_what_means_nothing_is_told_and_the_connection_goes_on(instance: Instance) -> None:
    nonsense = [
        "",
        "1",
        "[]",
        "{",
        "{}",
        '{"type":"x"}',
        '{"type":"subscribe"}',
        '{"type":"subscribe","id":""}',
        '{"type":"subscribe","id":"a","more":1}',
        '{"type":"subscribe","id":"a","id":"b"}',
        '{"type":"subscribe","id":"a","since":-1}',
        '{"type":"subscribe","id":"a","since":"nonsense"}',
        '{"type":"subscribe","id":"a","since":3}',
        '{"type":"subscribe","id":"a","session":"nobody"}',
        '{"type":"unsubscribe","id":"a"}',
        "[" * 10_000,
    ]
    async with instance.client().stream() as watcher:
        for said in nonsense:
            await watcher.socket.send(said)
            error = await watcher.read()
            assert error["type"] == "error" and {"class", "message", "reason"} <= set(error), said
        assert (await watcher.subscribe())["type"] == "subscribe_ack"


async def test_bytes_are_no_frame(instance: Instance) -> None:
    async with instance.client().stream() as watcher:
        await watcher.socket.send(b'{"type":"pong"}')
        assert await watcher.closed() == (1003, "text_only")


async def test_who_stays_silent_is_let_go_and_who_answers_stays(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", ping_s=0.05) as instance:
        client = instance.client()
        async with client.stream() as silent, client.stream() as polite:
            closing = asyncio.get_running_loop().create_task(silent.closed())
            pings = 0
            while not closing.done() or pings < 8:
                frame = json.loads(await polite.socket.recv())
                assert frame == {"type": "ping"}
                pings += 1
                await polite.send(type="pong")
            assert await closing == (4408, "silent")
            assert (await polite.subscribe())["type"] == "subscribe_ack"


async def test_a_stream_and_its_confirmer_outlive_the_limit_on_a_request_body(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(HttpServer, limits=ConnectionLimits(body_s=1.0))
    monkeypatch.setattr("callgate.features.web.application.HttpServer", limited)
    async with serving(home, tmp_path / "ws") as instance:
        client = instance.client()
        async with client.stream() as watcher:
            await watcher.subscribe(confirmer=True)
            reader, writer = await asyncio.open_connection("127.0.0.1", instance.port)
            authorization = f"Authorization: {client.headers['authorization']}\r\n"
            head = f"POST /v1/calls HTTP/1.1\r\nHost: 127.0.0.1:{instance.port}\r\n{authorization}"
            writer.write(head.encode() + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
            async with asyncio.timeout(60):
                assert await reader.read() == b""  # its limit began after that of the stream
            writer.close()
            calling = asyncio.get_running_loop().create_task(client.call("put", what="late"))
            asked = await watcher.event("tool.confirmation_requested")
            id = asked["payload"]["confirmation_request_id"]
            await client.post(f"/v1/confirmations/{id}", decision="allow")
            assert (await calling)["ok"]


async def test_an_event_that_another_process_wrote_is_told_too(instance: Instance, home: Path) -> None:
    from callgate.core.ops import Append, NewSession
    from callgate.storage.sqlite.store import SqliteStore

    client = instance.client()
    async with client.stream() as watcher:
        await watcher.subscribe()
        other = await SqliteStore.open(str(home))
        event = Event(
            id=ulid(), timestamp=1.0, session_id="sess_x", type="test.counted", actor="system", payload={"n": 1}
        )
        await other.commit(
            NewSession(session="sess_x", workspace="/w", at=1.0), Append(session="sess_x", events=(event,))
        )
        await other.close()
        (frame,) = await counted(watcher, {"sess_x": 1})
        assert (frame["seq"], frame["event"]["id"]) == (1, event.id)


async def test_many_may_come_and_go_and_nothing_is_left_behind(instance: Instance) -> None:
    client: Client = instance.client()
    for _ in range(20):
        async with client.stream() as watcher:
            await watcher.subscribe(confirmer=True)
    serving_ = instance.server._serving
    assert serving_ is not None
    fanout = serving_.context.fanout
    async with asyncio.timeout(60):
        while fanout._reading is not None:
            await asyncio.sleep(0)
    assert (fanout._kinds, fanout._users, fanout._ahead) == ({}, 0, {})
    assert not await instance.wired.dispatcher.authority.confirmations.can_ask(Session(workspace="/"))
    assert serving_.context.access._rotated == []


async def test_whoever_resumes_where_events_were_pruned_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    async with await SqliteStore.open(str(home)) as store:
        session = await new_session(store)
        begin = (await store.behind()).cursor
        events = await append(store, session, *"abcd")
        await store.commit(PruneEvents(before=events[3].timestamp))
    async with serving(home, tmp_path / "ws") as instance, instance.client().stream() as watcher:
        assert "pruned" not in await watcher.subscribe(session=session, since=1)
        frames = [await watcher.until(lambda frame: frame["type"] == "event") for _ in range(2)]
        assert [(each["seq"], each["event"]["type"]) for each in frames] == [(3, EVENTS_PRUNED), (4, "d")]
        assert frames[0]["event"]["payload"] == {"upto": 3}
        ack = await watcher.subscribe("all", since=begin)
        assert ack["pruned"] is True
        last = await watcher.until(lambda frame: frame["type"] == "event" and frame["id"] == "all")
        assert last["event"]["type"] == "d"
