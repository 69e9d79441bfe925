"""The store in one schema of a PostgreSQL database, shared by servers on many machines.

    loop:    commit() ---> pending ---> [writer thread] one transaction, one round trip for a batch
             read_*() ---> [reader threads, a connection each]
             wake()   ---> in this process at once; [listener thread] from other processes

`store` is the interface. `writer` commits, `rows` caches and loads rows for it, `saving` turns
changes into statements, and `wire` sends them. `reads` contains the queries and the pruning,
`connections` tracks live processes, `listener` passes hints and announces this process, and
`schema` creates the tables.

A batch is applied to cached rows. The transaction locks their sessions in a fixed order and checks
that none has changed since (`touch`); otherwise the batch is repeated.

This module needs no driver: it has the location of the store, and its limits.
"""

from __future__ import annotations

import re
import urllib.parse

import msgspec

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")
_PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
POLLING = "none"
"""Value of `listen_url` without a direct connection: changes are polled."""


class PostgresLocation(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    listen_url: str | None = None
    """A direct connection, if `url` is a pooler; `POLLING`: there is none."""
    schema: str = "callgate"
    connect_s: float = 5.0
    answer_s: float = 10.0
    """Time limit of a statement, after which the database counts as unreachable."""
    silent_s: float = 30.0
    """Seconds of silence after which a process counts as dead, although it holds its lock."""
    stopped_s: float = 7.0
    """The same if another process was not silent, so that the database was not the cause."""
    grace_s: float = 15.0
    """Seconds for processes to reconnect after a restart or failover of the database."""
    beat_s: float = 2.0
    readers: int = 2

    def __post_init__(self) -> None:
        if not _SCHEMA.match(self.schema):
            raise ValueError(f"{self.schema!r} is not a valid schema name: use a-z, 0-9 and _")

    @property
    def is_pooled(self) -> bool:
        return self.listen_url is not None

    @property
    def direct_url(self) -> str | None:
        """URL of a connection with its own session: for locks and notifications."""
        return None if self.listen_url == POLLING else self.listen_url or self.url

    @property
    def label(self) -> str:
        """Address for messages, without the password."""
        return redacted(self.url)


def redacted(url: str) -> str:
    """Return a connection string without password and parameters."""
    if "://" not in url:
        return _PASSWORD.sub(r"\1***", url)
    try:
        split_url = urllib.parse.urlsplit(url)
    except ValueError:  # unbalanced brackets
        return url.partition("://")[0] + "://***"
    user = f"{split_url.username}@" if split_url.username else ""
    where = split_url.netloc.rpartition("@")[2]
    given = urllib.parse.parse_qs(split_url.query)
    host = where or given.get("host", ["localhost"])[0]
    return f"{split_url.scheme}://{user}{host}{split_url.path}"
