"""Copies of the shared store's rules, trust and pins, as files of the home.

    entries in the store ---at start, and at each hint---> rules.toml, trust.json, hosts/, mcp/
    a change here ---> the store ---> our files, and by the hint those of the other homes

All readers use the files, as in a home without a shared store, and never wait for the database.
`mirror.json` contains the hash of each file as written. A file with a different hash was edited
manually: it is moved to another name and written again. Denials and `ask` rules of an edited
`rules.toml` stay in effect in this home until `callgate policy import` shares them; its allow
rules do not.
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

from callgate.config.home import Home, alone_in
from callgate.config.saved import rule_text
from callgate.config.stores import SharedStore
from callgate.core.ids import ulid
from callgate.core.local.disk import make_private_directory, write_private
from callgate.core.ops import DropEntry, Op, PutEntry
from callgate.core.stored import SharedEntry, entries_key
from callgate.core.stores import POLL_S, Store, StoreError

RULE = "rule"
"""Kind of entry: a saved rule. Its name defines the order."""
TRUST = "trust"
"""Kind of entry: the approved files of a trusted directory, by directory."""
PINS = {"hosts": "pin_hosts", "mcp": "pin_mcp"}
"""Kinds of entries: the pinned definitions of a host or a server, by name. By directory of the
files.
"""
KINDS = (RULE, TRUST, *PINS.values())

_RECORD = "mirror.json"
_LIMIT_S = 10.0
"""Time limit for the store in a command, or at the start of a process."""
_EDITED = {"rules.toml": "rules.edited{}.toml", "trust.json": "trust.edited{}.json"}
"""The new name of a manually edited file."""
_HINTS = {
    "rules.toml": "callgate policy import shares it",
    "trust.json": "callgate trust DIR shares it",
}
_NARROWING = ("deny", "ask")

T = TypeVar("T")

_log = logging.getLogger("callgate.settings")


class NotShared(OSError):
    """The shared store did not accept a change."""


class SavedRule(msgspec.Struct, frozen=True):
    """The value of an entry of kind `RULE`."""

    rule: dict[str, Any]
    saved: str
    """Time of the answer, as text."""


class SharedPin(msgspec.Struct, frozen=True):
    """The value of an entry of a kind in `PINS`."""

    at: str
    """A ULID: hosts are sorted by the time of their first start."""
    pinned: msgspec.Raw


class Mirror:
    """The files of one home."""

    def __init__(self, home: Home, shared: SharedStore) -> None:
        self._home = home
        self._shared = shared
        self._problem = ""

    @property
    def exists(self) -> bool:
        """Whether the files were ever written."""
        return os.path.exists(self._path(_RECORD))

    def change(self, *ops: Op[Any]) -> tuple[Any, ...]:
        """Commit a change to the store, then write the files. Blocks; from any thread.

        Raises `NotShared` if the store does not accept it; then nothing has changed.
        """

        async def commit(store: Store) -> tuple[Any, ...]:
            results = await store.commit(*ops)
            await self.refresh(store)
            return results

        return self._run(commit)

    def trust(self, directory: str, items: Mapping[str, str]) -> None:
        """Trust a directory in all homes. Blocks. Raises `NotShared`."""
        value = msgspec.json.encode(items).decode()
        self.change(PutEntry(kind=TRUST, name=directory, value=value))

    def distrust(self, directory: str) -> None:
        """Withdraw the trust of a directory in all homes. Blocks. Raises `NotShared`."""
        self.change(DropEntry(kind=TRUST, name=directory))

    def refresh_now(self) -> bool:
        """Write the files from the store, at the start of a process. Blocks.

        False if the store is unavailable; then the files are unchanged.
        """
        try:
            self._run(self.refresh)
        except NotShared as error:
            _log.warning("using the last copy of rules, trust and pins: %s", error)
            return False
        return True

    def read(self, kind: str) -> Sequence[SharedEntry]:
        """Return the present entries of a kind. Blocks. Raises `NotShared`."""
        return self._run(lambda store: store.entries(kind))

    async def follow(
        self, find_store: Callable[[], Awaitable[Store]], refreshed: Callable[[], None]
    ) -> None:
        """Keep the files equal to the store. `refreshed` is called after each update.
        Never returns.
        """
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
                if str(error) != self._problem:  # log each problem once
                    _log.warning("rules, trust and pins may be outdated: %s", error)
                self._problem = str(error)
            await asyncio.sleep(POLL_S)

    async def refresh(self, store: Store) -> None:
        """Write the files that differ. Repeat until nothing differs, because another process may
        write older entries at the same time.
        """
        while True:
            wanted: dict[str, bytes] = {}
            for kind in KINDS:
                wanted |= _files(kind, await store.entries(kind))
            if not self._write(wanted):
                return

    def edited(self) -> list[str]:
        """Return manually edited files, which have no effect as they are."""
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
        """Run work with an open store in a thread, because this thread may have an event loop."""

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
                raise NotShared(f"{self._shared.label} does not answer") from None
            except StoreError as error:
                raise NotShared(str(error)) from error

    # Files.

    def _write(self, wanted: Mapping[str, bytes]) -> bool:
        """Write the files. Return whether any file differed."""
        make_private_directory(self._home.processes)
        with alone_in(self._home.processes):
            record = self._record()
            wanted = {**wanted, "rules.toml": wanted["rules.toml"] + self._narrowing(wanted)}
            differing = [name for name in wanted if self._content(name) != wanted[name]]
            obsolete = [name for name in record if name not in wanted]
            written = {name: _hash(content) for name, content in wanted.items()}
            if not differing and not obsolete and record == written:
                return False
            for name in differing:
                if name in record or name in _EDITED:
                    self._keep_edited(name, record.get(name))
                write_private(self._path(name), wanted[name].decode())
            if not record:
                obsolete += self._unshared_pins(wanted)
            for name in obsolete:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(name))
            text = msgspec.json.format(msgspec.json.encode(written)).decode()
            write_private(self._path(_RECORD), text + "\n")
            return True

    def _unshared_pins(self, wanted: Mapping[str, bytes]) -> list[str]:
        """Return pin lists that this home had before it shared a store. They are removed, so that
        a user must approve these hosts for all homes.
        """
        lists = [f"{directory}.json" for directory in PINS]
        found = [each for each in lists if each not in wanted and self._content(each) is not None]
        for name in found:
            _log.warning("%s is not shared: its entries need a new approval", self._path(name))
        return found

    def _keep_edited(self, name: str, written: str | None) -> None:
        content = self._content(name)
        if content in (None, b"") and written is None:
            return
        if written is not None and _hash(content) == written:
            return
        aside = self._put_aside(name, content) if name in _EDITED and content else None
        _log.warning(
            "%s was edited manually and is replaced from the shared store.%s",
            self._path(name),
            f" Its previous content is in {aside}: {_HINTS[name]}" if aside else "",
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
        """Return the `deny` and `ask` rules of edited files, which stay in effect."""
        try:
            shared = tomllib.loads(wanted["rules.toml"].decode()).get("rules", [])
        except (ValueError, RecursionError):  # the reader of the file reports the error
            shared = []
        texts = []
        for path in self.edited():
            if os.path.basename(path).startswith("rules.edited"):
                for rule in read_rules(path):
                    if rule.get("decision") in _NARROWING and rule not in shared:
                        shared.append(rule)
                        texts.append(rule_text(rule, "manually, only in this home"))
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
    """Return the rules of a file; none if it is unreadable."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file).get("rules", [])
    except (OSError, ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def put_rule(rule: Mapping[str, Any], stamp: str) -> PutEntry:
    """Return the change that appends a saved rule."""
    value = msgspec.json.encode(SavedRule(dict(rule), stamp)).decode()
    return PutEntry(kind=RULE, name=ulid(), value=value)


def rules_text(entries: Iterable[SharedEntry]) -> str:
    """Return saved rules in the format of `rules.toml`. An unreadable rule makes the file
    unusable, because it may deny anything.
    """
    return "".join(map(_rule_text, entries))


def _rule_text(entry: SharedEntry) -> str:
    try:
        saved = msgspec.json.decode(entry.value, type=SavedRule)
        return rule_text(saved.rule, saved.saved)
    except (ValueError, RecursionError):
        unreadable = f"entry {entry.name} of the shared store is unreadable"
        return rule_text({"decision": unreadable}, "by another version")


def _files(kind: str, entries: Sequence[SharedEntry]) -> dict[str, bytes]:
    """Return the wanted files of a kind, with their content."""
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
    """Return the trusted directories. A directory with an unreadable entry is not trusted."""
    known = {}
    for each in entries:
        with suppress(msgspec.MsgspecError):
            known[each.name] = msgspec.json.decode(each.value, type=dict[str, str])
    return msgspec.json.format(msgspec.json.encode(known)) + b"\n"


def _read_pin(entry: SharedEntry) -> SharedPin:
    """Return a pin. An unreadable entry becomes an empty pin, which its reader refuses."""
    try:
        return msgspec.json.decode(entry.value, type=SharedPin)
    except (ValueError, RecursionError):
        return SharedPin("", msgspec.Raw(b"{}"))


def _is_name(name: str) -> bool:
    """Whether a name from the store is safe as a file name."""
    return bool(name) and "/" not in name and "\0" not in name and not name.startswith(".")


def _hash(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
