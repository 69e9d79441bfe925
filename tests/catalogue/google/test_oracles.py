"""Two who know Google better than we do: its own client, and its own description of its services.

The local Google is right if Google's client can work with it; our tools are right if all that
they send and get is what the description says.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.catalogue.google import discovery
from tests.catalogue.google.desk import (
    ALL,
    CASES,
    DOCUMENT,
    EVENT,
    FILE,
    MAIL,
    SHEET,
    TASK,
    Case,
    Desk,
)
from tests.google_server import GoogleServer
from tests.needs import needs

oracle = needs("google-api-python-client")

MORE = [
    Case(
        "gmail_send",
        {
            "to": ["Ann <ann@example.org>", "bob@example.org"],
            "cc": "c@example.org",
            "bcc": "d@example.org",
            "subject": "S",
            "body": "B",
            "html": "<p>B</p>",
            "attachments": ["note.txt"],
        },
        (),
        CASES[3].effect,
        "gmail.send",
    ),
    Case("gmail_list", {"maxResults": 500, "labelIds": ["INBOX", "UNREAD"]}, (), CASES[0].effect, "gmail.readonly"),
    Case("drive_read", {"fileId": "1File0002"}, (), CASES[6].effect, "drive.readonly"),
    Case(
        "drive_create",
        {"name": "d", "mimeType": "application/vnd.google-apps.folder", "folderId": "root"},
        (),
        CASES[8].effect,
        "drive.file",
    ),
    Case("drive_create", {"name": "note.txt", "path": "note.txt"}, (), CASES[8].effect, "drive.file"),
    Case("drive_update", {"fileId": FILE, "name": "other.txt", "path": "note.txt"}, (), CASES[9].effect, "drive.file"),
    Case("drive_delete", {"fileId": FILE, "permanent": True}, (), CASES[10].effect, "drive.file"),
    Case(
        "calendar_events",
        {"timeMin": "2035-01-01", "timeMax": "2035-12-31T12:00:00", "query": "stand"},
        (),
        CASES[13].effect,
        "calendar.events.readonly",
    ),
    Case(
        "calendar_create",
        {
            "summary": "S",
            "start": "2035-02-01T16:00:00",
            "end": "2035-02-01T17:00:00",
            "description": "D",
            "location": "L",
            "attendees": ["bob@example.org"],
            "sendUpdates": "all",
        },
        (),
        CASES[14].effect,
        "calendar.events",
    ),
    Case(
        "calendar_create",
        {"summary": "S", "start": "2035-02-01", "end": "2035-02-02"},
        (),
        CASES[14].effect,
        "calendar.events",
    ),
    Case(
        "calendar_update",
        {"eventId": EVENT, "start": "2035-02-01", "end": "2035-02-02", "timeZone": "Asia/Tokyo"},
        (),
        CASES[15].effect,
        "calendar.events",
    ),
    Case("sheets_read", {"spreadsheetId": SHEET}, (), CASES[21].effect, "spreadsheets.readonly"),
    Case(
        "sheets_write",
        {"spreadsheetId": SHEET, "range": "A1", "values": [["=1+1", None, True, 1.5]], "valueInputOption": "RAW"},
        (),
        CASES[22].effect,
        "spreadsheets",
    ),
    Case("tasks_update", {"taskId": TASK, "status": "needsAction", "due": "2035-02-01"}, (), CASES[29].effect, "tasks"),
    Case("tasks_list", {"showCompleted": True, "maxResults": 1000}, (), CASES[26].effect, "tasks.readonly"),
]


@oracle
@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.tool)
async def test_all_that_a_tool_sends_and_gets_is_as_google_describes_it(case: Case, desk: Desk) -> None:
    desk.log_in(case.scope)
    await desk.value(case.tool, **case.arguments)
    assert desk.google.exchanges
    for exchange in desk.google.exchanges:
        discovery.check(exchange, case.scope)


@oracle
async def test_the_check_finds_what_is_wrong(desk: Desk) -> None:
    await desk.value("tasks_create", title="A")
    (right,) = desk.google.exchanges
    fields = {name: getattr(right, name) for name in right.__dataclass_fields__}
    wrong = [
        {"query": [("nonsense", "1")]},
        {"body": b'{"titel": "A"}'},
        {"answer": {**right.answer, "title": 5}},
        {"path": "/tasks/v1/list/x/tasks"},
        {"method": "PUT"},
    ]
    discovery.check(right)
    for each in wrong:
        with pytest.raises((AssertionError, ValueError)):
            discovery.check(type(right)(**{**fields, **each}))


def service(google: GoogleServer, name: str, token: str) -> Any:
    """Google's own client, at the local Google."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.oauth2.credentials import Credentials
        from googleapiclient.discovery import build_from_document

        described = copy.deepcopy(discovery.document(name))
        described["rootUrl"] = described["baseUrl"] = f"{google.url}/"
        described.pop("mtlsRootUrl", None)
        described.pop("endpoints", None)
        return build_from_document(described, credentials=Credentials(token))


RAW = base64.urlsafe_b64encode(b"To: bob@example.org\r\nSubject: S\r\n\r\nB").decode()
WHEN = {"dateTime": "2035-02-01T16:00:00+01:00"}
LATER = {"dateTime": "2035-02-01T17:00:00+01:00"}

