"""The last messages of a server: which answers which, without secrets, and never too many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from callgate.redaction.names import MASK
from callgate.sources import logs
from callgate.sources.logs import LoggedMessage, MessageLog
from tests.features.mcp.client.labs import Lab

SECRET = "sk-ant-api03-" + "a1B2c3D4" * 10


def wire(message: dict[str, Any]) -> tuple[Any, bytes]:
    whole = {"jsonrpc": "2.0", **message}
    return mcp_types.jsonrpc_message_adapter.validate_python(whole), json.dumps(whole).encode()


def of_calls(messages: list[LoggedMessage]) -> list[LoggedMessage]:
    return [each for each in messages if each.method == "tools/call"]


@pytest.mark.parametrize("arguments", [(), ("--modern",)])
async def test_requests_and_answers_of_a_process_are_read_without_secrets(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    async with Lab(tmp_path, *arguments) as lab:
        assert (await lab.call("echo", text=f"hello {SECRET}")).ok
        await lab.call("error")
        request, answer, _, failed = of_calls(lab.server.messages.reader()())
    assert [(each.direction, each.kind) for each in (request, answer, failed)] == [
        ("sent", "request"),
        ("received", "answer"),
        ("received", "error"),
    ]
    assert request.duration_ms is None and answer.duration_ms is not None and answer.at >= request.at
    assert json.loads(request.text or "")["params"]["name"] == "echo"
    assert json.loads(answer.text or "")["result"]["content"][0]["text"].startswith("hello ")
    assert SECRET not in f"{request.text}{answer.text}"


async def test_what_a_server_asks_of_us_is_answered_by_what_we_send(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        assert (await lab.call("roots")).ok
        found = [each for each in lab.server.messages.reader()() if each.method == "roots/list"]
    assert [(each.direction, each.kind) for each in found] == [("received", "request"), ("sent", "answer")]
    assert found[1].duration_ms is not None


def test_the_same_id_on_two_connections_is_two_requests() -> None:
    log = MessageLog()
    one, other = log.connection(), log.connection()
    one.add("sent", *wire({"id": 1, "method": "a"}))
    other.add("sent", *wire({"id": 1, "method": "b"}))
    other.add("received", *wire({"id": 1, "result": {}}))
    one.add("received", *wire({"id": 1, "result": {}}))
    one.add("received", *wire({"id": 1, "result": {}}))  # nobody asked
    assert [(each.connection, each.method) for each in log.reader()()] == [
        (1, "a"),
        (2, "b"),
        (2, "b"),
        (1, "a"),
        (1, None),
    ]


def test_a_flood_leaves_the_last_messages_and_no_more_bytes_than_allowed() -> None:
    log = MessageLog()
    connection = log.connection()
    for number in range(3 * logs.MOST):
        connection.add("received", *wire({"id": f"{number:>300}", "method": "m" * 999, "params": {"n": number}}))
    found = log.reader()()
    assert (len(found), found[-1].number) == (logs.MOST, 3 * logs.MOST)
    assert max(len(each.method or "") for each in found) == logs.LONGEST_NAME
    assert not connection._open, "ids that are too long are not remembered"
    for _ in range(30):
        connection.add("received", *wire({"method": "x", "params": {"text": "y" * 100_000}}))
    found = log.reader()()
    assert len(found) == logs.MOST_BYTES // found[-1].size
    assert log._bytes <= logs.MOST_BYTES


def test_of_a_message_that_is_too_large_the_size_stays() -> None:
    log = MessageLog()
    log.connection().add("received", *wire({"method": "x", "params": {"text": "y" * logs.LARGEST_MESSAGE}}))
    (found,) = log.reader()()
    assert found.text is None and found.size > logs.LARGEST_MESSAGE


def test_what_the_server_was_given_in_secret_and_what_a_name_gives_away_is_hidden() -> None:
    log = MessageLog(lambda text: text.replace('pass"word', "[hidden]"))
    connection = log.connection()
    connection.add(
        "sent", *wire({"id": 1, "method": 'pass"word', "params": {"text": 'pass"word', "password": "changeme"}})
    )
    (found,) = log.reader()()
    assert found.method == "[hidden]"
    assert json.loads(found.text or "")["params"] == {"text": "[hidden]", "password": MASK}
