"""Word of what other processes have committed, for as long as someone here waits for it.

SQLite tells nobody that a file has changed, so this looks: at one number, which costs a few
microseconds, and only while someone waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from callgate.storage.sqlite.files import Location, lasting, open_reader
from callgate.storage.sqlite.tables import select

LOOK_S = 0.03
"""How often: an answer given in another process must get here within a tenth of a second."""

_LAST_TOUCH = """
select max(
    (select ifnull(max(touch), 0) from sessions),
    (select ifnull(max(touch), 0) from entry_kinds)
)
"""
_NEWER = (
    "select id, touch from sessions where touch > ?"
    " union all select '@' || kind, touch from entry_kinds where touch > ?"
)

Tell = Callable[[dict[str, int] | None], None]
"""Takes the sessions that changed, or None: any may have. Called in the watcher's thread."""


class Watcher:
    def __init__(self, location: Location, tell: Tell) -> None:
        self._location = location
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._db: apsw.Connection | None = None
        self._version = 0
        self._touch: int | None = None

    def want(self, wanted: bool) -> None:
        """Someone begins to wait, or nobody waits any more."""
        if not wanted:
            self._wanted.clear()
            return
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-watcher", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            if not self._wanted.is_set():
                self._touch = None  # what happens from here on is not followed
                self._wanted.wait()
            try:
                self._look()
            except apsw.Error:  # a disk in trouble: those who read are told, we try again
                self._disconnect()
        self._disconnect()

    def _look(self) -> None:
        if self._db is None:
            self._db = open_reader(self._location)
            self._touch = None
            if not lasting(self._db):  # there is no file yet, or none that changes
                self._disconnect()
                return
        version = self._db.pragma("data_version")
        if self._touch is None:
            # Whoever began to wait has read by now what came before; but not, perhaps,
            # what came between that and this first look.
            [(touch,)] = select(self._db, _LAST_TOUCH)
            self._version, self._touch = version, touch
            self._tell(None)
        elif version != self._version:
            changed: dict[str, int] = dict(select(self._db, _NEWER, (self._touch, self._touch)))
            self._version = version
            self._touch = max(changed.values(), default=self._touch)
            self._tell(changed)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close(force=True)
