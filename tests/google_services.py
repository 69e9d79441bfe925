"""What the services of `tests.google_server` remember, and how they answer."""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import itertools
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from email.message import EmailMessage, Message
from typing import Any
from zoneinfo import ZoneInfo

NOW = "2026-01-31T12:00:00.000Z"
NATIVE = "application/vnd.google-apps."


class Problem(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True)
class Raw:
    content: bytes
    media_type: str


@dataclass(frozen=True)
class Nothing:
    pass


def missing(what: str = "entity") -> Problem:
    return Problem(404, "notFound", f"Requested {what} was not found.")


def found(things: dict[str, Any], id: str, what: str = "entity") -> Any:
    if id not in things:
        raise missing(what)
    return things[id]


def page(items: list[Any], query: dict[str, str], size: str, usual: int, largest: int, key: str) -> dict[str, Any]:
    """A page of a list, as every service cuts them; Google gives fewer than were asked for at will."""
    wanted = int(query.get(size, usual))
    if not 1 <= wanted <= largest:
        raise Problem(400, "invalidArgument", f"{size} must be from 1 to {largest}")
    start = int(query.get("pageToken", "0"))
    answer: dict[str, Any] = {key: items[start : start + min(wanted, 50)]}
    if start + min(wanted, 50) < len(items):
        answer["nextPageToken"] = str(start + min(wanted, 50))
    return answer


def select(value: Any, fields: str) -> Any:
    """A partial answer: `a,b(c,d)`."""
    chosen: dict[str, str | None] = {}
    for name, inner in re.findall(r"(\w+|\*)(?:\(((?:[^()]|\([^()]*\))*)\))?", fields):
        chosen[name] = inner or None
    if "*" in chosen:
        return value
    if isinstance(value, list):
        return [select(each, fields) for each in value]
    return {
        name: each if chosen[name] is None else select(each, str(chosen[name]))
        for name, each in value.items()
        if name in chosen
    }


class Mail:
    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self._ids = (f"18c{number:05x}" for number in itertools.count(1))

    def receive(self, raw: bytes, *labels: str, thread: str | None = None) -> str:
        id = next(self._ids)
        self.messages[id] = {"raw": raw, "labels": list(labels or ("INBOX", "UNREAD")), "thread": thread or id}
        return id

    def parsed(self, id: str) -> EmailMessage:
        made = email.message_from_bytes(self.messages[id]["raw"], policy=email.policy.default)
        assert isinstance(made, EmailMessage)
        return made

    def list(self, request: Any) -> Any:
        labels = set(request.lists.get("labelIds", []))
        chosen = [
            {"id": id, "threadId": kept["thread"]}
            for id, kept in reversed(self.messages.items())
            if labels <= set(kept["labels"]) and self._matches(id, request.query.get("q", ""))
        ]
        answer = page(chosen, request.query, "maxResults", 100, 500, "messages")
        if not chosen:
            del answer["messages"]
        return {**answer, "resultSizeEstimate": len(chosen)}

    def _matches(self, id: str, query: str) -> bool:
        kept = self.messages[id]
        text = kept["raw"].decode("utf-8", "replace").lower()
        for word in query.lower().split():
            if word.startswith("from:"):
                if word[5:] not in str(self.parsed(id)["from"]).lower():
                    return False
            elif word in ("is:unread", "in:sent"):
                if {"is:unread": "UNREAD", "in:sent": "SENT"}[word] not in kept["labels"]:
                    return False
            elif word not in text:
                return False
        return True

    def get(self, request: Any, id: str) -> Any:
        kept = found(self.messages, id)
        form = request.query.get("format", "full")
        answer = {
            "id": id,
            "threadId": kept["thread"],
            "labelIds": kept["labels"],
            "historyId": "7",
            "internalDate": "1769860800000",
            "sizeEstimate": len(kept["raw"]),
            "snippet": "It&#39;s the beginning &lt;of it&gt; \u200b\u200b",
        }
        if form == "raw":
            return {**answer, "raw": _b64(kept["raw"])}
        message = email.message_from_bytes(kept["raw"])
        if form == "metadata":
            wanted = {name.lower() for name in request.lists.get("metadataHeaders", [])}
            headers = [each for each in _headers(message) if not wanted or each["name"].lower() in wanted]
            return {**answer, "payload": {"mimeType": message.get_content_type(), "headers": headers}}
        return {**answer, "payload": _part(message, "")}

    def attachment(self, request: Any, id: str, attachment: str) -> Any:
        message = email.message_from_bytes(found(self.messages, id)["raw"])
        for number, part in _leaves(message, ""):
            if f"att-{number}" == attachment:
                data = _content(part)
                return {"size": len(data), "data": _b64(data)}
        raise missing("attachment")

    def send(self, request: Any) -> Any:
        body = request.json
        raw = base64.urlsafe_b64decode(body["raw"] + "=" * (-len(body["raw"]) % 4))
        if not email.message_from_bytes(raw).get("To"):
            raise Problem(400, "invalidArgument", "Recipient address required")
        id = self.receive(raw, "SENT", thread=body.get("threadId"))
        return {"id": id, "threadId": self.messages[id]["thread"], "labelIds": ["SENT"]}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _headers(message: Message) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in message.items()]


