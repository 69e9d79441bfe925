"""Where the Google tools are tried: a dispatcher, a workspace, accounts at a local Google."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from callgate.core.calls import ToolResult
from callgate.core.effects import Capability, SideEffects
from callgate.core.sessions import Mode
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.catalogue import CATALOGUE, SERVICES
from callgate_catalogue.google.oauth import OAuthClient, Tokens
from callgate_catalogue.google.pack import GoogleTools
from callgate_catalogue.settings import GoogleTable
from tests.google_server import SCOPE, GoogleServer
from tests.support import Bench

ALL = tuple(scope for _, every in SERVICES.values() for scope in every)
READING = tuple(scope for reading, _ in SERVICES.values() for scope in reading)

LETTER = (
    b"From: =?utf-8?q?J=C3=BCrgen?= <juergen@example.org>\r\n"
    b"To: ann@example.org\r\n"
    b"Subject: =?utf-8?b?R3LDvMOfZQ==?=\r\n"
    b"Date: Sat, 31 Jan 2026 12:00:00 +0100\r\n"
    b"Message-ID: <letter-1@example.org>\r\n"
    b'Content-Type: multipart/mixed; boundary="b1"\r\n'
    b"\r\n"
    b"--b1\r\n"
    b'Content-Type: multipart/alternative; boundary="b2"\r\n\r\n'
    b"--b2\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    b"Sch=F6ne Gr=FC=DFe\r\n"
    b"--b2\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>Never <b>shown</b></p>\r\n"
    b"--b2--\r\n"
    b'--b1\r\nContent-Type: text/csv; name="data.csv"\r\n'
    b'Content-Disposition: attachment; filename="data.csv"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
    b"YSxiCjEsMgo=\r\n"
    b"--b1--\r\n"
)
MAIL, FILE, EVENT, DOCUMENT, SHEET, TASK = "18c00001", "1File0001", "event0001", "1Doc0001", "1Sheet0001", "task0001"


def seeded(server: GoogleServer) -> GoogleServer:
    """One of everything, under the ids above."""
    server.mail.receive(LETTER)
    server.drive.put("plan.txt", content=b"The plan.")
    document = server.drive.put("Report", "application/vnd.google-apps.document", None)
    server.drive.exports[document, "text/markdown"] = b"# Report\n\nAll is well.\n"
    server.calendars.put(
        summary="Standup",
        start={"dateTime": "2035-01-31T09:00:00+01:00"},
        end={"dateTime": "2035-01-31T09:15:00+01:00"},
        attendees=[{"email": "bob@example.org"}],
        location="Room 1",
    )
    server.documents.put("Minutes", "Once upon a time")
    server.sheets.put("Budget", [["what", "cost"], ["tea", 3]])
    server.tasks.put("Water the plants", notes="twice")
    return server


class Desk:
    def __init__(self, google: GoogleServer, home: Path, workspace: Path) -> None:
        self.google, self.home, self.workspace = google, home, workspace
        self.table = GoogleTable(
            endpoint=google.url,
            token_endpoint=f"{google.url}/token",
            auth_endpoint=f"{google.url}/o/oauth2/v2/auth",
            revoke_endpoint=f"{google.url}/revoke",
        )
        self.accounts = GoogleAccounts(str(home), self.table)
        self.tools = GoogleTools(self.accounts, google.url)
        self.bench = Bench(workspace, *(factory for _, factory in self.tools.factories()), mode=Mode.WRITE)

    def log_in(
        self, *scopes: str, account: str = "default", read_only: bool = False, expires_in: float = 3600.0
    ) -> Tokens:
        """As a person would have done; without scopes, for everything."""
        chosen = scopes or ALL
        tokens = Tokens(
            access_token=self.google.let_in(*chosen),
            refresh_token=self.google.log_in(*chosen),
            expires_at=time.time() + expires_in,
            scopes=tuple(SCOPE + each for each in chosen),
            email="ann@example.org",
        )
        self.accounts.put(account, tokens, OAuthClient(*self.google.client), read_only=read_only)
        return tokens

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        result: ToolResult = await self.bench.run(tool, arguments)
        return result

    async def value(self, tool: str, /, **arguments: Any) -> Any:
        """Of a call that goes well."""
        result = await self.call(tool, **arguments)
        assert result.ok, result.text
        return result.value

    async def reason(self, tool: str, /, **arguments: Any) -> str | None:
        """Why a call fails."""
        result = await self.call(tool, **arguments)
        assert result.error is not None, result.text
        return result.error.reason

    async def close(self) -> None:
        await self.tools.close()
        await self.bench.dispatcher.close()
        await self.bench.log.close()


class Case(NamedTuple):
    """A call of one tool that goes well."""

    tool: str
    arguments: dict[str, Any]
    required: tuple[str, ...]
    effect: SideEffects
    scope: str
    destructive: bool = False


R, W, N = SideEffects.READ, SideEffects.WRITE, SideEffects.NETWORK
CASES = [
    Case("gmail_list", {}, (), R, "gmail.readonly"),
    Case("gmail_read", {"messageId": MAIL}, ("messageId",), R, "gmail.readonly"),
    Case(
        "gmail_save_attachment",
        {"messageId": MAIL, "attachment": "data.csv", "path": "d.csv"},
        ("messageId", "attachment", "path"),
        W,
        "gmail.readonly",
    ),
    Case(
        "gmail_send",
        {"to": "bob@example.org", "subject": "Hi", "body": "Hello."},
        ("to", "subject", "body"),
        N,
        "gmail.send",
        True,
    ),
    Case("gmail_search", {"query": "from:juergen"}, ("query",), R, "gmail.readonly"),
    Case("drive_list", {}, (), R, "drive.metadata.readonly"),
    Case("drive_read", {"fileId": FILE}, ("fileId",), R, "drive.readonly"),
    Case("drive_download", {"fileId": FILE, "path": "p.txt"}, ("fileId", "path"), W, "drive.readonly"),
    Case("drive_create", {"name": "a.txt", "content": "A", "mimeType": "text/plain"}, ("name",), N, "drive.file"),
    Case("drive_update", {"fileId": FILE, "content": "B", "mimeType": "text/plain"}, ("fileId",), N, "drive.file"),
    Case("drive_delete", {"fileId": FILE}, ("fileId",), N, "drive.file", True),
    Case("drive_search", {"query": "plan"}, ("query",), R, "drive.metadata.readonly"),
    Case("calendar_list", {}, (), R, "calendar.calendarlist.readonly"),
    Case(
        "calendar_events",
        {"calendarId": "primary", "timeMin": "2035-01-01T00:00:00Z", "timeMax": "2036-01-01T00:00:00Z"},
        (),
        R,
        "calendar.events.readonly",
    ),
    Case(
        "calendar_create",
        {"summary": "Tea", "start": "2035-02-01T16:00:00+01:00", "end": "2035-02-01T17:00:00+01:00"},
        ("summary", "start", "end"),
        N,
        "calendar.events",
    ),
    Case("calendar_update", {"eventId": EVENT, "summary": "Sit down"}, ("eventId",), N, "calendar.events"),
    Case("calendar_delete", {"eventId": EVENT}, ("eventId",), N, "calendar.events", True),
    Case("docs_read", {"documentId": DOCUMENT}, ("documentId",), R, "documents.readonly"),
    Case("docs_create", {"title": "New", "text": "Words"}, ("title",), N, "documents"),
    Case("docs_append", {"documentId": DOCUMENT, "text": " more"}, ("documentId", "text"), N, "documents"),
    Case(
        "docs_replace",
        {"documentId": DOCUMENT, "findText": "Once", "replaceText": "Twice"},
        ("documentId", "findText", "replaceText"),
        N,
        "documents",
    ),
    Case(
        "sheets_read", {"spreadsheetId": SHEET, "range": "Sheet1!A1:B2"}, ("spreadsheetId",), R, "spreadsheets.readonly"
    ),
    Case(
        "sheets_write",
        {"spreadsheetId": SHEET, "range": "A2:B2", "values": [["milk", 2]]},
        ("spreadsheetId", "range", "values"),
        N,
        "spreadsheets",
    ),
    Case(
        "sheets_append",
        {"spreadsheetId": SHEET, "range": "A1:B2", "values": [["jam", 4]]},
        ("spreadsheetId", "range", "values"),
        N,
        "spreadsheets",
    ),
    Case("sheets_create", {"title": "Plan"}, ("title",), N, "spreadsheets"),
    Case(
        "sheets_clear", {"spreadsheetId": SHEET, "range": "A1:A2"}, ("spreadsheetId", "range"), N, "spreadsheets", True
    ),
    Case("tasks_list", {"taskListId": "@default"}, (), R, "tasks.readonly"),
    Case("tasks_get", {"taskListId": "@default", "taskId": TASK}, ("taskId",), R, "tasks.readonly"),
    Case("tasks_create", {"taskListId": "@default", "title": "Bake", "notes": "bread"}, ("title",), N, "tasks"),
    Case("tasks_update", {"taskListId": "@default", "taskId": TASK, "title": "Rest"}, ("taskId",), N, "tasks"),
    Case("tasks_complete", {"taskListId": "@default", "taskId": TASK}, ("taskId",), N, "tasks"),
    Case("tasks_delete", {"taskListId": "@default", "taskId": TASK}, ("taskId",), N, "tasks", True),
]
assert [each.tool for each in CASES] == [each.definition.name for each in CATALOGUE]
DESTRUCTIVE = Capability.DESTRUCTIVE
