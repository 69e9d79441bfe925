"""Saved rules, trust and pins of a shared store, as the files that a home without one has.

    entries in the store ---at start, and at each hint---> rules.toml, trust.json, hosts/, mcp/
    a change here ---> the store ---> our files, and by the hint those of the other homes

Whoever decides reads the files, as ever, and waits for no database. `mirror.json` holds the hash
of each file as it was written. A file that is otherwise was edited by hand: it is put aside under
another name and written anew. What an edited `rules.toml` denies or asks about counts on, in this
home, until `callgate policy import` has it shared; what it allows does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from callgate.config.home import Home
from callgate.config.locks import alone_in
from callgate.config.rule_texts import rule_text
from callgate.config.stores import SharedStore
from callgate.core.directories import make_private_directory, write_private
from callgate.core.ids import ulid
from callgate.core.ops import DropEntry, Op, PutEntry
from callgate.core.stored import SharedEntry, entries_key
from callgate.core.stores import POLL_S, Store, StoreError

RULE = "rule"
"""Kind of entry: a saved rule; its name keeps the order."""
TRUST = "trust"
"""Kind of entry: what a trusted directory brought, by the directory."""
PINS = {"hosts": "pin_hosts", "mcp": "pin_mcp"}
"""Kinds of entries: what a host or a server said, by its name; by the directory of the files."""
KINDS = (RULE, TRUST, *PINS.values())

_RECORD = "mirror.json"
_LIMIT_S = 10.0
"""How long a command, or a process at its start, waits for the store."""
_EDITED = {"rules.toml": "rules.edited{}.toml", "trust.json": "trust.edited{}.json"}
"""What a file is called that was edited by hand."""
_HINTS = {
    "rules.toml": "callgate policy import shares it",
    "trust.json": "callgate trust DIR shares it",
}
_NARROWING = ("deny", "ask")

T = TypeVar("T")

_log = logging.getLogger("callgate.settings")


class NotShared(OSError):
    """The store that several homes share did not take a change."""


class SavedRule(msgspec.Struct, frozen=True):
    """The value of an entry of kind `RULE`."""

    rule: dict[str, Any]
    saved: str
    """When, as a person reads it."""


class SharedPin(msgspec.Struct, frozen=True):
    """The value of an entry of a kind in `PINS`."""

    at: str
    """A ULID: hosts are listed in the order in which they were first seen."""
    pinned: msgspec.Raw


class Mirror:
    """The files of one home."""

    def __init__(self, home: Home, shared: SharedStore) -> None:
        self._home = home
        self._shared = shared
        self._problem = ""

    @property
    def exists(self) -> bool:
        """Whether it was ever written."""
        return os.path.exists(self._path(_RECORD))

    def change(self, *ops: Op[Any]) -> tuple[Any, ...]:
        """Commit a change to the store, then have it in the files. Blocks; in any thread.

        `NotShared` where the store does not take it: then nothing has changed."""

        async def commit(store: Store) -> tuple[Any, ...]:
            results = await store.commit(*ops)
            await self.refresh(store)
            return results

        return self._run(commit)

    def trust(self, directory: str, items: Mapping[str, str]) -> None:
        """Blocks. `NotShared`."""
        value = msgspec.json.encode(items).decode()
        self.change(PutEntry(kind=TRUST, name=directory, value=value))

    def distrust(self, directory: str) -> None:
        """Blocks. `NotShared`."""
        self.change(DropEntry(kind=TRUST, name=directory))

    def refresh_now(self) -> bool:
        """Write the files as the store has them, at the start of a process. Blocks. False where the
        store is away: the files are as they were."""
        try:
            self._run(self.refresh)
        except NotShared as error:
            _log.warning("rules, trust and pins are those of the last time: %s", error)
            return False
        return True

    def read(self, kind: str) -> Sequence[SharedEntry]:
        """The entries of a kind, as the store has them now. Blocks. `NotShared`."""
        return self._run(lambda store: store.entries(kind))

    async def follow(
        self, find_store: Callable[[], Awaitable[Store]], refreshed: Callable[[], None]
    ) -> None:
        """Keep the files as the store has them; `refreshed` is called after each look. Never
        returns."""
        while True:
            try:
                store = await find_store()
                with store.wake(*map(entries_key, KINDS)) as hint:
                    while True:
                        await self.refresh(store)
                        self._problem = ""
                        refreshed()
                        await hint.wait()
            except (StoreError, OSError) as error:
                if str(error) != self._problem:  # once
                    _log.warning("rules, trust and pins may be old: %s", error)
                self._problem = str(error)
            await asyncio.sleep(POLL_S)

    async def refresh(self, store: Store) -> None:
        """Write what differs. Another process that wrote older entries meanwhile looks again."""
        while True:
            wanted: dict[str, bytes] = {}
            for kind in KINDS:
                wanted |= _files(kind, await store.entries(kind))
            if not self._write(wanted):
                return

    def edited(self) -> list[str]:
        """Files that were edited by hand, and do not count as they are."""
        names = [pattern.partition("{}") for pattern in _EDITED.values()]
        try:
            there = sorted(os.listdir(self._home.path))
        except OSError:
            return []
        aside = [
            each for each in there for a, _, z in names if each.startswith(a) and each.endswith(z)
        ]
        record = self._record()
        changed = [name for name in record if _hash(self._content(name)) != record[name]]
        return [self._path(name) for name in (*aside, *changed)]

    def _run(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """In a thread: an event loop may run in ours."""

        async def opened() -> T:
            async with asyncio.timeout(_LIMIT_S):
                store = await self._shared.open()
                try:
                    return await work(store)
                finally:
                    await store.close()

        with ThreadPoolExecutor(1, thread_name_prefix="callgate-mirror") as pool:
            try:
                return pool.submit(asyncio.run, opened()).result()
            except TimeoutError:
                raise NotShared(f"{self._shared.place} does not answer") from None
            except StoreError as error:
                raise NotShared(str(error)) from error

    # The files.

    def _write(self, wanted: Mapping[str, bytes]) -> bool:
        """Whether anything was otherwise."""
        make_private_directory(self._home.processes)
        with alone_in(self._home.processes):
            record = self._record()
            wanted = {**wanted, "rules.toml": wanted["rules.toml"] + self._narrowing(wanted)}
            differing = [name for name in wanted if self._content(name) != wanted[name]]
            gone = [name for name in record if name not in wanted]
            written = {name: _hash(content) for name, content in wanted.items()}
            if not differing and not gone and record == written:
                return False
            for name in differing:
                if name in record or name in _EDITED:
                    self._keep_edited(name, record.get(name))
                write_private(self._path(name), wanted[name].decode())
            if not record:
                gone += self._unshared_pins(wanted)
            for name in gone:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(name))
            text = msgspec.json.format(msgspec.json.encode(written)).decode()
            write_private(self._path(_RECORD), text + "\n")
            return True

    def _unshared_pins(self, wanted: Mapping[str, bytes]) -> list[str]:
        """Lists of hosts that this home had before it shared a store. Without them what it knows
        of these hosts is in doubt, until a person accepts it for all homes."""
        lists = [f"{directory}.json" for directory in PINS]
        found = [each for each in lists if each not in wanted and self._content(each) is not None]
        for name in found:
            _log.warning("%s is not shared: what it lists is accepted anew", self._path(name))
        return found

    def _keep_edited(self, name: str, written: str | None) -> None:
        content = self._content(name)
        if content in (None, b"") and written is None:
            return
        if written is not None and _hash(content) == written:
            return
        aside = self._put_aside(name, content) if name in _EDITED and content else None
        _log.warning(
            "%s was changed by hand and is written anew from the shared store.%s",
            self._path(name),
            f" What it said is in {aside}: {_HINTS[name]}" if aside else "",
        )

    def _put_aside(self, name: str, content: bytes) -> str:
        number = 1
        while True:
            path = self._path(_EDITED[name].format("" if number == 1 else f"-{number}"))
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return path

    def _narrowing(self, wanted: Mapping[str, bytes]) -> bytes:
        """What edited rules deny or ask about, which counts on."""
        try:
            shared = tomllib.loads(wanted["rules.toml"].decode()).get("rules", [])
        except (ValueError, RecursionError):  # whoever reads them refuses
            shared = []
        texts = []
        for path in self.edited():
            if os.path.basename(path).startswith("rules.edited"):
                for rule in read_rules(path):
                    if rule.get("decision") in _NARROWING and rule not in shared:
                        shared.append(rule)
                        texts.append(rule_text(rule, "by hand, in this home alone"))
        return "".join(texts).encode()

    def _record(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._content(_RECORD) or b"{}", type=dict[str, str])
        except (ValueError, RecursionError):
            return {}

    def _path(self, name: str) -> str:
        return os.path.join(self._home.path, name)

    def _content(self, name: str) -> bytes | None:
        try:
            with open(self._path(name), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None


def read_rules(path: str) -> list[dict[str, Any]]:
    """The rules of a file; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file).get("rules", [])
    except (OSError, ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def put_rule(rule: Mapping[str, Any], stamp: str) -> PutEntry:
    """Save a rule, after those that there are."""
    value = msgspec.json.encode(SavedRule(dict(rule), stamp)).decode()
    return PutEntry(kind=RULE, name=ulid(), value=value)


def rules_text(entries: Iterable[SharedEntry]) -> str:
    """Saved rules as `rules.toml` has them. One that cannot be read makes the file unusable: it
    may deny anything."""
    return "".join(map(_rule_text, entries))


def _rule_text(entry: SharedEntry) -> str:
    try:
        saved = msgspec.json.decode(entry.value, type=SavedRule)
        return rule_text(saved.rule, saved.saved)
    except (ValueError, RecursionError):
        unreadable = f"entry {entry.name} of the shared store cannot be read"
        return rule_text({"decision": unreadable}, "by another version")


def _files(kind: str, entries: Sequence[SharedEntry]) -> dict[str, bytes]:
    """What the files of a kind should say."""
    if kind == RULE:
        return {"rules.toml": rules_text(entries).encode()}
    if kind == TRUST:
        return {"trust.json": _trust_text(entries)}
    directory = next(name for name, each in PINS.items() if each == kind)
    pins = [(each.name, _read_pin(each)) for each in entries if _is_name(each.name)]
    pins.sort(key=lambda pin: pin[1].at)
    files = {f"{directory}/{name}.json": bytes(pin.pinned) for name, pin in pins}
    seen = {name: _hash(bytes(pin.pinned)) for name, pin in pins}
    if seen:
        files[f"{directory}.json"] = msgspec.json.format(msgspec.json.encode(seen)) + b"\n"
    return files


def _trust_text(entries: Sequence[SharedEntry]) -> bytes:
    """Where an entry cannot be read, its directory is not trusted."""
    known = {}
    for each in entries:
        with suppress(msgspec.MsgspecError):
            known[each.name] = msgspec.json.decode(each.value, type=dict[str, str])
    return msgspec.json.format(msgspec.json.encode(known)) + b"\n"


def _read_pin(entry: SharedEntry) -> SharedPin:
    """Where it cannot be read, what is in its place is doubted by who reads it."""
    try:
        return msgspec.json.decode(entry.value, type=SharedPin)
    except (ValueError, RecursionError):
        return SharedPin("", msgspec.Raw(b"{}"))


def _is_name(name: str) -> bool:
    """Whether a file may be called so, whatever the store says."""
    return bool(name) and "/" not in name and "\0" not in name and not name.startswith(".")


def _hash(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