def _content(part: Message) -> bytes:
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload()
        assert isinstance(inner, list)
        return inner[0].as_bytes()
    data = part.get_payload(decode=True)
    return data if isinstance(data, bytes) else b""


def _leaves(message: Message, number: str) -> Any:
    if message.is_multipart() and message.get_content_type() != "message/rfc822":
        for index, each in enumerate(message.get_payload()):
            yield from _leaves(each, f"{number}.{index}".lstrip("."))  # type: ignore[arg-type]
    else:
        yield number, message


def _part(message: Message, number: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "partId": number,
        "mimeType": message.get_content_type(),
        "filename": message.get_filename() or "",
        "headers": _headers(message),
    }
    if message.is_multipart() and message.get_content_type() != "message/rfc822":
        parts = [_part(each, f"{number}.{index}".lstrip(".")) for index, each in enumerate(message.get_payload())]  # type: ignore[arg-type]
        return {**made, "body": {"size": 0}, "parts": parts}
    data = _content(message)
    if made["filename"] or message.get_content_maintype() != "text" or len(data) > 100_000:
        return {**made, "body": {"attachmentId": f"att-{number}", "size": len(data)}}
    with contextlib.suppress(LookupError, UnicodeDecodeError):  # as Gmail does, and leaves the headers as they were
        data = data.decode(message.get_content_charset("utf-8")).encode()
    return {**made, "body": {"size": len(data), "data": _b64(data)}}


