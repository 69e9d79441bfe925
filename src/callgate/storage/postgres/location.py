"""Where a store on PostgreSQL lives, and how to get at it."""

from __future__ import annotations

import re
import urllib.parse

import msgspec

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")
_PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
POLLING = "none"
"""As `listen_url`: there is no direct connection, hints are looked for."""


class PostgresLocation(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    listen_url: str | None = None
    """A direct connection, where `url` leads to a pooler; `POLLING`: there is none."""
    schema: str = "callgate"
    connect_s: float = 5.0
    answer_s: float = 10.0
    """How long a statement may take before the database counts as unreachable."""
    silent_s: float = 30.0
    """A process that holds its lock, but has not been heard of for so long, counts as gone."""
    stopped_s: float = 7.0
    """The same where another process was heard of all the time: the database was not the cause."""
    grace_s: float = 15.0
    """After a restart or failover of the database: how long processes have to come back."""
    beat_s: float = 2.0
    readers: int = 2

    def __post_init__(self) -> None:
        if not _SCHEMA.match(self.schema):
            raise ValueError(f"{self.schema!r} is no name for a schema: use a-z, 0-9 and _")

    @property
    def is_pooled(self) -> bool:
        return self.listen_url is not None

    @property
    def direct_url(self) -> str | None:
        """Where sessions last: for locks and notifications."""
        return None if self.listen_url == POLLING else self.listen_url or self.url

    @property
    def place(self) -> str:
        """For people: without a password."""
        return redacted(self.url)


def redacted(url: str) -> str:
    """A connection string without its password and parameters."""
    if "://" not in url:
        return _PASSWORD.sub(r"\1***", url)
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # brackets that do not match
        return url.partition("://")[0] + "://***"
    user = f"{parts.username}@" if parts.username else ""
    where = parts.netloc.rpartition("@")[2]
    given = urllib.parse.parse_qs(parts.query)
    host = where or given.get("host", ["localhost"])[0]
    return f"{parts.scheme}://{user}{host}{parts.path}"
