"""An instance as one of several servers that share a store: its presence, requests and logins.

It is created when the instance listens, so it loads little. A login at one server is valid at all:

    key           a secret of the store, created once and encrypted; only servers can read it
    generation    an entry of the store; a rotation increases it, which revokes all credentials
    token         derived from key and generation
    cookie        a random name and its signature, stored nowhere
    login code, attach token   signed, with an expiry; the store has an entry for each used one

Until the key is read, credentials of `Access` are valid only at this server. All others cannot be
checked before (`is_ready`); they get 503, because clients treat 401 as final.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from callgate.config.sealing import SecretsError
from callgate.config.secret_opening import ACCESS, SERVERS, key_finder, preload
from callgate.core.local.disk import write_private
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stored import entries_key
from callgate.core.stores import Store, StoreError
from callgate.core.tasks import start_task
from callgate.features.fleet.directory import Description, Servers
from callgate.features.web.access import SHORT_S, Access, Names, Visitor
from callgate.instance.instance import Service, ServiceContext
from callgate.instance.wiring.runtime import Wired
from callgate.socket.instances import InstanceRecord

if TYPE_CHECKING:
    from callgate.features.web.contexts import Context, Peers

KIND = "access"
"""Kind of the entry with the generation."""
USED = "used_access"
"""Kind of the entries of used codes and tokens."""
_GENERATION = "generation"
_SKEW_S = 30.0
"""Seconds after its expiry during which a used code is stored, because clocks differ."""
_RETRY_S = 1.0
_log = logging.getLogger("callgate.http")


class _Grant(msgspec.Struct, frozen=True, array_like=True):
    """Content of a login code or an attach token."""

    purpose: str
    generation: int
    until: float
    name: str
    session: str = ""


class SharedAccess(Access):
    def __init__(
        self,
        path: str,
        store: Callable[[], Awaitable[Store]],
        find_key: Callable[[Store], Awaitable[bytes]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`find_key` returns the key that all servers share. `now` is the clock that the servers
        share, approximately.
        """
        super().__init__(path)
        self._find_key = find_key
        self._store = store
        self._now = now
        self._key: bytes | None = None
        self._generation = 0

    async def follow(self) -> None:
        """Follow the store, now and after each change. Never returns."""
        while True:
            try:
                store = await self._store()
                with store.wake(entries_key(KIND)) as hint:
                    while True:
                        await self._read(store)
                        await hint.wait()
            except StoreError as error:
                _log.warning("the shared access cannot be read: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _read(self, store: Store) -> None:
        key = await self._find_key(store)
        found = {each.name: each.value for each in await store.entries(KIND)}
        self._adopt(key, int(found.get(_GENERATION, "0")))

    def _adopt(self, key: bytes, generation: int) -> None:
        if key == self._key and generation == self._generation:
            return
        is_rotated = self._key is not None
        self._key, self._generation = key, generation
        token = self._signature(b"token")
        if is_rotated:
            self.void(token)
        else:
            write_private(self.path, token + "\n")

    @property
    def is_ready(self) -> bool:
        return self._key is not None

    @property
    def token(self) -> str:
        return super().token if self._key is None else self._signature(b"token")

    def is_token(self, value: str) -> bool:
        if super().is_token(value):
            return True
        return self._key is not None and hmac.compare_digest(value.encode(), self.token.encode())

    def is_cookie(self, value: str) -> bool:
        if super().is_cookie(value):
            return True
        name, _, signature = value.partition(".")
        return self._is_signed(b"cookie " + name.encode("utf-8", "replace"), signature)

    def new_code(self) -> str:
        return super().new_code() if self._key is None else self._give_out("login")

    async def log_in(self, code: str) -> str | None:
        if self._key is None:
            return await super().log_in(code)
        if await self._use(code, "login") is None:
            return None
        name = secrets.token_urlsafe(16)
        return f"{name}.{self._signature(b'cookie ' + name.encode())}"

    def new_attach(self, session: str) -> str:
        return (
            super().new_attach(session) if self._key is None else self._give_out("attach", session)
        )

    async def attach(self, token: str) -> Visitor | None:
        if self._key is None:
            return await super().attach(token)
        grant = await self._use(token, "attach")
        return None if grant is None else Visitor(grant.session)

    async def rotate(self) -> None:
        """Rotate the access of all servers. Raises `StoreError` without a change if the store is
        not writable.
        """
        store = await self._store()
        await self._read(store)
        value = str(self._generation + 1)
        await store.commit(PutEntry(kind=KIND, name=_GENERATION, value=value))
        await self._read(store)

    # Login codes and attach tokens.

    def _give_out(self, purpose: str, session: str = "") -> str:
        until = self._now() + SHORT_S
        grant = _Grant(purpose, self._generation, until, secrets.token_urlsafe(16), session)
        body = base64.urlsafe_b64encode(msgspec.json.encode(grant)).decode().rstrip("=")
        return f"{body}.{self._signature(b'grant ' + body.encode())}"

    async def _use(self, text: str, purpose: str) -> _Grant | None:
        """Return the content of a code or token, once; None if it is invalid."""
        grant = self._open(text)
        if grant is None or grant.purpose != purpose or grant.generation != self._generation:
            return None
        if grant.until < self._now():
            return None
        store = await self._store()
        used = PutEntry(kind=USED, name=grant.name, value=str(grant.until), expected=0)
        (receipt,) = await store.commit(used)
        if not receipt.applied or receipt.entry is None or receipt.entry.version != 1:
            return None
        await self._forget_used(store)
        return grant

    def _open(self, text: str) -> _Grant | None:
        body, _, signature = text.partition(".")
        if not self._is_signed(b"grant " + body.encode("utf-8", "replace"), signature):
            return None
        try:
            data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            return msgspec.json.decode(data, type=_Grant)
        except (ValueError, RecursionError):
            return None

    async def _forget_used(self, store: Store) -> None:
        before = self._now() - SHORT_S - _SKEW_S
        old = [each for each in await store.entries(USED) if float(each.value) < before]
        for each in old:
            await store.commit(DropEntry(kind=USED, name=each.name))

    def _signature(self, text: bytes) -> str:
        assert self._key is not None
        message = b"callgate access %d " % self._generation + text
        digest = hmac.new(self._key, message, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _is_signed(self, text: bytes, signature: str) -> bool:
        if self._key is None:
            return False
        return hmac.compare_digest(
            signature.encode("utf-8", "replace"), self._signature(text).encode()
        )


class Membership:
    """Implements `features.web.instance.Membership`."""

    def __init__(self, wired: Wired, names: Names, record: InstanceRecord) -> None:
        self._wired = wired
        home = wired.home
        self.servers = Servers(
            wired.runtime.sessions.store,
            Description(
                url=names.servers_url,
                version=record.version,
                label=record.label,
                started_at=record.started_at / 1000,
            ),
            key_finder(home, SERVERS),
            partial(_is_same_directory, home.path, os.stat(home.path)),
        )

    def open_access(self, path: str) -> Access:
        """Return the access that all servers of a shared store have in common."""
        if self._wired.sharing is None:
            return Access(path)
        return SharedAccess(
            path, self._wired.runtime.sessions.store, key_finder(self._wired.home, ACCESS)
        )

    def open_peers(self, context: Context) -> Peers:
        from callgate.features.fleet.peers import FleetPeers  # lazy: first visitor  # noqa: PLC0415

        return FleetPeers(context, self.servers, lambda: self._wired.workers)

    def start(self, access: Access, closing: AsyncExitStack) -> None:
        closing.push_async_callback(self.servers.close)
        closing.callback(self._wired.runtime.permission.ask_elsewhere(self.servers.has_person_for))
        self.servers.start()
        if isinstance(access, SharedAccess):
            closing.callback(start_task(access.follow()).cancel)


def _is_same_directory(path: str, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), before)
    except OSError:
        return False


_serve_log = logging.getLogger("callgate.serve")


class Presence(Service):
    def __init__(self, context: ServiceContext) -> None:
        self._wired = context.wired

    def start(self, closing: AsyncExitStack) -> None:
        if self._wired.sharing is not None:
            closing.callback(start_task(self._wired.sharing.follow()).cancel)
            closing.callback(start_task(self._preload_secrets()).cancel)

    async def _preload_secrets(self) -> None:
        """Load the secrets of the shared store in advance, so that readers in the event loop do
        not wait.
        """
        try:
            await asyncio.to_thread(preload, self._wired.home)
        except SecretsError as error:
            _serve_log.warning("secrets of the shared store are not available: %s", error)
