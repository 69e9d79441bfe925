"""Requests to Google: what is made again and what is not, pages, limits, and what errors never say."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from callgate.core.errors import ToolError, ToolErrorClass
from callgate.redaction.texts import Masked
from callgate_catalogue.google import outputs, requests
from callgate_catalogue.google.oauth import OAuthClient
from callgate_catalogue.google.requests import Connections
from tests.catalogue.google.desk import EVENT, LETTER, MAIL, SHEET, TASK, Desk
from tests.google_server import Fault, GoogleServer, Hangs, Leaves

SEND = {"to": "bob@example.org", "subject": "Hi", "body": "Hello."}
BUSY = [
    Fault(429, "rateLimitExceeded"),
    Fault(429, "rateLimitExceeded", {"Retry-After": "0"}),
    Fault(403, "userRateLimitExceeded"),
]
BROKEN = [Fault(500), Fault(502, body=b"<html>Bad gateway</html>"), Fault(503), Leaves()]


def sent(google: GoogleServer) -> int:
    return sum("SENT" in kept["labels"] for kept in google.mail.messages.values())


@pytest.mark.parametrize("fault", [*BUSY, *BROKEN], ids=str)
async def test_what_only_reads_is_asked_again(fault: Any, desk: Desk) -> None:
    desk.google.faults = [fault, fault]
    assert (await desk.value("gmail_read", messageId=MAIL))["id"] == MAIL


@pytest.mark.parametrize("fault", BUSY, ids=str)
async def test_what_google_refused_for_now_is_sent_again(fault: Any, desk: Desk) -> None:
    desk.google.faults = [fault, fault]
    await desk.value("gmail_send", **SEND)
    assert sent(desk.google) == 1


@pytest.mark.parametrize("after", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("fault", BROKEN, ids=str)
async def test_a_mail_that_may_have_been_sent_is_not_sent_again(fault: Any, after: bool, desk: Desk) -> None:
    fields = {name: getattr(fault, name) for name in fault.__dataclass_fields__}
    desk.google.faults = [type(fault)(**{**fields, "after": after})]
    assert await desk.reason("gmail_send", **SEND) == "outcome_unknown"
    assert sent(desk.google) == after


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sheets_write", {"spreadsheetId": SHEET, "range": "A1", "values": [["x"]]}),
        ("sheets_clear", {"spreadsheetId": SHEET, "range": "A1"}),
        ("tasks_complete", {"taskId": TASK}),
        ("tasks_delete", {"taskId": TASK}),
        ("calendar_delete", {"eventId": EVENT}),
    ],
)
async def test_what_is_the_same_done_twice_is_asked_again(tool: str, arguments: Any, desk: Desk) -> None:
    desk.google.faults = [Fault(503, after=True), Leaves(after=True)]
    await desk.value(tool, **arguments)


async def test_what_was_never_there_cannot_be_deleted(desk: Desk) -> None:
    desk.google.faults = [Fault(429)]
    assert await desk.reason("tasks_delete", taskId="none") == "google_not_found"


async def test_at_some_point_it_is_given_up(desk: Desk) -> None:
    desk.google.faults = [Fault(503)] * 20
    assert await desk.reason("gmail_read", messageId=MAIL) == "google_unavailable"
    assert len(desk.google.asked()) == requests.ATTEMPTS


async def test_what_was_given_up_may_have_been_done(desk: Desk) -> None:
    desk.google.faults = [Fault(503, after=True)] * 20
    assert await desk.reason("tasks_complete", taskId=TASK) == "outcome_unknown"
    desk.google.faults = [Fault(429)] * 20
    assert await desk.reason("tasks_complete", taskId=TASK) == "google_rate"


async def test_a_wait_that_google_asks_for_is_kept_or_the_call_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(requests.asyncio, "sleep", sleep)
    desk.google.faults = [Fault(429, headers={"Retry-After": "7"}), Fault(503, headers={"Retry-After": "2"})]
    await desk.value("gmail_read", messageId=MAIL)
    assert waits == [7.0, 2.0]
    assert [each.payload["message"] is None for each in desk.bench.recorder.of("tool.progress")] == [False, False]
    desk.google.faults = [Fault(429, headers={"Retry-After": "3600"})]
    result = await desk.call("gmail_read", messageId=MAIL)
    assert result.error is not None
    assert result.error.reason == "google_rate"
    assert "3600 seconds" in result.text


async def test_a_token_that_ran_out_is_renewed_once_for_everyone(desk: Desk) -> None:
    for number in range(20):
        desk.google.mail.receive(LETTER)
    desk.log_in(expires_in=-1)
    found = await asyncio.gather(*(desk.value("gmail_list") for _ in range(3)))
    assert [len(each) for each in found] == [10, 10, 10]
    assert desk.google.refreshes == 1


async def test_a_token_that_google_does_not_accept_is_renewed(desk: Desk) -> None:
    desk.google.tokens.clear()
    found = await asyncio.gather(*(desk.value("gmail_read", messageId=MAIL) for _ in range(4)))
    assert len(found) == 4
    assert desk.google.refreshes == 1


async def test_a_mail_that_came_with_a_stale_token_is_sent_once(desk: Desk) -> None:
    desk.google.tokens.clear()
    await desk.value("gmail_send", **SEND)
    assert sent(desk.google) == 1


async def test_who_was_logged_out_elsewhere_is_told_to_log_in(desk: Desk) -> None:
    desk.google.tokens.clear()
    desk.google.refresh_tokens.clear()
    result = await desk.call("gmail_read", messageId=MAIL)
    assert result.error is not None
    assert result.error.reason == "google_login"
    assert "callgate auth google login --account default" in result.text
    desk.log_in()
    desk.google.faults = [Fault(401), Fault(401)]
    assert await desk.reason("gmail_read", messageId=MAIL) == "google_login"


async def test_pages_are_put_together_and_no_more_is_asked_for_than_wanted(desk: Desk) -> None:
    for number in range(129):
        desk.google.mail.receive(LETTER)
    result = await desk.call("gmail_list", maxResults=110)
    lists = [each for each in desk.google.asked() if each.path.endswith("/messages")]
    assert len({each["id"] for each in result.value}) == 110
    assert [dict(each.query)["maxResults"] for each in lists] == ["110", "60", "10"]
    assert result.meta == {"more": True}
    assert (await desk.call("gmail_list", maxResults=500)).meta == {"more": False}


async def test_an_endless_list_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_PAGES", 3)
    desk.google.faults = [Fault(200, body=b'{"files": [], "nextPageToken": "0"}')] * 9
    await desk.value("drive_list")
    assert len(desk.google.asked()) == 3


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b"[" * 100_000, b"{"])
async def test_an_answer_that_is_no_json_is_said_so(body: bytes, desk: Desk) -> None:
    desk.google.faults = [Fault(200, body=body)]
    assert await desk.reason("tasks_get", taskId=TASK) == "google_answer"


async def test_an_answer_that_is_too_large_is_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.google.drive.put("big", content=b"x" * 5000)
    monkeypatch.setattr("callgate_catalogue.google.drive.MAX_DOWNLOAD", 4000)
    assert await desk.reason("drive_read", fileId="1File0003") == "too_large"


async def test_a_redirect_is_not_followed(desk: Desk) -> None:
    desk.google.faults = [Fault(302, headers={"Location": "http://127.0.0.1:1/"})]
    assert await desk.reason("tasks_get", taskId=TASK) == "google_request"


async def test_a_server_that_is_not_there_is_said_so(desk: Desk) -> None:
    desk.tools._endpoint = "http://127.0.0.1:1"
    assert await desk.reason("gmail_send", **SEND) == "google_unreachable"


@pytest.mark.parametrize(
    "endpoint", ["http://google.example", "ftp://127.0.0.1", "nonsense", "http://127.0.0.1.example"]
)
def test_tokens_go_over_tls_or_stay_here(endpoint: str) -> None:
    with pytest.raises(ToolError):
        Connections(endpoint)


async def test_no_secret_is_in_a_result_an_event_a_record_a_log_or_a_traceback(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = msgspec.structs.replace(desk.log_in(), access_token="correct-horse")  # no shape gives it away
    desk.google.tokens["correct-horse"] = set(tokens.scopes)
    desk.accounts.put("default", tokens, OAuthClient(*desk.google.client), read_only=False)
    echo = msgspec.json.encode({"error": {"code": 400, "message": f"There is no {tokens.access_token} here"}})
    desk.google.faults = [Fault(400, body=echo), Fault(403, body=echo), Fault(500, body=echo, after=False)]
    said = [str(await desk.call("gmail_send", **SEND)) for _ in range(3)]
    desk.google.tokens.clear()
    desk.google.refresh_tokens.clear()
    said.append(str(await desk.call("gmail_send", **SEND)))  # whose refusal repeats the refresh token
    assert "raw_open" not in caplog.text
    said += [str(event) for event in desk.bench.recorder.events]
    said += [str(record) for record in desk.bench.recorder.records]
    said += [caplog.text, repr(desk.accounts.known()), repr(desk.accounts), "".join(traceback.format_stack())]
    for secret in (tokens.access_token, tokens.refresh_token, desk.google.client[1]):
        assert [each for each in said if secret in each] == []


async def test_connections_are_used_again_and_closed_at_the_end(desk: Desk) -> None:
    for _ in range(5):
        await desk.value("tasks_get", taskId=TASK)
    assert desk.google.connections == 1
    await desk.tools.close()
    gc.collect()


async def test_a_connection_that_takes_long_does_not_look_like_a_caller_who_left(desk: Desk) -> None:
    """After 0.25 s httpx2 cancels its own waiting, and goes on to the next address."""

    async def keep_busy() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
            time.sleep(0.26)  # a busy machine: nothing else gets a turn

    busy = asyncio.create_task(keep_busy())
    try:
        assert (await desk.call("tasks_get", taskId=TASK)).ok
    finally:
        busy.cancel()


async def test_a_caller_who_leaves_ends_the_request(desk: Desk) -> None:
    desk.google.faults = [Hangs()]
    call = desk.bench.start("tasks_get", {"taskId": TASK})
    async with asyncio.timeout(60):
        await desk.google.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await desk.google.left.wait()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"error": {"code": 404, "message": "Not here.", "status": "NOT_FOUND"}}',
            "Google cannot find it (404): Not here.",
        ),
        (b'{"error": {"code": 404}}', "Google cannot find it (404)."),
        (b"", "Google cannot find it (404)."),
        (b'{"error": "nope", "error_description": "Really."}', "Google cannot find it (404): Really."),
        (b'{"error": {"message": "a\\nb\\u001b[2J"}}', "Google cannot find it (404): a b [2J"),
    ],
)
def test_googles_error_becomes_one_sentence(body: bytes, message: str) -> None:
    answer = outputs.Refused(404, {}, body)
    failure = outputs.refusal(answer, "default", "gmail.readonly", Masked([]), datetime.now(UTC))
    assert (str(failure.error), failure.passes) == (message, False)
    assert failure.error.error_class is ToolErrorClass.EXECUTION_ERROR
