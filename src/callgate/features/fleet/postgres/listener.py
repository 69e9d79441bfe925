"""A thread that passes hints to and from other processes, and announces that this one is alive.

    writer --changed--> [pending] --NOTIFY, many at once--> other processes
    other processes --LISTEN--> hints
    every few seconds ---> a beat: others see this process, which sees if they marked it as dead

The thread has a separate, direct connection, which holds the lock of this process. If there is
only a pooler, it polls for changes ten times a second instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import psycopg

from callgate.core.stores import Lease, StoreError
from callgate.features.fleet.postgres import PostgresLocation, connections
from callgate.features.fleet.postgres.connections import TROUBLE, Connection, readable
from callgate.features.fleet.postgres.schema import DRIFT, FORMAT, migrate

POLL_S = 0.1
"""Polling interval without notifications."""
_RETRY_S = (0.05, 2.0)
_LARGEST = 7_900
"""Maximum number of bytes of a notification; the server refuses 8,000."""
_LOOK_BACK = 256
"""Overlap of two polls. Changes are numbered before they are committed, so a poll can miss one."""
_log = logging.getLogger("callgate.store")

Tell = Callable[[Mapping[str, int] | None], None]
"""Receives the changes, or None: anything may have changed. Called in this thread."""


class Listener:
    def __init__(
        self,
        location: PostgresLocation,
        owner: str,
        tell: Tell,
        taken_for_dead: Callable[[], None],
        lease: Lease,
    ) -> None:
        self._lease = lease
        self._location = location
        self._owner = owner
        self._tell = tell
        self._taken_for_dead = taken_for_dead
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pending: dict[str, int] = {}
        self._closed = False
        self._declared = threading.Event()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._last_touch: int | None = None
        self._second = _SecondLock(location, self._declare)
        self._previous: Connection | None = None

    @property
    def channel(self) -> str:
        return f"callgate_{self._location.schema}"

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-listener", daemon=True
            )
            self._thread.start()

    def wait_declared(self, limit_s: float) -> bool:
        """Wait until this process is announced to others."""
        self.start()
        return self._declared.wait(limit_s)

    def pass_on(self, changed: Mapping[str, int]) -> None:
        """Send changes to other processes soon. Callable from any thread."""
        with self._lock:
            first = not self._pending
            self._pending |= changed
        if first:
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"x")
        except BlockingIOError:  # it is already awake
            pass

    # Methods of the thread.

    def _run(self) -> None:
        try:
            self._serve_again_and_again()
        finally:
            self._second.close()
            self._let_go()

    def _serve_again_and_again(self) -> None:
        retry_s = 0.0
        while not self._closed:
            begin = time.monotonic()
            try:
                self._serve()
            except (*TROUBLE, StoreError) as error:
                _log.debug("the listener lost its connection: %s", error)
            if self._declared.is_set() and time.monotonic() - begin > POLL_S:
                retry_s = 0.0  # it worked until now: no pause
            self._declared.clear()
            if not self._closed:
                self._pause(retry_s)
                retry_s = min(max(retry_s * 2, _RETRY_S[0]), _RETRY_S[1])

    def _pause(self, limit_s: float) -> None:
        """Wait for work, at most for the time limit."""
        readable([self._wake_in], limit_s)
        self._drain()

    def _serve(self) -> None:
        db = Connection(self._location, self._location.direct_url)
        try:
            migrate(db)
            self._declare(db)
            self._declared.set()
            self._let_go()
            if self._location.direct_url is None:
                self._look_for_changes(db)
            else:
                self._listen(db)
            connections.withdraw(db, self._owner)
        except BaseException:
            if self._declared.is_set():
                self._previous = db
            else:
                db.close()
            raise
        db.close()

    def _let_go(self) -> None:
        """Close the previous connection.

        Its lock may still exist on the server. An earlier close while the network is down would
        release the lock when the network returns, maybe before there is a new one.
        """
        if self._previous is not None:
            self._previous.close()
            self._previous = None

    def _declare(self, db: Connection) -> None:
        at = Lease.now()
        if connections.declare(db, self._owner, FORMAT):
            self._lease.renew(at)
        else:
            self._taken_for_dead()

    def _listen(self, db: Connection) -> None:
        heard: dict[str, int] = {}
        db.psycopg.add_notify_handler(lambda notice: heard.update(_read(notice.payload)))
        db.run(f'listen "{self.channel}"')
        self._tell(None)  # waiting readers may have missed a change
        self._second.renew()
        beat_at = time.monotonic() + self._location.beat_s
        while not self._closed:
            awake = [db.psycopg.fileno(), self._wake_in, *self._second.descriptors()]
            found = readable(awake, beat_at - time.monotonic())
            if self._wake_in in found:
                self._drain()
            self._send(db)
            if found:
                _receive(db.psycopg, heard)
                self._second.renew()
            if heard:
                changed, heard_now = dict(heard), heard
                heard_now.clear()
                self._tell(changed)
            if time.monotonic() >= beat_at:
                self._beat(db)
                self._second.renew()
                beat_at = time.monotonic() + self._location.beat_s

    def _look_for_changes(self, db: Connection) -> None:
        self._tell(None)
        beat_at = time.monotonic() + self._location.beat_s
        while not self._closed:
            self._pause(POLL_S)
            with self._lock:
                self._pending.clear()
            self._tell(self._changes(db))
            if time.monotonic() >= beat_at:
                self._beat(db)
                beat_at = time.monotonic() + self._location.beat_s

    def _changes(self, db: Connection) -> dict[str, int]:
        if self._last_touch is None:
            [(self._last_touch,)] = db.fetch("select last_value from cg.touches")
        after = self._last_touch - _LOOK_BACK
        changed = dict(
            db.fetch(
                "select id, touch from cg.sessions where touch > %s and listed > %s"
                " union all select '@' || kind, touch from cg.entry_kinds where touch > %s",
                *(after, after - DRIFT, after),
            )
        )
        self._last_touch = max([self._last_touch, *changed.values()])
        return changed

    def _beat(self, db: Connection) -> None:
        at = Lease.now()
        if connections.beat(db, self._owner):
            self._lease.renew(at)
        else:
            migrate(db)  # raises if the reason is a newer format of the tables
            self._taken_for_dead()

    def _send(self, db: Connection) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        try:
            for payload in _payloads(pending):
                db.run("select pg_notify(%s, %s)", self.channel, payload)
        except TROUBLE:
            with self._lock:  # send again on the next connection; hints may be repeated
                self._pending = pending | self._pending
            raise

    def _drain(self) -> None:
        try:
            while os.read(self._wake_in, 4_096):
                pass
        except BlockingIOError:
            pass


class _SecondLock:
    """A second direct connection with the lock of this process, in case the first one is lost.

    If the writer's connection is direct, it has the lock too, and this class does nothing.
    """

    def __init__(self, location: PostgresLocation, declare: Callable[[Connection], None]) -> None:
        self._location = location
        self._declare = declare
        self._db: Connection | None = None

    def descriptors(self) -> list[int]:
        return [] if self._db is None else [self._db.psycopg.fileno()]

    def renew(self) -> None:
        """Open the connection again if it has ended."""
        if not self._location.is_pooled or (self._db is not None and not self._db.has_ended()):
            return
        self.close()
        try:
            self._connect()
        except TROUBLE as error:  # the first connection suffices until the next beat
            _log.debug("no second direct connection: %s", error)

    def _connect(self) -> None:
        db = Connection(self._location, self._location.direct_url)
        try:
            self._declare(db)
        except BaseException:
            db.close()
            raise
        self._db = db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _receive(connection: psycopg.Connection, heard: dict[str, int]) -> None:
    connection.pgconn.consume_input()
    while (notice := connection.pgconn.notifies()) is not None:
        heard |= _read(notice.extra.decode())


def _payloads(changed: Mapping[str, int]) -> Iterator[str]:
    """Yield notifications with lines `number name`, each within the size limit."""
    lines: list[str] = []
    size = 0
    for name, number in changed.items():
        line = f"{number} {name}"
        if "\n" in name or len(line) > _LARGEST // 4:
            continue  # an unusual name: its readers poll
        if size + len(line.encode()) + 1 > _LARGEST:
            yield "\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line.encode()) + 1
    if lines:
        yield "\n".join(lines)


def _read(payload: str) -> dict[str, int]:
    changed: dict[str, int] = {}
    for line in payload.split("\n"):
        number, _, name = line.partition(" ")
        if number.isdecimal() and name:
            changed[name] = int(number)
    return changed
