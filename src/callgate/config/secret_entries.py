"""Secrets as entries of a store that several servers share: encrypted, with one winner per version.

    reader -> mirror in memory <- thread with a separate loop <- entries(kind), wake(kind) writer ->
    thread: change -> PutEntry(expected version) -> applied, or repeated from the new state

The callers are synchronous, in any thread and often within an event loop; a store
is asynchronous, and belongs to one loop. So a thread opens the store at the first use, and
later reads do not wait for it. The mirror follows the store's hints: a read may be as old as a late
hint, a write never is.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from callgate.config.sealing import CLAIM_S, Change, SecretsError
from callgate.core.ids import ulid
from callgate.core.ops import DropEntry, EntryReceipt, PutEntry
from callgate.core.stored import SharedEntry, entries_key
from callgate.core.stores import POLL_S, Hint, Store, StoreError

T = TypeVar("T")
KIND = "secret"
CLAIMS = "secret-claim"
_FREE = '""'
WAIT_S = 30.0
"""Maximum wait for the store, before the caller gets an error."""
RETRY_S = 5.0
"""Minimum time between attempts to open the store."""
_MOST_ATTEMPTS = 100
_log = logging.getLogger("callgate")


class SharedEntries:
    """Implements `SecretStore`."""

    always_sealed: ClassVar[bool] = True

    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        """`open_store` runs in the event loop of the thread, which owns the store."""
        self._open_store = open_store
        self._lock = threading.Lock()
        self._thread: _StoreThread | None = None
        self._failed = (-RETRY_S, "")
        """Time and reason of the last failed attempt to open the store."""

    def names(self) -> Sequence[str]:
        return sorted(self._mirror())

    def get(self, name: str) -> str | None:
        entry = self._mirror().get(name)
        return None if entry is None else text_of(entry)

    def mark(self, name: str) -> object:
        entry = self._mirror().get(name)
        return None if entry is None else entry.version

    def refresh(self) -> None:
        """Load the present state of the store, without waiting for a hint."""
        thread = self._running()
        thread.run(thread.load())

    def update(self, name: str, change: Change) -> None:
        thread = self._running()
        thread.run(thread.update(name, change))

    def claim(self, name: str) -> None:
        thread = self._running()
        thread.run(thread.claim(name))

    def release(self, name: str) -> None:
        thread = self._running()
        thread.run(thread.release(name))

    def drop(self, name: str) -> None:
        thread = self._running()
        thread.run(thread.drop(name))

    def where(self, name: str) -> str:
        return f"{name} in the shared store"

    def close(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._thread.stop()
                self._thread = None

    def _mirror(self) -> Mapping[str, SharedEntry]:
        return self._running().mirror

    def _running(self) -> _StoreThread:
        """Return the thread once it has read the store.

        After a failed attempt to open the store, calls fail immediately for a while instead of
        waiting.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            at, problem = self._failed
            if time.monotonic() - at < RETRY_S:
                raise SecretsError(problem)
            thread = _StoreThread(self._open_store)
            try:
                thread.begin()
            except SecretsError as error:
                self._failed = time.monotonic(), str(error)
                raise
            self._thread = thread
            return thread