Ask = Callable[[Any], Any]
ASKS: dict[str, list[Ask]] = {
    "gmail": [
        lambda s: s.users().messages().list(userId="me", maxResults=5, labelIds=["INBOX"], q="from:juergen"),
        lambda s: s.users().messages().get(userId="me", id=MAIL, format="full"),
        lambda s: s.users().messages().get(userId="me", id=MAIL, format="metadata", metadataHeaders=["From"]),
        lambda s: s.users().messages().get(userId="me", id=MAIL, format="raw"),
        lambda s: s.users().messages().attachments().get(userId="me", messageId=MAIL, id="att-1"),
        lambda s: s.users().messages().send(userId="me", body={"raw": RAW}),
    ],
    "drive": [
        lambda s: s.files().list(
            q="'root' in parents and trashed = false", pageSize=5, fields="files(id,name),nextPageToken"
        ),
        lambda s: s.files().get(fileId=FILE, fields="id,name,mimeType"),
        lambda s: s.files().get_media(fileId=FILE),
        lambda s: s.files().export(fileId="1File0002", mimeType="text/markdown"),
        lambda s: s.files().create(body={"name": "d", "mimeType": "application/vnd.google-apps.folder"}),
        lambda s: s.files().create(body={"name": "m.txt"}, media_body=_media(b"media")),
        lambda s: s.files().update(fileId=FILE, body={"trashed": True}),
        lambda s: s.files().update(fileId=FILE, media_body=_media(b"new")),
        lambda s: s.files().delete(fileId=FILE),
    ],
    "calendar": [
        lambda s: s.calendarList().list(),
        lambda s: s.events().list(
            calendarId="primary", timeMin="2035-01-01T00:00:00Z", singleEvents=True, orderBy="startTime"
        ),
        lambda s: s.events().insert(
            calendarId="primary", sendUpdates="none", body={"summary": "S", "start": WHEN, "end": LATER}
        ),
        lambda s: s.events().patch(calendarId="primary", eventId=EVENT, body={"summary": "T"}),
        lambda s: s.events().delete(calendarId="primary", eventId=EVENT),
    ],
    "docs": [
        lambda s: s.documents().get(documentId=DOCUMENT, includeTabsContent=True),
        lambda s: s.documents().create(body={"title": "T"}),
        lambda s: s.documents().batchUpdate(
            documentId=DOCUMENT, body={"requests": [{"insertText": {"endOfSegmentLocation": {}, "text": "x"}}]}
        ),
        lambda s: s.documents().batchUpdate(
            documentId=DOCUMENT,
            body={
                "requests": [{"replaceAllText": {"containsText": {"text": "x", "matchCase": True}, "replaceText": "y"}}]
            },
        ),
    ],
    "sheets": [
        lambda s: s.spreadsheets().get(spreadsheetId=SHEET),
        lambda s: s.spreadsheets().values().get(spreadsheetId=SHEET, range="Sheet1!A1:B2"),
        lambda s: (
            s.spreadsheets()
            .values()
            .update(spreadsheetId=SHEET, range="A1:B1", valueInputOption="RAW", body={"values": [["a", "b"]]})
        ),
        lambda s: (
            s.spreadsheets()
            .values()
            .append(spreadsheetId=SHEET, range="A1:B1", valueInputOption="RAW", body={"values": [["c", "d"]]})
        ),
        lambda s: s.spreadsheets().values().clear(spreadsheetId=SHEET, range="A1:B2", body={}),
        lambda s: s.spreadsheets().create(body={"properties": {"title": "T"}}),
    ],
    "tasks": [
        lambda s: s.tasklists().list(),
        lambda s: s.tasks().list(tasklist="@default", showCompleted=True),
        lambda s: s.tasks().get(tasklist="@default", task=TASK),
        lambda s: s.tasks().insert(tasklist="@default", body={"title": "T"}),
        lambda s: s.tasks().patch(tasklist="@default", task=TASK, body={"status": "completed"}),
        lambda s: s.tasks().delete(tasklist="@default", task=TASK),
    ],
}


def _media(content: bytes) -> Any:
    from googleapiclient.http import MediaInMemoryUpload

    return MediaInMemoryUpload(content, "text/plain")


@oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ASKS)
async def test_googles_own_client_works_with_the_local_google(name: str, google: GoogleServer) -> None:
    def drive_it() -> None:
        client = service(google, name, google.let_in(*ALL))
        for ask in ASKS[name]:
            ask(client).execute()
        client.close()

    await asyncio.to_thread(drive_it)
    seen = [discovery.check(exchange) for exchange in google.exchanges]
    assert len(seen) == len(ASKS[name])
    assert {exchange.status for exchange in google.exchanges} <= {200, 204}


@oracle
@pytest.mark.filterwarnings("ignore")
async def test_googles_own_client_reads_the_errors_of_the_local_google(google: GoogleServer) -> None:
    from googleapiclient.errors import HttpError

    def failures() -> list[tuple[int, str]]:
        client = service(google, "gmail", google.let_in("gmail.send"))
        other = service(google, "gmail", google.let_in("gmail.readonly"))
        found = []
        for ask in (client.users().messages().list(userId="me"), other.users().messages().get(userId="me", id="none")):
            with pytest.raises(HttpError) as caught:
                ask.execute()
            found.append((caught.value.status_code, caught.value.error_details[0]["reason"]))
        client.close()
        other.close()
        return found

    assert await asyncio.to_thread(failures) == [(403, "insufficientPermissions"), (404, "notFound")]


@oracle
@pytest.mark.filterwarnings("ignore")
async def test_every_method_that_our_tools_use_was_tried_by_googles_own_client(desk: Desk) -> None:
    def tried() -> set[str]:
        clients = {name: service(desk.google, name, "unused") for name in ASKS}
        methods = {ask(clients[name]).methodId for name, asks in ASKS.items() for ask in asks}
        for client in clients.values():
            client.close()
        return methods

    used = set()
    for case in [*CASES, *MORE]:
        await desk.call(case.tool, **case.arguments)  # some find what others deleted no more
    for exchange in desk.google.exchanges:
        used.add(discovery.check(exchange))
    assert len(used) > 25
    assert used <= await asyncio.to_thread(tried)
