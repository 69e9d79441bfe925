"""Which arguments of a call say where its effect goes. Pure.

Known names of parameters are the default; a tool may declare its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PEOPLE = {
    "to", "cc", "bcc", "recipient", "recipients", "email", "emails", "email_address", "address",
    "addresses", "attendee", "attendees", "participant", "participants", "invitee", "invitees",
    "guest", "guests", "user", "users", "user_id", "username", "member", "members", "phone",
    "phone_number"
}  # fmt: skip
_HOSTS = {
    "url", "urls", "uri", "link", "endpoint", "webhook", "webhook_url", "callback_url",
    "base_url", "host", "hosts", "hostname", "domain", "server", "remote", "repository", "repo"
}  # fmt: skip
_ROOMS = {
    "channel", "channels", "channel_id", "chat", "chat_id", "room", "thread", "thread_id",
    "group", "group_id", "topic", "queue"
}  # fmt: skip
_ACCOUNTS = frozenset(
    {"account", "account_id", "account_number", "iban", "bic", "payee", "beneficiary", "wallet"}
)
_PLACES = {
    "path", "paths", "file", "files", "filename", "file_path", "file_id", "directory",
    "destination", "destinations", "dest", "target", "targets", "output", "output_path", "bucket",
    "database", "table", "calendar", "calendar_id", "folder", "folder_id", "document_id",
    "spreadsheet_id", "message_id", "event_id"
}  # fmt: skip
_NAMES = frozenset(_PEOPLE | _HOSTS | _ROOMS | _ACCOUNTS | _PLACES)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[^/?#@\\\s]*@)?([a-z0-9.:\[\]_-]+)(?=[/?#]|\Z)")
"""Where not everybody would find the same host, the whole text is the destination."""
_MAILBOX = re.compile(r"<([^<>\s]+@[^<>\s]+)>\Z")
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")


def is_destination(parameter: str) -> bool:
    """Whether a parameter of this name says where an effect goes: `to`, `webhookUrl`."""
    return "_".join(_WORDS.findall(parameter)).lower() in _NAMES


def destinations(
    arguments: Mapping[str, Any], declared: tuple[str, ...] | None = None
) -> Iterator[tuple[str, str]]:
    """The destinations among arguments, each with the name of its parameter; of a list each part,
    of a URL scheme and host, of `Bob <bob@x.example>` the address, all in lower case.

    `declared`: the parameters that the tool says are its own; None: known names."""
    for name, value in arguments.items():
        if name in declared if declared is not None else is_destination(name):
            yield from ((name, text) for text in _texts(value))


def _parts(text: str) -> list[str]:
    return [text] if "://" in text else re.split(r"[,;]", text)


def _one(text: str) -> str:
    mailbox = _MAILBOX.search(text)
    return mailbox[1] if mailbox else text.strip()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        text = value.strip().casefold()
        url = _URL.match(text)
        parts = [f"{url[1]}://{url[2]}"] if url else _parts(text)
        yield from filter(None, map(_one, parts))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
