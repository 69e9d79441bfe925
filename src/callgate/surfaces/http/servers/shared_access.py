"""Access that all servers of one store agree on: a client of one is let in by each of them.

    key           a secret of the store, made once and encrypted; only servers can read it
    generation    an entry of the store; a rotation raises it, and voids all that was given out
    token         follows from key and generation
    cookie        a random name and its signature: nothing is kept of it
    login code, attach token   signed, with their end; which ones were used is an entry of the store

Until the key was read, what `Access` gives out is good at this server alone. Whether anything else
is good is not known then (`is_ready`): it gets 503, because a client takes 401 for the last word.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec

from callgate.core.directories import write_private
from callgate.core.ops import DropEntry, PutEntry
from callgate.core.stored import entries_key
from callgate.core.stores import Store, StoreError
from callgate.surfaces.http.access import SHORT_S, Access, Visitor

KIND = "access"
"""Of the entry with the generation."""
USED = "used_access"
"""Of the entries of codes and tokens that were good once."""
_GENERATION = "generation"
_SKEW_S = 30.0
"""How long after its end a code is remembered as used: clocks of servers differ."""
_RETRY_S = 1.0
_log = logging.getLogger("callgate.http")


class _Grant(msgspec.Struct, frozen=True, array_like=True):
    """What a login code or an attach token says."""

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
        """`find_key` finds the key that all servers share. `now` is the clock that servers share,
        as far as they share one."""
        super().__init__(path)
        self._find_key = find_key
        self._store = store
        self._now = now
        self._key: bytes | None = None
        self._generation = 0

    async def follow(self) -> None:
        """Be as the store says, now and after each change. Never returns."""
        while True:
            try:
                store = await self._store()
                with store.wake(entries_key(KIND)) as hint:
                    while True:
                        await self._read(store)
                        await hint.wait()
            except StoreError as error:
                _log.warning("access of the other servers is not known: %s", error)
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
        """Everywhere; where the store cannot be written it raises `StoreError`, and nothing is."""
        store = await self._store()
        await self._read(store)
        value = str(self._generation + 1)
        await store.commit(PutEntry(kind=KIND, name=_GENERATION, value=value))
        await self._read(store)

    # What is given out.

    def _give_out(self, purpose: str, session: str = "") -> str:
        until = self._now() + SHORT_S
        grant = _Grant(purpose, self._generation, until, secrets.token_urlsafe(16), session)
        body = base64.urlsafe_b64encode(msgspec.json.encode(grant)).decode().rstrip("=")
        return f"{body}.{self._signature(b'grant ' + body.encode())}"

    async def _use(self, text: str, purpose: str) -> _Grant | None:
        """What a code or token says, once; None where it is not good."""
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