class Drive:
    def __init__(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.exports: dict[tuple[str, str], bytes] = {}
        self._ids = (f"1File{number:04}" for number in itertools.count(1))

    def put(self, name: str, media_type: str = "text/plain", content: bytes | None = b"", **more: Any) -> str:
        id = next(self._ids)
        self.files[id] = {
            "kind": "drive#file",
            "id": id,
            "name": name,
            "mimeType": media_type,
            "parents": ["root"],
            "trashed": False,
            "modifiedTime": NOW,
            "webViewLink": f"https://drive.example/{id}",
            **more,
        }
        if content is not None:
            self._fill(id, content)
        return id

    def _fill(self, id: str, content: bytes) -> None:
        self.contents[id] = content
        if not self.files[id]["mimeType"].startswith(NATIVE):
            self.files[id]["size"] = str(len(content))

    def list(self, request: Any) -> Any:
        query = request.query.get("q", "")
        if "fullText" in query and "orderBy" in request.query:
            raise Problem(403, "forbidden", "Sorting is not supported for queries with fullText terms.")
        literal = r"'((?:[^'\\]|\\.)*)'"
        folder = re.search(rf"{literal} in parents", query)
        words = re.search(rf"contains {literal}", query)
        rest = re.sub(literal, "", query)
        if not re.fullmatch(
            r"( in parents and trashed = false)|(\(fullText contains  or name contains \) and trashed = false)", rest
        ):
            raise Problem(400, "invalid", f"Invalid Value: {query}")
        chosen = [each for each in self.files.values() if not each["trashed"]]
        if folder:
            chosen = [each for each in chosen if _plain(folder[1]) in each["parents"]]
        if words:
            wanted = _plain(words[1]).lower()
            chosen = [
                each
                for each in chosen
                if wanted in each["name"].lower() or wanted.encode() in self.contents.get(each["id"], b"").lower()
            ]
        return {"kind": "drive#fileList", **page(chosen, request.query, "pageSize", 100, 1000, "files")}

    def get(self, request: Any, id: str) -> Any:
        file = found(self.files, id, "file")
        if request.query.get("alt") == "media":
            if file["mimeType"].startswith(NATIVE):
                raise Problem(
                    403, "fileNotDownloadable", "Only files with binary content can be downloaded. Use Export."
                )
            return Raw(self.contents[id], file["mimeType"])
        return file

    def export(self, request: Any, id: str) -> Any:
        file = found(self.files, id, "file")
        wanted = request.query["mimeType"]
        if not file["mimeType"].startswith(NATIVE) or (id, wanted) not in self.exports:
            raise Problem(400, "badRequest", "The requested conversion is not supported.")
        return Raw(self.exports[id, wanted], wanted)

    def create(self, request: Any) -> Any:
        said = request.json
        return self.files[
            self.put(
                said.get("name", "Untitled"), said.get("mimeType", "application/octet-stream"), None, **_parents(said)
            )
        ]

    def upload(self, request: Any) -> Any:
        if request.query.get("uploadType") != "multipart":
            raise Problem(400, "badRequest", "uploadType")
        whole = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode() + request.body
        parts = email.message_from_bytes(whole).get_payload()
        assert isinstance(parts, list) and len(parts) == 2
        said = json.loads(_content(parts[0]))
        sent = parts[1].get_content_type()
        media_type = _converted(said.get("mimeType", sent), said.get("mimeType") or sent, sent)
        return self.files[self.put(said.get("name", "Untitled"), media_type, _content(parts[1]), **_parents(said))]

    def patch(self, request: Any, id: str) -> Any:
        file = found(self.files, id, "file")
        file.update(request.json)
        return file

    def replace(self, request: Any, id: str) -> Any:
        file = found(self.files, id, "file")
        file["mimeType"] = _converted(file["mimeType"], request.headers["content-type"])
        self._fill(id, request.body)
        return file

    def delete(self, request: Any, id: str) -> Any:
        found(self.files, id, "file")
        del self.files[id]
        return Nothing()


_IMPORTS = {
    ("document", "text/plain"),
    ("document", "text/markdown"),
    ("document", "application/msword"),
    ("spreadsheet", "text/csv"),
}


def _converted(known: str, wanted: str, sent: str | None = None) -> str:
    """The type of a file with new content: that of the content, but for documents of Google's own, which are made of it."""
    if not known.startswith(NATIVE):
        return wanted
    if (known.removeprefix(NATIVE), sent or wanted) not in _IMPORTS:
        raise Problem(400, "badRequest", "The requested conversion is not supported.")
    return known


def _parents(said: dict[str, Any]) -> dict[str, Any]:
    return {"parents": said["parents"]} if "parents" in said else {}


def _plain(literal: str) -> str:
    return re.sub(r"\\(.)", r"\1", literal)


class Calendars:
    zone = "Europe/Berlin"

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.told: list[str] = []
        self._ids = (f"event{number:04}" for number in itertools.count(1))

    def put(self, **said: Any) -> str:
        id = next(self._ids)
        self.events[id] = {
            "kind": "calendar#event",
            "id": id,
            "status": "confirmed",
            "htmlLink": f"https://calendar.example/{id}",
            "created": NOW,
            "updated": NOW,
            **said,
        }
        return id

    def calendars(self, request: Any) -> Any:
        items = [
            {
                "kind": "calendar#calendarListEntry",
                "id": "primary",
                "summary": "Ann",
                "primary": True,
                "accessRole": "owner",
                "timeZone": self.zone,
            },
            {
                "kind": "calendar#calendarListEntry",
                "id": "team@example.org",
                "summary": "Team",
                "accessRole": "reader",
                "timeZone": "UTC",
            },
        ]
        return {"kind": "calendar#calendarList", **page(items, request.query, "maxResults", 100, 250, "items")}

    def _check(self, calendar: str) -> None:
        if calendar not in ("primary", "team@example.org"):
            raise missing("calendar")

    def list(self, request: Any, calendar: str) -> Any:
        self._check(calendar)
        query = request.query
        if query.get("orderBy") == "startTime" and query.get("singleEvents") != "true":
            raise Problem(400, "badRequest", "The requested ordering is not available.")
        low = _instant({"dateTime": query["timeMin"]}, None) if "timeMin" in query else None
        high = _instant({"dateTime": query["timeMax"]}, None) if "timeMax" in query else None
        chosen = [
            each
            for each in self.events.values()
            if (low is None or _instant(each["end"], self.zone) > low)
            and (high is None or _instant(each["start"], self.zone) < high)
            and query.get("q", "").lower() in each.get("summary", "").lower()
        ]
        chosen.sort(key=lambda each: _instant(each["start"], self.zone))
        return {
            "kind": "calendar#events",
            "timeZone": self.zone,
            **page(chosen, query, "maxResults", 250, 2500, "items"),
        }

    def insert(self, request: Any, calendar: str) -> Any:
        self._check(calendar)
        said = request.json
        if "start" not in said or "end" not in said:
            raise Problem(400, "required", "Missing time.")
        if not _instant(said["start"], None) < _instant(said["end"], None):
            raise Problem(400, "timeRangeEmpty", "The specified time range is empty.")
        self.told.append(request.query.get("sendUpdates", "?"))
        return self.events[self.put(**said)]

    def patch(self, request: Any, calendar: str, id: str) -> Any:
        self._check(calendar)
        event = found(self.events, id)
        for name, value in request.json.items():
            if isinstance(value, dict):
                value = {key: each for key, each in {**event.get(name, {}), **value}.items() if each is not None}
            event[name] = value
        return event

    def delete(self, request: Any, calendar: str, id: str) -> Any:
        self._check(calendar)
        found(self.events, id)
        del self.events[id]
        return Nothing()


def _instant(said: dict[str, Any], zone: str | None) -> datetime:
    if said.get("date"):
        return datetime.combine(date.fromisoformat(said["date"]), time(), UTC)
    try:
        moment = datetime.fromisoformat(said["dateTime"])
    except (KeyError, ValueError):
        raise Problem(400, "badRequest", "Bad Request") from None
    if moment.tzinfo is None:
        zone = said.get("timeZone") or zone
        if zone is None:
            raise Problem(400, "required", "Missing time zone definition.")
        moment = moment.replace(tzinfo=ZoneInfo(zone))
    return moment


class Documents:
    def __init__(self) -> None:
        self.documents: dict[str, dict[str, str]] = {}
        self.bodies: dict[str, list[Any]] = {}
        """Of documents that are more than text."""
        self._ids = (f"1Doc{number:04}" for number in itertools.count(1))

    def put(self, title: str, text: str = "", body: list[Any] | None = None) -> str:
        id = next(self._ids)
        self.documents[id] = {"title": title, "text": text}
        if body is not None:
            self.bodies[id] = body
        return id

    def _whole(self, id: str, tabs: bool) -> Any:
        document = found(self.documents, id)
        about = {"documentId": id, "title": document["title"], "revisionId": "rev-1"}
        lines = (document["text"] + "\n").splitlines(keepends=True)
        content = self.bodies.get(id) or [
            {"paragraph": {"elements": [{"textRun": {"content": line}}]}} for line in lines
        ]
        if not tabs:
            return {**about, "body": {"content": content}}
        return {
            **about,
            "tabs": [
                {"tabProperties": {"tabId": "t.0", "title": "Tab 1"}, "documentTab": {"body": {"content": content}}}
            ],
        }

    def get(self, request: Any, id: str) -> Any:
        return self._whole(id, request.query.get("includeTabsContent") == "true")

    def create(self, request: Any) -> Any:
        return self._whole(self.put(request.json.get("title", "")), False)

    def update(self, request: Any, id: str) -> Any:
        document = found(self.documents, id)
        replies: list[Any] = []
        for each in request.json["requests"]:
            if "insertText" in each:
                said = each["insertText"]
                at = len(document["text"]) if "endOfSegmentLocation" in said else said["location"]["index"] - 1
                document["text"] = document["text"][:at] + said["text"] + document["text"][at:]
                replies.append({})
            else:
                said = each["replaceAllText"]
                flags = 0 if said["containsText"].get("matchCase") else re.IGNORECASE
                wanted = re.compile(re.escape(said["containsText"]["text"]), flags)
                document["text"], count = wanted.subn(lambda _, said=said: said["replaceText"], document["text"])
                replies.append({"replaceAllText": {"occurrencesChanged": count} if count else {}})
        return {"documentId": id, "replies": replies, "writeControl": {"requiredRevisionId": "rev-2"}}


class Sheets:
    def __init__(self) -> None:
        self.titles: dict[str, str] = {}
        self.cells: dict[str, dict[tuple[int, int], Any]] = {}
        self._ids = (f"1Sheet{number:04}" for number in itertools.count(1))

    def put(self, title: str, rows: list[list[Any]] = []) -> str:  # noqa: B006
        id = next(self._ids)
        self.titles[id] = title
        self.cells[id] = {(r, c): cell for r, row in enumerate(rows) for c, cell in enumerate(row)}
        return id

    def rows(self, id: str) -> list[list[Any]]:
        return self._cut(id, 0, 0, 999, 25)

    def _cut(self, id: str, top: int, left: int, bottom: int, right: int) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for r in range(top, bottom + 1):
            row = [self.cells[id].get((r, c), "") for c in range(left, right + 1)]
            while row and row[-1] == "":
                row.pop()
            rows.append(row)
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _range(self, id: str, text: str) -> tuple[int, int, int, int]:
        found(self.titles, id)
        match = re.fullmatch(r"(?:'?Sheet1'?!)?([A-Z])(\d+)(?::([A-Z])(\d+))?", text)
        if not match:
            if text in ("Sheet1", "'Sheet1'"):
                return 0, 0, 999, 25
            raise Problem(400, "badRequest", f"Unable to parse range: {text}")
        top, left = int(match[2]) - 1, ord(match[1]) - 65
        return top, left, int(match[4]) - 1 if match[4] else top, ord(match[3]) - 65 if match[3] else left

    def _named(self, top: int, left: int, rows: int, columns: int) -> str:
        last = f"{chr(64 + left + columns)}{top + rows}"
        return f"Sheet1!{chr(65 + left)}{top + 1}:{last}"

    def about(self, request: Any, id: str) -> Any:
        return {
            "spreadsheetId": id,
            "spreadsheetUrl": f"https://sheets.example/{id}",
            "properties": {"title": found(self.titles, id), "timeZone": "Europe/Berlin"},
            "sheets": [
                {
                    "properties": {
                        "sheetId": 0,
                        "title": "Sheet1",
                        "gridProperties": {"rowCount": 1000, "columnCount": 26},
                    }
                }
            ],
        }

    def get(self, request: Any, id: str, range: str) -> Any:
        place = self._range(id, range)
        values = self._cut(id, *place)
        return {
            "range": f"Sheet1!{range.split('!')[-1]}",
            "majorDimension": "ROWS",
            **({"values": values} if values else {}),
        }

    def _write(self, id: str, request: Any, top: int, left: int) -> dict[str, Any]:
        if request.query.get("valueInputOption") not in ("RAW", "USER_ENTERED"):
            raise Problem(400, "badRequest", "'valueInputOption' is required but not specified")
        values = request.json["values"]
        for r, row in enumerate(values):
            for c, cell in enumerate(row):
                if cell is not None:
                    self.cells[id][top + r, left + c] = cell
        columns = max(map(len, values), default=0)
        return {
            "spreadsheetId": id,
            "updatedRange": self._named(top, left, len(values), columns),
            "updatedRows": len(values),
            "updatedColumns": columns,
            "updatedCells": sum(map(len, values)),
        }

    def put_values(self, request: Any, id: str, range: str) -> Any:
        top, left, _, _ = self._range(id, range)
        return self._write(id, request, top, left)

    def append(self, request: Any, id: str, range: str) -> Any:
        top, left, _, _ = self._range(id, range)
        rows = len(self.rows(id))
        updates = self._write(id, request, max(rows, top), left)
        return {"spreadsheetId": id, "tableRange": self._named(top, left, rows, 1), "updates": updates}

    def clear(self, request: Any, id: str, range: str) -> Any:
        top, left, bottom, right = self._range(id, range)
        for r, c in list(self.cells[id]):
            if top <= r <= bottom and left <= c <= right:
                del self.cells[id][r, c]
        return {"spreadsheetId": id, "clearedRange": f"Sheet1!{range.split('!')[-1]}"}

    def create(self, request: Any) -> Any:
        return self.about(request, self.put(request.json["properties"]["title"]))


class Tasks:
    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self._ids = (f"task{number:04}" for number in itertools.count(1))

    def put(self, title: str, **more: Any) -> str:
        id = next(self._ids)
        self.tasks[id] = {
            "kind": "tasks#task",
            "id": id,
            "title": title,
            "status": "needsAction",
            "updated": NOW,
            "selfLink": f"https://tasks.example/{id}",
            **more,
        }
        return id

    def _check(self, list: str) -> None:
        if list not in ("@default", "list-1"):
            raise missing("list")

    def lists(self, request: Any) -> Any:
        items = [{"kind": "tasks#taskList", "id": "list-1", "title": "My Tasks", "updated": NOW}]
        return {"kind": "tasks#taskLists", **page(items, request.query, "maxResults", 1000, 1000, "items")}

    def list(self, request: Any, list: str) -> Any:
        self._check(list)
        everything = request.query.get("showCompleted", "true") == "true"
        chosen = [each for each in self.tasks.values() if everything or each["status"] != "completed"]
        return {"kind": "tasks#tasks", **page(chosen, request.query, "maxResults", 20, 100, "items")}

    def get(self, request: Any, list: str, id: str) -> Any:
        self._check(list)
        return found(self.tasks, id)

    def insert(self, request: Any, list: str) -> Any:
        self._check(list)
        said = request.json
        return self.tasks[self.put(said.pop("title", ""), **said)]

    def patch(self, request: Any, list: str, id: str) -> Any:
        self._check(list)
        task = found(self.tasks, id)
        task.update(request.json)
        if task["status"] == "completed":
            task["completed"] = NOW
        return {name: value for name, value in task.items() if value is not None}

    def delete(self, request: Any, list: str, id: str) -> Any:
        self._check(list)
        found(self.tasks, id)
        del self.tasks[id]
        return Nothing()
