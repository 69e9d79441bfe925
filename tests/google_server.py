"""A local Google with a memory: the calls behind our tools, its logins, its errors, its faults.

    async with GoogleServer() as google:
        token = google.let_in("gmail.readonly")
        google.mail.receive(b"From: ann@example.org\\r\\nSubject: Hi\\r\\n\\r\\nHello.")
        google.faults += [Fault(429, "rateLimitExceeded", {"Retry-After": "0"})]

Every exchange is kept in `exchanges`. What the services remember is in `tests.google_services`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from tests.google_services import (
    Calendars,
    Documents,
    Drive,
    Mail,
    Nothing,
    Problem,
    Raw,
    Sheets,
    Tasks,
    select,
)

SCOPE = "https://www.googleapis.com/auth/"
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of what it asks for; `after`: having done it all the same."""

    status: int = 503
    reason: str = "backendError"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    after: bool = False


@dataclass(frozen=True)
class Hangs:
    after: bool = False


@dataclass(frozen=True)
class Leaves:
    after: bool = False


@dataclass(frozen=True)
class Exchange:
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes
    status: int
    answer: Any

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.path, self.headers, self.body = method, parts.path, headers, body
        self.pairs = parse_qsl(parts.query, keep_blank_values=True)
        self.query = dict(self.pairs)
        self.lists = parse_qs(parts.query)

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            raise Problem(400, "parseError", "Parse Error") from None


