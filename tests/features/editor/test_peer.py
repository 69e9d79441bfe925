"""A JSON-RPC connection: the order of what is said, who answers what, and every way it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callgate.features.editor import peer as peers
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import Request, RpcError


class Wire:
    """The other end: what was written, and what is said to the peer."""

    def __init__(self, answer: Callable[[str, Any, Request], Awaitable[Any]] | None = None, **bounds: Any) -> None:
        self.written = b""
        self.noted: list[tuple[str, Any]] = []
        self.peer = EditorPeer(self._write, answer or nobody, lambda *said: self.noted.append(said), **bounds)

    def _write(self, data: bytes) -> None:
        self.written += data

    @property
    def lines(self) -> list[Any]:
        return [json.loads(each) for each in self.written.splitlines()]

    def ask(self, id: Any, method: str, params: Any = None) -> None:
        self.peer.feed(jsonrpc.request(id, method, params))

    def tell(self, method: str, params: Any = None) -> None:
        self.peer.feed(jsonrpc.notification(method, params))

    def say(self, **members: Any) -> None:
        self.peer.feed(json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")


async def nobody(method: str, params: Any, request: Request) -> Any:
    raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"Method not found: {jsonrpc.shown(method)}")


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def result(id: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def ends(wire: Wire) -> list[tuple[Any, int | None]]:
    """Each answer that was written: its id and, if it failed, the code."""
    return [(each["id"], each.get("error", {}).get("code")) for each in wire.lines if "method" not in each]


@pytest.mark.spec("S2-50")
async def test_updates_that_were_told_before_an_answer_come_before_it() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        for n in range(3):
            wire.peer.notify("update", {"n": n})
            await asyncio.sleep(0)
        return {"stopReason": "end_turn"}

    wire = Wire(answer)
    wire.ask(1, "prompt")
    await turns()
    assert [each.get("params", each.get("result")) for each in wire.lines] == [
        {"n": 0},
        {"n": 1},
        {"n": 2},
        {"stopReason": "end_turn"},
    ]


async def test_what_is_said_in_one_turn_of_the_loop_is_written_at_once() -> None:
    wrote: list[bytes] = []
    peer = EditorPeer(wrote.append, nobody, lambda *_: None)
    peer.notify("a", None)
    peer.notify("b", None)
    assert wrote == []
    await turns(1)
    assert [each.count(b"\n") for each in wrote] == [2]


async def test_messages_are_taken_in_their_order() -> None:
    heard: list[str] = []

    async def answer(method: str, params: Any, request: Request) -> Any:
        heard.append(method)
        await asyncio.sleep(0)

    peer = EditorPeer(lambda _: None, answer, lambda method, _: heard.append(method))
    peer.feed(
        b"".join(
            [
                jsonrpc.request(1, "prompt", None),
                jsonrpc.notification("cancel", None),
                jsonrpc.request(2, "prompt two", None),
                jsonrpc.notification("cancel two", None),
            ]
        )
    )
    peer.feed(jsonrpc.notification("later", None))
    await turns()
    assert heard == ["prompt", "cancel", "prompt two", "cancel two", "later"]


async def test_a_flood_of_messages_is_not_read_faster_than_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST_RECEIVED", 10)
    wire, caught_up = Wire(), asyncio.Event()
    pair = jsonrpc.request(1, "a", None) + jsonrpc.notification("b", None)
    wire.peer.feed(pair * 5)
    assert not wire.peer.is_behind(caught_up.set)
    wire.peer.feed(pair * 20)
    assert wire.peer.is_behind(caught_up.set)
    async with asyncio.timeout(60):
        await caught_up.wait()
    assert (len(wire.noted), wire.peer.is_behind(caught_up.set)) == (25, False)


async def test_an_answer_of_nothing_is_an_empty_object() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        return None

    wire = Wire(answer)
    wire.ask("x", "logout")
    await turns()
    assert wire.lines == [result("x", {})]


async def test_a_slow_request_holds_up_no_other() -> None:
    release = asyncio.Event()

    async def answer(method: str, params: Any, request: Request) -> Any:
        if method == "slow":
            await release.wait()
        return {"was": method}

    wire = Wire(answer)
    wire.ask(1, "slow")
    wire.ask(2, "fast")
    await turns()
    assert wire.lines == [result(2, {"was": "fast"})]
    release.set()
    await turns()
    assert wire.lines == [result(2, {"was": "fast"}), result(1, {"was": "slow"})]


@pytest.mark.spec("S2-78")
async def test_an_unknown_method_is_an_error_and_an_unknown_notification_none() -> None:
    wire = Wire()
    wire.tell("_unheard/of")
    wire.ask(1, "\x1b[2J" + "x" * 5_000)
    await turns()
    assert ends(wire) == [(1, jsonrpc.METHOD_NOT_FOUND)]
    assert len(wire.written) < 1_024
    assert b"\x1b" not in wire.written


async def test_a_request_id_in_flight_is_refused_and_the_first_goes_on() -> None:
    release = asyncio.Event()

    async def answer(method: str, params: Any, request: Request) -> Any:
        await release.wait()
        return {"was": method}

    wire = Wire(answer)
    wire.ask(1, "first")
    wire.ask(1, "second")
    wire.ask("1", "another id")
    await turns()
    assert ends(wire) == [(1, jsonrpc.INVALID_REQUEST)]
    release.set()
    await turns()
    assert wire.lines[1:] == [result(1, {"was": "first"}), result("1", {"was": "another id"})]
    wire.ask(1, "again")
    await turns()
    assert wire.lines[3:] == [result(1, {"was": "again"})]


async def test_too_many_requests_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_REQUESTS", 2)

    async def answer(method: str, params: Any, request: Request) -> Any:
        await asyncio.Event().wait()

    wire = Wire(answer)
    for id in range(3):
        wire.ask(id, "slow")
    await turns()
    assert ends(wire) == [(2, jsonrpc.INVALID_REQUEST)]
    await wire.peer.close()


async def test_a_defect_is_an_internal_error_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        raise ValueError("the secret")

    wire = Wire(answer)
    wire.ask(1, "a")
    await turns()
    assert ends(wire) == [(1, jsonrpc.INTERNAL_ERROR)]
    assert b"secret" not in wire.written
    assert b"Traceback" not in wire.written


async def test_an_answer_that_cannot_be_written_is_an_internal_error() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        if method == "bad data":
            raise RpcError(-32000, "no", data=object())
        return object()

    wire = Wire(answer)
    wire.ask(1, "a")
    wire.ask(2, "bad data")
    await turns()
    assert ends(wire) == [(1, jsonrpc.INTERNAL_ERROR), (2, -32000)]


async def test_a_cancelled_request_is_answered_so_unless_it_answers_itself() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if method == "itself":
                return {"partial": True}
            raise

    wire = Wire(answer)
    wire.ask(1, "plain")
    wire.ask("2", "itself")
    wire.ask(3, "other")
    for id in (1, "2", "3", True, None, [3], 99):
        wire.tell("$/cancel_request", {"requestId": id})
    wire.tell("$/cancel_request", [3])
    wire.tell("$/cancel_request")
    await turns()
    assert ends(wire) == [(1, peers.REQUEST_CANCELLED), ("2", None)]
    assert wire.noted == []
    await wire.peer.close()


async def test_only_the_very_id_cancels_a_request() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        await asyncio.Event().wait()

    wire = Wire(answer)
    wire.ask(1, "a")
    for id in (True, 1.0, "1", [1], {"a": 1}, None):
        wire.tell("$/cancel_request", {"requestId": id})
    wire.tell("later")
    await turns()
    assert (ends(wire), wire.noted) == ([], [("later", None)])
    await wire.peer.close()


async def test_a_request_and_its_cancellation_in_the_same_bytes_are_answered() -> None:
    async def answer(method: str, params: Any, request: Request) -> Any:
        await asyncio.Event().wait()

    wire = Wire(answer)
    wire.peer.feed(jsonrpc.request(1, "a", None) + jsonrpc.notification("$/cancel_request", {"requestId": 1}))
    await turns()
    assert ends(wire) == [(1, peers.REQUEST_CANCELLED)]


async def test_lines_that_are_no_messages_are_answered_and_the_next_is_taken() -> None:
    wire = Wire()
    wire.peer.feed(b'{\n[1,2]\n5\n{"jsonrpc":"2.0","id":4}\n')
    wire.tell("fine", {"a": 1})
    await turns()
    assert ends(wire) == [
        (None, jsonrpc.PARSE_ERROR),
        (None, jsonrpc.INVALID_REQUEST),
        (None, jsonrpc.INVALID_REQUEST),
        (4, jsonrpc.INVALID_REQUEST),
    ]
    assert wire.noted == [("fine", {"a": 1})]


async def test_a_notification_that_fails_ends_nothing() -> None:
    def noted(method: str, params: Any) -> None:
        raise ValueError

    wrote: list[bytes] = []
    peer = EditorPeer(wrote.append, nobody, noted)
    peer.feed(jsonrpc.notification("a", None) + jsonrpc.request(1, "b", None))
    await turns()
    assert len(wrote) == 1


# What we ask


async def test_answers_reach_whoever_asked_in_any_order() -> None:
    wire = Wire()
    first = asyncio.create_task(wire.peer.request("fs/read", {"path": "/a"}))
    second = asyncio.create_task(wire.peer.request("fs/read", {"path": "/b"}))
    await turns()
    one, two = wire.lines
    assert (one["method"], one["params"]) == ("fs/read", {"path": "/a"})
    wire.say(id=two["id"], result={"content": "b"})
    wire.say(id=one["id"], error={"code": -32002, "message": "gone"})
    assert await second == {"content": "b"}
    with pytest.raises(RpcError) as failed:
        await first
    assert failed.value.code == -32002


async def test_answers_to_nothing_asked_are_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "callgate.acp")
    wire = Wire()
    asked = asyncio.create_task(wire.peer.request("a", None))
    await turns()
    (sent,) = wire.lines
    for id in (True, float(sent["id"]), str(sent["id"]), None, 99):
        wire.say(id=id, result="forged")
    assert not asked.done()
    assert len(caplog.records) == 5
    wire.say(id=sent["id"], result="real")
    assert await asked == "real"
    assert wire.lines == [sent]


async def test_a_request_that_nobody_waits_for_is_cancelled_at_the_peer() -> None:
    wire = Wire()
    asked = asyncio.create_task(wire.peer.request("terminal/wait_for_exit", None))
    await turns()
    asked.cancel()
    await turns()
    sent, cancel = wire.lines
    assert cancel == {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": sent["id"]}}
    wire.say(id=sent["id"], error={"code": -32800, "message": "cancelled"})


# The end


async def test_the_end_fails_what_was_asked_and_answers_what_was_under_way() -> None:
    caught: list[type] = []

    async def answer(method: str, params: Any, request: Request) -> Any:
        try:
            await wire.peer.request("permission", None)
        except (PeerGone, asyncio.CancelledError) as error:
            caught.append(type(error))
            with pytest.raises(PeerGone):
                await wire.peer.request("another", None)
            raise

    wire = Wire(answer)
    wire.ask(1, "prompt")
    await turns()
    await wire.peer.close()
    assert len(caught) == 1
    assert [id for id, _ in ends(wire)] == [1]
    wire.ask(2, "late")
    await turns()
    assert [id for id, _ in ends(wire)] == [1]


async def test_a_lost_connection_is_told_to_whoever_waits_and_takes_no_more() -> None:
    wire = Wire()
    asked = asyncio.create_task(wire.peer.request("a", None))
    await turns()
    wire.peer.pause()
    waiting = asyncio.create_task(wire.peer.drained())
    await turns()
    wire.peer.lost()
    for each in (asked, waiting, wire.peer.request("b", None), wire.peer.drained()):
        with pytest.raises(PeerGone):
            await each
    wire.peer.notify("update", None)
    wire.peer.pause()
    await turns()
    assert len(wire.lines) == 1
    assert wire.peer.disconnected.is_set()


# A peer that does not read


async def test_writers_wait_for_a_peer_that_does_not_read() -> None:
    wire = Wire()
    wire.peer.pause()
    wire.peer.notify("a", None)
    waiting = asyncio.create_task(wire.peer.drained())
    await turns()
    assert (waiting.done(), wire.written) == (False, b"")
    wire.peer.resume()
    await waiting
    assert [each["method"] for each in wire.lines] == ["a"]


async def test_a_writer_that_never_lets_the_loop_turn_is_held_up_all_the_same() -> None:
    unread: list[bytes] = []

    def write(data: bytes) -> None:
        unread.append(data)
        peer.pause()

    async def flood() -> None:
        while True:
            peer.notify("a", "x" * 10_000)
            await peer.drained()

    peer = EditorPeer(write, nobody, lambda *_: None)
    flooding = asyncio.create_task(flood())
    await turns()
    assert not flooding.done()
    assert sum(map(len, unread)) < 2 * peers.HIGH
    peer.lost()
    with pytest.raises(PeerGone):
        await flooding


async def test_a_peer_that_leaves_too_much_unread_counts_as_gone() -> None:
    wire = Wire(most_unread=10_000)
    wire.peer.pause()
    for _ in range(20):
        wire.peer.notify("a", "x" * 1_000)
    assert wire.peer.disconnected.is_set()
    assert wire.peer._size == 0


async def test_a_peer_that_reads_nothing_for_too_long_counts_as_gone() -> None:
    wire = Wire(patience=0.001)
    wire.peer.pause()
    async with asyncio.timeout(60):
        await wire.peer.disconnected.wait()


async def test_a_peer_that_reads_again_in_time_is_not_given_up() -> None:
    wire = Wire(patience=0.001)
    wire.peer.pause()
    wire.peer.resume()
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(0.01, passed.set_result, None)
    await passed
    assert not wire.peer.disconnected.is_set()


@pytest.mark.spec("S2-02")
async def test_the_log_names_methods_and_never_what_they_carry(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "callgate.acp")

    async def answer(method: str, params: Any, request: Request) -> Any:
        return {"text": "the answer"}

    wire = Wire(answer)
    wire.ask(1, "session/prompt", {"text": "the secret"})
    wire.tell("session/cancel", {"text": "the secret"})
    await turns()
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "session/prompt" in said
    assert "session/cancel" in said
    assert "the secret" not in said
    assert "the answer" not in said


async def test_a_request_that_is_cancelled_twice_sees_to_its_end_once() -> None:
    ended: list[str] = []

    async def answer(method: str, params: Any, request: Request) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(3)
            ended.append(method)

    wire = Wire(answer)
    wire.ask(1, "prompt")
    await turns(2)
    for _ in range(2):
        wire.tell("$/cancel_request", {"requestId": 1})
        await turns(1)
    await turns()
    assert (ended, ends(wire)) == (["prompt"], [(1, -32800)])