class _StoreThread:
    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._open_store = open_store
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="callgate-secrets", daemon=True)
        self.mirror: Mapping[str, SharedEntry] = {}
        self._claims: dict[str, int] = {}
        """Claims of this process, with their versions."""

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self) -> None:
        """Start, and wait until the store was read."""
        self._thread.start()
        _at_exit(self.stop)
        try:
            self._ready.result(WAIT_S)
        except TimeoutError:
            self.stop()
            raise _silent() from None
        except Exception as error:  # the driver of the store is foreign code
            self.stop()
            raise _unusable(error) from None

    def stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(WAIT_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the thread, and wait for it."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(WAIT_S)
        except TimeoutError:
            future.cancel()
            raise _silent() from None
        except StoreError as error:
            raise _unusable(error) from None

    async def load(self) -> None:
        assert self._store is not None
        entries = await self._store.entries(KIND)
        self.mirror = {entry.name: entry for entry in entries}

    async def update(self, name: str, change: Change) -> None:
        """Compare-and-set by version, repeated until no concurrent write intervenes."""
        assert self._store is not None
        entry = self.mirror.get(name)
        for _ in range(_MOST_ATTEMPTS):
            known = None if entry is None else text_of(entry)
            text = change(known)
            if text == known:
                return
            version = 0 if entry is None else entry.version
            receipt: EntryReceipt
            if text is None:
                op = DropEntry(kind=KIND, name=name, expected=version)
                (receipt,) = await self._store.commit(op)
            else:
                value = msgspec.json.encode(text).decode()
                put = PutEntry(kind=KIND, name=name, value=value, expected=version)
                (receipt,) = await self._store.commit(put)
            entry = receipt.entry
            self._note(name, entry)
            if receipt.applied:
                return
        raise SecretsError(f"{name} in the shared store is constantly changed by other servers")

    async def drop(self, name: str) -> None:
        assert self._store is not None
        await self._store.commit(DropEntry(kind=KIND, name=name))
        self._note(name, None)

    async def claim(self, name: str) -> None:
        """Claim with compare-and-set on an entry next to the secret.

        Takes over a claim whose owner is dead, or that is unchanged for too long by the local
        clock.
        """
        store = self._store
        assert store is not None
        owner = msgspec.json.encode(f"{store.owner} {ulid()}").decode()
        expected = seen = 0
        until = self._time() + CLAIM_S
        with store.wake(entries_key(CLAIMS)) as hint:
            while True:
                put = PutEntry(kind=CLAIMS, name=name, value=owner, expected=expected)
                (receipt,) = await store.commit(put)
                entry = receipt.entry
                assert entry is not None  # it is never dropped
                if receipt.applied:
                    self._claims[name] = entry.version
                    return
                if entry.version != seen:
                    seen, until = entry.version, self._time() + CLAIM_S
                left = until - self._time()
                if left <= 0 or entry.value == _FREE or not await store.alive(_owner(entry)):
                    expected = entry.version
                else:
                    expected = 0  # fails, and returns the present entry
                    await hint.wait(min(left, POLL_S))

    async def release(self, name: str) -> None:
        """Release the claim. The entry remains, so that its version is never reused."""
        assert self._store is not None
        version = self._claims.pop(name, None)
        if version is not None:
            await self._store.commit(
                PutEntry(kind=CLAIMS, name=name, value=_FREE, expected=version)
            )

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _note(self, name: str, entry: SharedEntry | None) -> None:
        others = {each: self.mirror[each] for each in self.mirror if each != name}
        self.mirror = others if entry is None else {**others, name: entry}

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except asyncio.CancelledError:
            pass  # the thread was stopped
        except BaseException as error:  # raised by `begin`
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                _log.error("secrets of the shared store are no longer updated: %s", error)

    async def _follow(self) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        store = await self._open_store()
        try:
            self._store = store
            with store.wake(entries_key(KIND)) as hint:
                await self.load()
                self._ready.set_result(None)
                await self._reload(hint)
        finally:
            await store.close()

    async def _reload(self, hint: Hint) -> None:
        """Load again after each hint, and after a while without one.

        While the store is unreachable, the last state is used.
        """
        reachable = True
        while True:
            await hint.wait()
            try:
                await self.load()
            except StoreError as error:
                if reachable:
                    _log.warning("the secrets of the shared store are not current: %s", error)
                reachable = False
            else:
                reachable = True


def _at_exit(stop: Callable[[], None]) -> None:
    """Close the store at exit while its threads still run. Idempotent.

    `atexit` runs after their end if the interpreter exits normally, so this uses the same hook as
    `concurrent.futures`.
    """
    atexit.register(stop)
    register = getattr(threading, "_register_atexit", atexit.register)
    with contextlib.suppress(RuntimeError):  # the process exits already
        register(stop)


def text_of(entry: SharedEntry) -> str:
    """Return the text of an entry. Raises `SecretsError`."""
    try:
        return msgspec.json.decode(entry.value, type=str)
    except (ValueError, RecursionError):
        raise SecretsError(f"{entry.name} in the shared store is not what callgate wrote") from None


def _owner(claim: SharedEntry) -> str:
    """Return the process that made the claim."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(claim.value, type=str).partition(" ")[0]
    return ""


def _silent() -> SecretsError:
    return SecretsError(f"the shared store with the secrets did not answer within {WAIT_S:g} s")


def _unusable(error: BaseException) -> SecretsError:
    return SecretsError(f"the shared store with the secrets cannot be used: {error}")