class GoogleServer:
    def __init__(self) -> None:
        self.mail, self.drive, self.calendars = Mail(), Drive(), Calendars()
        self.documents, self.sheets, self.tasks = Documents(), Sheets(), Tasks()
        self.faults: list[Fault | Hangs | Leaves] = []
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.client = ("client-1.apps.example", "client-secret-5f1c")
        self.tokens: dict[str, set[str]] = {}
        self.refresh_tokens: dict[str, set[str]] = {}
        self.refreshes = 0
        self.token_faults: list[int] = []
        self.declined: set[str] = set()
        """Scopes that the person in the browser unticks."""
        self.refuses = False
        self._codes: dict[str, dict[str, str]] = {}
        self.waiting = asyncio.Event()
        """Set when a request hangs."""
        self.left = asyncio.Event()
        """Set when a client has closed the connection of a request that hangs."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
            stack.callback(self._server.close)
            stack.push_async_callback(self._end)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def settings(self) -> str:
        """`[google]` for a settings file."""
        return (
            f'[google]\nendpoint = "{self.url}"\nauth_endpoint = "{self.url}/o/oauth2/v2/auth"\n'
            f'token_endpoint = "{self.url}/token"\nrevoke_endpoint = "{self.url}/revoke"\n'
        )

    @property
    def client_file(self) -> str:
        return json.dumps(
            {
                "installed": {
                    "client_id": self.client[0],
                    "client_secret": self.client[1],
                    "redirect_uris": ["http://localhost"],
                }
            }
        )

    def let_in(self, *scopes: str) -> str:
        """A token for these scopes."""
        token = f"ya29.access-{secrets.token_hex(12)}"
        self.tokens[token] = {SCOPE + each for each in scopes}
        return token

    def log_in(self, *scopes: str) -> str:
        """A refresh token for these scopes."""
        token = f"1//refresh-{secrets.token_hex(12)}"
        self.refresh_tokens[token] = {SCOPE + each for each in scopes}
        return token

    def asked(self, method: str = "") -> list[Exchange]:
        return [each for each in self.exchanges if method in ("", each.method)]

    # The wire.

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = head[0].split(" ")
        request = Request(method, target, headers, body)
        fault: Fault | Hangs | Leaves | None = None
        is_login = request.path in ("/token", "/revoke", "/o/oauth2/v2/auth")
        if self.faults and not is_login:
            fault = self.faults.pop(0)
        if fault is None or fault.after:
            status, extra, data, answer = self._answer(request)
        if isinstance(fault, Hangs):
            self.waiting.set()
            while await reader.read(1024):
                pass
            self.left.set()
            return False
        if isinstance(fault, Leaves):
            return False
        if fault is not None:
            status, extra = fault.status, fault.headers
            answer = _error(fault.status, fault.reason, "It went wrong, as the test asked.")
            data = json.dumps(answer).encode() if fault.body is None else fault.body
        self.exchanges.append(Exchange(method, request.path, request.pairs, headers, body, status, answer))
        named = {"Content-Type": "application/json; charset=UTF-8", "Content-Length": str(len(data)), **extra}
        if status == 204:
            del named["Content-Length"]
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in named.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        return True

    def _answer(self, request: Request) -> tuple[int, dict[str, str], bytes, Any]:
        try:
            answer = self._routed(request)
        except Problem as problem:
            answer = _error(problem.status, problem.reason, problem.message)
            return problem.status, {}, json.dumps(answer).encode(), answer
        if isinstance(answer, Redirect):
            return 302, {"Location": answer.to}, b"", None
        if isinstance(answer, Refused):
            return answer.status, {}, json.dumps(answer.body).encode(), answer.body
        if isinstance(answer, Nothing):
            return 204, {}, b"", None
        if isinstance(answer, Raw):
            return 200, {"Content-Type": answer.media_type}, answer.content, None
        if "fields" in request.query:
            answer = select(answer, request.query["fields"])
        return 200, {}, json.dumps(answer).encode(), answer

    def _routed(self, request: Request) -> Any:
        for method, pattern, scopes, function in self._routes():
            found = re.fullmatch(pattern, request.path)
            if found and method == request.method:
                if scopes:
                    self._check(request, scopes)
                parts = {name: unquote(value) for name, value in found.groupdict().items()}
                return function(request, **parts)
        raise Problem(404, "notFound", f"There is no {request.method} {request.path}")

    def _check(self, request: Request, scopes: str) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            raise Problem(401, "authError", "Request had invalid authentication credentials.")
        if not {SCOPE + each for each in scopes.split()} & self.tokens[token]:
            raise Problem(403, "insufficientPermissions", "Request had insufficient authentication scopes.")

    def _routes(self) -> Iterator[tuple[str, str, str, Callable[..., Any]]]:
        yield "GET", "/o/oauth2/v2/auth", "", self._consent
        yield "POST", "/token", "", self._token
        yield "POST", "/revoke", "", self._revoke
        mail, one = "/gmail/v1/users/me/messages", "/gmail/v1/users/me/messages/(?P<id>[^/]+)"
        read = "gmail.readonly gmail.modify"
        yield "GET", mail, read, self.mail.list
        yield "POST", f"{mail}/send", "gmail.send gmail.compose gmail.modify", self.mail.send
        yield "GET", one, f"{read} gmail.metadata", self.mail.get
        yield "GET", f"{one}/attachments/(?P<attachment>[^/]+)", read, self.mail.attachment
        files, file = "/drive/v3/files", "/drive/v3/files/(?P<id>[^/]+)"
        read, write = "drive.readonly drive drive.file", "drive drive.file"
        yield "GET", files, f"{read} drive.metadata.readonly drive.metadata", self.drive.list
        yield "POST", files, write, self.drive.create
        yield "POST", f"/upload{files}", write, self.drive.upload
        yield "GET", file, f"{read} drive.metadata.readonly drive.metadata", self.drive.get
        yield "GET", f"{file}/export", read, self.drive.export
        yield "PATCH", file, write, self.drive.patch
        yield "PATCH", f"/upload{file}", write, self.drive.replace
        yield "DELETE", file, write, self.drive.delete
        events, event = (
            "/calendar/v3/calendars/(?P<calendar>[^/]+)/events",
            "/calendar/v3/calendars/(?P<calendar>[^/]+)/events/(?P<id>[^/]+)",
        )
        yield (
            "GET",
            "/calendar/v3/users/me/calendarList",
            "calendar.calendarlist.readonly calendar.readonly calendar",
            self.calendars.calendars,
        )
        yield "GET", events, "calendar.events.readonly calendar.events calendar.readonly calendar", self.calendars.list
        yield "POST", events, "calendar.events calendar", self.calendars.insert
        yield "PATCH", event, "calendar.events calendar", self.calendars.patch
        yield "DELETE", event, "calendar.events calendar", self.calendars.delete
        document = "/v1/documents/(?P<id>[^/:]+)"
        yield "GET", document, "documents.readonly documents drive.readonly drive", self.documents.get
        yield "POST", "/v1/documents", "documents drive", self.documents.create
        yield "POST", f"{document}:batchUpdate", "documents drive", self.documents.update
        sheet = "/v4/spreadsheets/(?P<id>[^/:]+)"
        read = "spreadsheets.readonly spreadsheets drive.readonly drive"
        # A client may leave the colon of A1:B2 as it is.
        cells = "/v4/spreadsheets/(?P<id>[^/:]+)/values/(?P<range>[^/]+?)"
        yield "POST", f"{cells}:append", "spreadsheets drive", self.sheets.append
        yield "POST", f"{cells}:clear", "spreadsheets drive", self.sheets.clear
        yield "GET", sheet, read, self.sheets.about
        yield "GET", cells, read, self.sheets.get
        yield "PUT", cells, "spreadsheets drive", self.sheets.put_values
        yield "POST", "/v4/spreadsheets", "spreadsheets drive", self.sheets.create
        tasks, task = "/tasks/v1/lists/(?P<list>[^/]+)/tasks", "/tasks/v1/lists/(?P<list>[^/]+)/tasks/(?P<id>[^/]+)"
        yield "GET", "/tasks/v1/users/@me/lists", "tasks.readonly tasks", self.tasks.lists
        yield "GET", tasks, "tasks.readonly tasks", self.tasks.list
        yield "POST", tasks, "tasks", self.tasks.insert
        yield "GET", task, "tasks.readonly tasks", self.tasks.get
        yield "PATCH", task, "tasks", self.tasks.patch
        yield "DELETE", task, "tasks", self.tasks.delete

    # Logins.

    def _consent(self, request: Request) -> Any:
        asked = request.query
        wanted = {
            "response_type": "code",
            "client_id": self.client[0],
            "code_challenge_method": "S256",
            "access_type": "offline",
        }
        wrong = [name for name, value in wanted.items() if asked.get(name) != value]
        back = urlsplit(asked.get("redirect_uri", ""))
        if wrong or (back.scheme, back.hostname) != ("http", "127.0.0.1") or not asked.get("state"):
            raise Problem(400, "invalid_request", f"wrong: {wrong}")
        if self.refuses:
            return Redirect(f"{asked['redirect_uri']}?{urlencode({'error': 'access_denied', 'state': asked['state']})}")
        code = f"4/code-{secrets.token_hex(8)}"
        self._codes[code] = asked
        return Redirect(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")

    def _token(self, request: Request) -> Any:
        if self.token_faults:
            return Refused(self.token_faults.pop(0), {"error": "temporarily_unavailable"})
        form = dict(parse_qsl(request.body.decode()))
        if (form.get("client_id"), form.get("client_secret")) != self.client:
            return Refused(401, {"error": "invalid_client", "error_description": f"no {form.get('client_secret')}"})
        if form["grant_type"] == "refresh_token":
            self.refreshes += 1
            if form["refresh_token"] not in self.refresh_tokens:
                said = f"Token {form['refresh_token']} has been expired or revoked."
                return Refused(400, {"error": "invalid_grant", "error_description": said})
            return self._granted(self.refresh_tokens[form["refresh_token"]])
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return Refused(400, {"error": "invalid_grant", "error_description": "Malformed auth code."})
        scopes = set(asked["scope"].split()) - {SCOPE + each for each in self.declined}
        refresh = self.log_in()
        self.refresh_tokens[refresh] = scopes
        return {**self._granted(scopes), "refresh_token": refresh, "id_token": _id_token("ann@example.org")}

    def _granted(self, scopes: set[str]) -> dict[str, Any]:
        token = self.let_in()
        self.tokens[token] = scopes
        return {"access_token": token, "expires_in": 3599, "scope": " ".join(sorted(scopes)), "token_type": "Bearer"}

    def _revoke(self, request: Request) -> Any:
        token = dict(parse_qsl(request.body.decode())).get("token", "")
        if self.refresh_tokens.pop(token, None) is None:
            return Refused(400, {"error": "invalid_token"})
        self.tokens.clear()
        return {}


@dataclass(frozen=True)
class Redirect:
    to: str


@dataclass(frozen=True)
class Refused:
    status: int
    body: Any


def _error(status: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "error": {
            "code": status,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
            "status": _STATUS.get(status, "UNKNOWN"),
        }
    }


def _id_token(email: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"email": email}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"
