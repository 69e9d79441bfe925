"""Each Google tool: its schema, its effect, a call that goes well, and the ways in which one does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate.core.effects import SideEffects
from callgate.core.errors import ToolErrorClass
from callgate.core.schemas import ArgumentSchema
from callgate_catalogue.google.catalogue import CATALOGUE
from tests.catalogue.google.desk import CASES, DESTRUCTIVE, MAIL, Case, Desk
from tests.google_server import Fault, GoogleServer, Hangs

E = ToolErrorClass
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.tool)


@pytest.mark.parametrize("spec", CATALOGUE, ids=lambda spec: spec.definition.name)
@pytest.mark.spec("S3-44", "S3-45", "S3-46", "S3-47", "S3-48", "S3-49", "S3-50", "S3-51", "S3-52")
def test_each_schema_is_one_that_every_model_understands(spec: Any) -> None:
    schema = ArgumentSchema(spec.definition.input_schema, spec.definition.name)
    assert schema.schema["properties"].keys() >= set(schema.schema.get("required", ()))


@each_case
@pytest.mark.spec("S3-44", "S3-45", "S3-46", "S3-47", "S3-48", "S3-49", "S3-50", "S3-51", "S3-52")
def test_each_tool_has_the_effect_of_its_type(case: Case, desk: Desk) -> None:
    tool = desk.bench.dispatcher.registry.find(case.tool)
    assert tool is not None
    assert (tool.effect, tool.destructive) == (case.effect, case.destructive)
    assert (DESTRUCTIVE in tool.capabilities) == case.destructive
    assert tuple(tool.definition.input_schema.get("required", ())) == case.required


@each_case
@pytest.mark.spec("S3-44", "S3-45", "S3-46", "S3-47", "S3-48", "S3-49", "S3-50", "S3-51", "S3-52")
async def test_each_tool_works_with_the_smallest_scope_it_asks_for(case: Case, desk: Desk) -> None:
    desk.log_in(case.scope)
    result = await desk.call(case.tool, **case.arguments)
    assert result.ok, result.text
    assert result.text
    assert result.value is not None
    assert desk.bench.recorder.one("tool.called").payload["side_effects"] == case.effect


@each_case
@pytest.mark.spec("S3-44", "S3-45", "S3-46", "S3-47", "S3-48", "S3-49", "S3-50", "S3-51", "S3-52")
async def test_each_missing_parameter_is_named_and_nothing_is_asked_for(case: Case, desk: Desk) -> None:
    for name in case.required:
        given = {key: value for key, value in case.arguments.items() if key != name}
        result = await desk.call(case.tool, **given)
        assert result.error is not None
        assert result.error.error_class is E.VALIDATION_ERROR
        assert name in result.text
    unknown = await desk.call(case.tool, **case.arguments, nonsense=1)
    assert unknown.error is not None
    assert unknown.error.error_class is E.VALIDATION_ERROR
    assert desk.google.exchanges == []


FAULTS = [
    (Fault(400, "badRequest"), "google_request"),
    (Fault(403, "forbidden"), "google_forbidden"),
    (Fault(404, "notFound"), "google_not_found"),
    (Fault(403, "insufficientPermissions"), "google_scope"),
]


@each_case
@pytest.mark.spec("S3-44", "S3-45", "S3-46", "S3-47", "S3-48", "S3-49", "S3-50", "S3-51", "S3-52")
async def test_each_tool_says_in_one_sentence_what_google_refused(case: Case, desk: Desk) -> None:
    for fault, reason in FAULTS:
        desk.google.faults = [fault]
        result = await desk.call(case.tool, **case.arguments)
        assert result.error is not None
        assert (result.error.error_class, result.error.reason) == (E.EXECUTION_ERROR, reason)
        assert "\n" not in result.text
    assert len(desk.google.asked()) == len(FAULTS)


@each_case
async def test_each_tool_says_which_leave_is_missing_without_asking_google(case: Case, desk: Desk) -> None:
    desk.log_in("userinfo.profile")
    result = await desk.call(case.tool, **case.arguments)
    assert result.error is not None
    assert result.error.reason == "google_scope"
    assert f"callgate auth google login --account default --scope {case.scope}" in result.text
    assert desk.google.exchanges == []


@each_case
async def test_each_tool_stops_in_the_middle_of_a_request(case: Case, desk: Desk, google: GoogleServer) -> None:
    google.faults = [Hangs()]
    call = desk.bench.start(case.tool, case.arguments)
    async with asyncio.timeout(60):
        await google.waiting.wait()
        await desk.bench.dispatcher.cancel_session_tools(desk.bench.session.id)
        result = await call
        await google.left.wait()
    assert result.error is not None
    assert result.error.error_class is E.CANCELLED
    # A change that was on its way may have happened: the result does not claim otherwise.
    first_reads = case.effect is not SideEffects.NETWORK
    assert result.error.details == {"stopped": first_reads}


@pytest.mark.spec("S3-54")
@each_case
async def test_without_an_account_each_tool_says_how_to_log_in(case: Case, desk: Desk) -> None:
    desk.accounts.forget("default")
    assert all(desk.tools.why_not(spec) is not None for spec in CATALOGUE)
    result = await desk.call(case.tool, **case.arguments)
    assert result.error is not None
    assert result.error.reason == "google_login"
    assert "callgate auth google login" in result.text
    assert desk.google.exchanges == []


@each_case
async def test_an_account_for_reading_only_changes_nothing(case: Case, desk: Desk) -> None:
    desk.log_in(read_only=True)
    result = await desk.call(case.tool, **case.arguments)
    if case.effect is not SideEffects.NETWORK:
        assert result.ok, result.text
        return
    assert result.error is not None
    assert (result.error.error_class, result.error.reason) == (E.PERMISSION_DENIED, "google_read_only")
    assert desk.google.exchanges == []


async def test_an_id_cannot_lead_elsewhere(desk: Desk) -> None:
    for messageId in ("..", ".", "a\nb"):
        result = await desk.call("gmail_read", messageId=messageId)
        assert result.error is not None
        assert result.error.error_class is E.VALIDATION_ERROR
    assert desk.google.exchanges == []
    await desk.call("gmail_read", messageId="../../../../drive/v3/files?x=1#y")
    (asked,) = desk.google.asked()
    assert asked.path == "/gmail/v1/users/me/messages/..%2F..%2F..%2F..%2Fdrive%2Fv3%2Ffiles%3Fx%3D1%23y"


@pytest.mark.parametrize(
    ("tool", "arguments", "sent"),
    [
        ("docs_append", {"documentId": "1Doc0001", "content": "!"}, "Once upon a time!"),
        ("docs_replace", {"documentId": "1Doc0001", "find": "Once", "replace": "Twice"}, "Twice upon a time"),
        ("docs_replace", {"documentId": "1Doc0001", "oldText": "Once", "newText": "Twice"}, "Twice upon a time"),
    ],
)
async def test_other_spellings_of_arguments_are_taken(
    tool: str, arguments: dict[str, Any], sent: str, desk: Desk
) -> None:
    await desk.value(tool, **arguments)
    assert desk.google.documents.documents["1Doc0001"]["text"] == sent


async def test_the_updates_of_a_task_may_come_together(desk: Desk) -> None:
    await desk.value("tasks_update", taskId="task0001", updates={"title": "A", "notes": "n", "due": "2035-02-01"})
    kept = desk.google.tasks.tasks["task0001"]
    assert (kept["title"], kept["notes"], kept["due"]) == ("A", "n", "2035-02-01T00:00:00.000Z")
    assert (await desk.call("tasks_update", taskId="task0001")).error is not None


async def test_another_account_can_be_named(desk: Desk) -> None:
    tokens = desk.log_in("gmail.readonly", account="work")
    await desk.value("gmail_read", messageId=MAIL, account="work")
    assert desk.google.asked()[-1].headers["authorization"] == f"Bearer {tokens.access_token}"
    assert await desk.reason("gmail_read", messageId=MAIL, account="nobody") == "google_login"


SHAPES = (
    b"[]",
    b"7",
    b'"text"',
    b"null",
    b"{}",
    b'{"error": {"code": 500}}',
    b'{"id": 7, "name": [], "messages": 7, "files": {"a": 1}, "items": [7, null], "payload": [], "tabs": 7, "values": {"a": 1}}',
    b'{"messages": [7], "files": [[]], "items": {}, "nextPageToken": 7, "payload": {"parts": 7}, "sheets": [null]}',
    b'{"payload": {"parts": [7], "headers": {"a": 1}}, "values": [7], "tabs": [[]], "replies": [7], "updates": 7}',
    b'{"payload": {"body": {"data": 7, "size": "x"}, "headers": [7]}, "mimeType": "text/plain", "id": "x/../y"}',
)


@each_case
async def test_an_answer_of_any_shape_ends_in_a_result_or_one_sentence(case: Case, desk: Desk) -> None:
    seen = []
    for body in SHAPES:
        desk.google.faults = [Fault(200, body=body)] * 9
        result = await desk.call(case.tool, **case.arguments)
        seen += [] if result.error is None else [result.error.reason]
    known = {"google_answer", "outcome_unknown", "too_deep", "no_attachment", "no_content", "not_text"}
    assert set(seen) <= known
    assert "google_answer" not in seen or case.effect is not SideEffects.NETWORK


async def test_a_mail_whose_receipt_cannot_be_read_may_have_been_sent(desk: Desk) -> None:
    mail = {"to": "bob@example.org", "subject": "s", "body": "b"}
    for body in (b"<html>", b"[]", b"{}"):
        desk.google.faults = [Fault(200, body=body)]
        result = await desk.call("gmail_send", **mail)
        assert result.error is not None and result.error.reason == "outcome_unknown"
