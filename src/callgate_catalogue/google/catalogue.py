"""Table of the Google tools. Light to import; nothing here makes a request.

Each row names its function as `module.function` of this package. Any one of the scopes of a row is
sufficient; a login requests the first, which is the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from callgate import Capability, Label, SideEffects, ToolDefinition
from callgate.packs.tools import ToolKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.packs.tools import Load

READ = frozenset({Capability.READ_ONLY, Capability.ACCESSES_NETWORK})
SAVE = frozenset({Capability.WRITES_FILES, Capability.ACCESSES_NETWORK})
CHANGE = frozenset({Capability.MUTATES_EXTERNAL, Capability.ACCESSES_NETWORK})
DESTROY = CHANGE | {Capability.DESTRUCTIVE}

Schema = dict[str, Any]

_MAIL = ("gmail.readonly", "gmail.modify")
_SEND = ("gmail.send", "gmail.compose", "gmail.modify")
_FILES = ("drive.readonly", "drive")
_FILE_LIST = ("drive.metadata.readonly", "drive.readonly", "drive.metadata", "drive", "drive.file")
_FILE = ("drive.file", "drive")
_CALENDARS = ("calendar.calendarlist.readonly", "calendar.readonly", "calendar")
_EVENTS = ("calendar.events.readonly", "calendar.events", "calendar.readonly", "calendar")
_EVENT = ("calendar.events", "calendar")
_DOCUMENTS = ("documents.readonly", "documents", "drive.readonly", "drive")
_DOCUMENT = ("documents", "drive")
_SHEETS = ("spreadsheets.readonly", "spreadsheets", "drive.readonly", "drive")
_SHEET = ("spreadsheets", "drive")
_TASKS = ("tasks.readonly", "tasks")
_TASK = ("tasks",)

SERVICES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gmail": (("gmail.readonly",), ("gmail.readonly", "gmail.send")),
    "drive": (("drive.readonly",), ("drive.readonly", "drive.file")),
    "calendar": (
        ("calendar.calendarlist.readonly", "calendar.events.readonly"),
        ("calendar.calendarlist.readonly", "calendar.events"),
    ),
    "docs": (("documents.readonly",), ("documents",)),
    "sheets": (("spreadsheets.readonly",), ("spreadsheets",)),
    "tasks": (("tasks.readonly",), ("tasks",)),
}
"""Scopes of each service: for the read-only tools, and for all tools."""


class Spec(NamedTuple):
    definition: ToolDefinition
    function: Load
    scopes: tuple[str, ...]
    preview: Load | None = None

    @property
    def writes(self) -> bool:
        """Whether the tool changes something at Google."""
        return Capability.MUTATES_EXTERNAL in self.definition.capabilities


_ACCOUNT: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "One of the accounts that are logged in; otherwise the usual one.",
}


def _text(description: str = "", **more: Any) -> Schema:
    described = {"description": description} if description else {}
    return {"type": "string", **described, **more}


def _id(description: str = "") -> Schema:
    return _text(description, minLength=1)


def _most(largest: int, usual: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": largest, "default": usual}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": _text(minLength=1), "description": description}


def _people(description: str) -> Schema:
    return {
        "type": ["string", "array"],
        "items": _text(minLength=1),
        "minLength": 1,
        "minItems": 1,
        "description": description,
    }


_CALENDAR = _id("Its id; primary is the account's own.") | {"default": "primary"}
_LIST = _id("Its id; @default is the usual list.") | {"default": "@default"}
_MOMENT = (
    "2026-01-31T12:00:00+01:00; or 2026-01-31T12:00:00 in timeZone; or 2026-01-31 for whole days"
)
_ZONE = _id("Such as Europe/Berlin; default: the calendar's zone.")
_RANGE = _id("Cells in A1 notation, such as Sheet1!A1:C10.")
_CELL: Schema = {"type": ["string", "number", "boolean", "null"]}
_VALUES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "items": _CELL},
    "description": "Rows of cells.",
}
_INPUT_OPTION = _text(
    "USER_ENTERED reads =formulas and dates as if typed; RAW keeps them as text.",
    enum=["USER_ENTERED", "RAW"],
    default="USER_ENTERED",
)
_RENDER_OPTION = _text(
    "FORMATTED_VALUE as displayed; UNFORMATTED_VALUE as numbers; FORMULA as typed.",
    enum=["FORMATTED_VALUE", "UNFORMATTED_VALUE", "FORMULA"],
    default="FORMATTED_VALUE",
)
_PATH = _id("In the workspace.")
_ATTENDEES = _texts("Mail addresses.")
_UPDATES = _text(
    "Recipients of a notification by mail.", enum=["all", "externalOnly", "none"], default="none"
)
_DUE = _text("A day, such as 2026-01-31.", minLength=1)
_MIME = _text("Default: text/plain, or by the name of the file.", minLength=3)

_DESTINATIONS = frozenset(
    {"to", "cc", "bcc", "attendees", "fileId", "folderId", "documentId", "spreadsheetId"}
    | {"eventId", "calendarId", "taskListId", "taskId"}
)
"""Parameters that name the recipients or the target of a change."""


def _row(
    name: str,
    description: str,
    capabilities: frozenset[Capability],
    kind: ToolKind,
    function: str,
    scopes: tuple[str, ...],
    properties: Mapping[str, Schema] = {},
    *required: str,
    paths: tuple[str, ...] = (),
    aliases: Mapping[str, str] = {},
    preview: str | None = None,
) -> Spec:
    schema: Schema = {"type": "object", "properties": {**properties, "account": _ACCOUNT}}
    if required:
        schema["required"] = list(required)
    effect = SideEffects.READ
    if Capability.MUTATES_EXTERNAL in capabilities:
        effect = SideEffects.NETWORK
    elif Capability.WRITES_FILES in capabilities:
        effect = SideEffects.WRITE
    destinations = tuple(each for each in properties if each in _DESTINATIONS)
    definition = ToolDefinition(
        name=name,
        description=description,
        input_schema=schema,
        side_effects=effect,
        capabilities=capabilities,
        requires_workspace=bool(paths),
        path_params=paths,
        destination_params=destinations if effect is SideEffects.NETWORK else (),
        output_labels=frozenset({Label.PRIVATE, Label.UNTRUSTED}),
        kind=kind,
        argument_aliases=aliases,
        source="builtin",
    )
    load = partial(_function, function)
    return Spec(definition, load, scopes, None if preview is None else partial(_function, preview))


def _function(name: str) -> Callable[..., Any]:
    """Import the function from `module.function` of this package."""
    module, _, function = name.partition(".")
    found: Callable[..., Any] = getattr(_module(module), function)
    return found


def _module(name: str) -> ModuleType:
    match name:
        case "calendar":
            from callgate_catalogue.google import calendar  # lazy: with the first call  # noqa: PLC0415

            return calendar
        case "docs":
            from callgate_catalogue.google import docs  # lazy: with the first call  # noqa: PLC0415

            return docs
        case "drive":
            from callgate_catalogue.google import drive  # lazy: with the first call  # noqa: PLC0415

            return drive
        case "gmail":
            from callgate_catalogue.google import gmail  # lazy: with the first call  # noqa: PLC0415

            return gmail
    raise ValueError(name)


def _gmail() -> Iterator[Spec]:
    yield _row(
        "gmail_list",
        "List the newest mails: id, date, sender, subject, beginning.",
        READ,
        "fetch",
        "gmail.list_messages",
        _MAIL,
        {
            "maxResults": _most(500, 10),
            "labelIds": _texts("Only mails with all of these.") | {"default": ["INBOX"]},
        },
    )
    yield _row(
        "gmail_read",
        "Read a mail: its headers, its text, and its attachments.",
        READ,
        "fetch",
        "gmail.read_message",
        _MAIL,
        {"messageId": _id("Id from gmail_list or gmail_search.")},
        "messageId",
    )
    yield _row(
        "gmail_save_attachment",
        "Save an attachment of a mail in the workspace.",
        SAVE,
        "fetch",
        "gmail.save_attachment",
        _MAIL,
        {
            "messageId": _id(),
            "attachment": _id("The name of the file, or its number in the list, from 1."),
            "path": _PATH,
        },
        "messageId",
        "attachment",
        "path",
        paths=("path",),
    )
    yield _row(
        "gmail_send",
        "Send a mail.",
        DESTROY,
        "other",
        "gmail.send_message",
        _SEND,
        {
            "to": _people("Addresses: Ann <ann@example.org>, bob@example.org"),
            "subject": _text(),
            "body": _text("The text."),
            "cc": _people("Addresses."),
            "bcc": _people("Addresses."),
            "html": _text("The same as HTML, for readers that prefer it."),
            "attachments": _texts("Files of the workspace."),
            "replyToMessageId": _id("The mail that this one answers, in its thread."),
        },
        "to",
        "subject",
        "body",
        paths=("attachments",),
        preview="gmail.preview_send",
    )
    yield _row(
        "gmail_search",
        "Search mails in Gmail's own words: from:ann is:unread newer_than:7d.",
        READ,
        "search",
        "gmail.search_messages",
        _MAIL,
        {"query": _id("As in Gmail's search field."), "maxResults": _most(500, 10)},
        "query",
    )


def _drive() -> Iterator[Spec]:
    yield _row(
        "drive_list",
        "List the files of a folder in Google Drive, the newest first.",
        READ,
        "fetch",
        "drive.list_files",
        _FILE_LIST,
        {
            "folderId": _id("root is the account's own top folder.") | {"default": "root"},
            "maxResults": _most(1000, 20),
        },
    )
    yield _row(
        "drive_read",
        "Read a file in Google Drive: text as it is, documents as Markdown, sheets as CSV, the"
        " text of a PDF, pictures as pictures. For others use drive_download.",
        READ,
        "fetch",
        "drive.read_file",
        _FILES,
        {"fileId": _id()},
        "fileId",
    )
    yield _row(
        "drive_download",
        "Save a file of Google Drive into the workspace.",
        SAVE,
        "fetch",
        "drive.download_file",
        _FILES,
        {
            "fileId": _id(),
            "path": _PATH,
            "mimeType": _text("For Google's own documents: what to save them as.", minLength=3),
        },
        "fileId",
        "path",
        paths=("path",),
    )
    yield _row(
        "drive_create",
        "Create a file in Google Drive, from a text or a file of the workspace.",
        CHANGE,
        "other",
        "drive.create_file",
        _FILE,
        {
            "name": _id(),
            "content": _text("The text of the file."),
            "mimeType": _MIME,
            "path": _text("A file of the workspace, instead of content.", minLength=1),
            "folderId": _id("Where; default: the top folder."),
        },
        "name",
        paths=("path",),
    )
    yield _row(
        "drive_update",
        "Replace the content of a file in Google Drive, or its name.",
        CHANGE,
        "edit",
        "drive.update_file",
        _FILE,
        {
            "fileId": _id(),
            "content": _text("The whole new text."),
            "path": _text("A file of the workspace, instead of content.", minLength=1),
            "mimeType": _text("Of the new content; default: as it is.", minLength=3),
            "name": _id("A new name."),
        },
        "fileId",
        paths=("path",),
    )
    yield _row(
        "drive_delete",
        "Move a file of Google Drive to the trash, or delete it permanently.",
        DESTROY,
        "delete",
        "drive.delete_file",
        _FILE,
        {
            "fileId": _id(),
            "permanent": {
                "type": "boolean",
                "default": False,
                "description": "Delete it permanently: it cannot be restored.",
            },
        },
        "fileId",
        preview="drive.preview_delete",
    )
    yield _row(
        "drive_search",
        "Search the names and texts of the files in Google Drive.",
        READ,
        "search",
        "drive.search_files",
        _FILE_LIST,
        {"query": _id("Words to look for."), "maxResults": _most(1000, 20)},
        "query",
    )


def _calendar() -> Iterator[Spec]:
    event = {
        "description": _text(),
        "location": _text(),
        "attendees": _ATTENDEES,
        "timeZone": _ZONE,
        "sendUpdates": _UPDATES,
        "calendarId": _CALENDAR,
    }
    yield _row(
        "calendar_list",
        "List the calendars of the account.",
        READ,
        "fetch",
        "calendar.list_calendars",
        _CALENDARS,
    )
    yield _row(
        "calendar_events",
        "List events in order of time; without timeMin and timeMax from now on.",
        READ,
        "fetch",
        "calendar.list_events",
        _EVENTS,
        {
            "calendarId": _CALENDAR,
            "timeMin": _text(f"Only what ends after it: {_MOMENT}.", minLength=1),
            "timeMax": _text("Only what starts before it.", minLength=1),
            "timeZone": _ZONE,
            "query": _id("Words to look for."),
            "maxResults": _most(2500, 20),
        },
    )
    yield _row(
        "calendar_create",
        "Create an event.",
        CHANGE,
        "other",
        "calendar.create_event",
        _EVENT,
        {
            "summary": _id("The title."),
            "start": _text(_MOMENT + ".", minLength=1),
            "end": _text("The same; of whole days the day after the last.", minLength=1),
            **event,
        },
        "summary",
        "start",
        "end",
    )
    yield _row(
        "calendar_update",
        "Change fields of an event; the others stay.",
        CHANGE,
        "edit",
        "calendar.update_event",
        _EVENT,
        {
            "eventId": _id(),
            "summary": _id("The title."),
            "start": _text(_MOMENT + ".", minLength=1),
            "end": _text(minLength=1),
            **event,
        },
        "eventId",
    )
    yield _row(
        "calendar_delete",
        "Delete an event.",
        DESTROY,
        "delete",
        "calendar.delete_event",
        _EVENT,
        {"eventId": _id(), "calendarId": _CALENDAR, "sendUpdates": _UPDATES},
        "eventId",
    )


def _docs() -> Iterator[Spec]:
    yield _row(
        "docs_read",
        "Read a Google document as Markdown.",
        READ,
        "fetch",
        "docs.read_document",
        _DOCUMENTS,
        {"documentId": _id()},
        "documentId",
    )
    yield _row(
        "docs_create",
        "Create a Google document.",
        CHANGE,
        "other",
        "docs.create_document",
        _DOCUMENT,
        {"title": _id(), "text": _text()},
        "title",
        aliases={"content": "text"},
    )
    yield _row(
        "docs_append",
        "Add text to the end of a Google document.",
        CHANGE,
        "edit",
        "docs.append_text",
        _DOCUMENT,
        {"documentId": _id(), "text": _text(minLength=1)},
        "documentId",
        "text",
        aliases={"content": "text"},
    )
    yield _row(
        "docs_replace",
        "Replace a text everywhere in a Google document.",
        CHANGE,
        "edit",
        "docs.replace_text",
        _DOCUMENT,
        {
            "documentId": _id(),
            "findText": _id(),
            "replaceText": _text(),
            "matchCase": {"type": "boolean", "default": True},
        },
        "documentId",
        "findText",
        "replaceText",
        aliases={
            "find": "findText",
            "oldText": "findText",
            "replace": "replaceText",
            "newText": "replaceText",
        },
    )


def _sheets() -> Iterator[Spec]:
    sheet = {"spreadsheetId": _id(), "range": _RANGE}
    read = {**sheet, "valueRenderOption": _RENDER_OPTION}
    written = {**sheet, "values": _VALUES, "valueInputOption": _INPUT_OPTION}
    yield _row(
        "sheets_read",
        "Read cells of a spreadsheet; without a range, which sheets it has.",
        READ,
        "fetch",
        "docs.read_values",
        _SHEETS,
        read,
        "spreadsheetId",
    )
    yield _row(
        "sheets_write",
        "Write cells of a spreadsheet, replacing their values.",
        CHANGE,
        "edit",
        "docs.write_values",
        _SHEET,
        written,
        "spreadsheetId",
        "range",
        "values",
    )
    yield _row(
        "sheets_append",
        "Add rows below the table in a spreadsheet.",
        CHANGE,
        "edit",
        "docs.append_values",
        _SHEET,
        written,
        "spreadsheetId",
        "range",
        "values",
    )
    yield _row(
        "sheets_create",
        "Create a spreadsheet.",
        CHANGE,
        "other",
        "docs.create_spreadsheet",
        _SHEET,
        {"title": _id()},
        "title",
    )
    yield _row(
        "sheets_clear",
        "Empty cells of a spreadsheet; their format stays.",
        DESTROY,
        "delete",
        "docs.clear_values",
        _SHEET,
        sheet,
        "spreadsheetId",
        "range",
    )


def _tasks() -> Iterator[Spec]:
    one = {"taskListId": _LIST, "taskId": _id()}
    fields = {"title": _id(), "notes": _text(), "due": _DUE}
    status = _text(enum=["needsAction", "completed"])
    yield _row(
        "tasks_list",
        "List the tasks of a list, and which lists there are.",
        READ,
        "fetch",
        "calendar.list_tasks",
        _TASKS,
        {
            "taskListId": _LIST,
            "showCompleted": {"type": "boolean", "default": False},
            "maxResults": _most(1000, 100),
        },
    )
    yield _row(
        "tasks_get", "Read one task.", READ, "fetch", "calendar.get_task", _TASKS, one, "taskId"
    )
    yield _row(
        "tasks_create",
        "Create a task.",
        CHANGE,
        "other",
        "calendar.create_task",
        _TASK,
        {"taskListId": _LIST, **fields},
        "title",
    )
    yield _row(
        "tasks_update",
        "Change fields of a task; the others stay.",
        CHANGE,
        "edit",
        "calendar.update_task",
        _TASK,
        {
            **one,
            **fields,
            "status": status,
            "updates": {
                "type": "object",
                "properties": {**fields, "status": status},
                "description": "The same four, together.",
            },
        },
        "taskId",
    )
    yield _row(
        "tasks_complete",
        "Mark a task as done.",
        CHANGE,
        "edit",
        "calendar.complete_task",
        _TASK,
        one,
        "taskId",
    )
    yield _row(
        "tasks_delete",
        "Delete a task.",
        DESTROY,
        "delete",
        "calendar.delete_task",
        _TASK,
        one,
        "taskId",
    )


CATALOGUE: tuple[Spec, ...] = (
    *_gmail(),
    *_drive(),
    *_calendar(),
    *_docs(),
    *_sheets(),
    *_tasks(),
)
