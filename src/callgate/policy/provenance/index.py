"""An index of one conversation's words, which finds the source of a value with one look-up.

    index.add(source, text)        queued; indexed with the next look-up
    index.trace("to", "a@b.c")     the source of the first kind that contains the value

The texts of one kind form a table: word -> places. A value of several words is found where they
appear in the same order, with nothing in between. A look-up costs a few dictionary accesses for
any length of conversation. A text above the limits is not indexed: its values have no source.

Records in the data that a tool returns map ids to names, bounded in number:

    {"id": 24, "title": "Dental check-up", ...}    the id 24 belongs to "Dental check-up"

Only data counts, never running text: the author of a mail's text does not choose its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import Any

import msgspec

from callgate.policy.provenance import forms
from callgate.policy.provenance.actions import is_additive
from callgate.policy.provenance.destinations import is_command_name
from callgate.policy.provenance.requests import NO_USE, Use
from callgate.policy.provenance.sources import NOWHERE, Source, SourceKind
from callgate.policy.provenance.users_words import UserWords
from callgate.policy.provenance.vouched import VouchedFields

_IDS = ("id", "id_", "_id", "uid", "uuid")
_NAME_KEYS = (
    "name",
    "title",
    "filename",
    "file_name",
    "subject",
    "label",
    "summary",
    "display_name",
)
_MOST = 5_000
"""Maximum records and lists of one output that are examined."""
_LONGEST_NAME = 200
_NESTED = (Mapping, list, tuple)
_NO_NOUNS = frozenset({"", "id", "uid", "uuid", "get", "search", "list", "find", "by", "all", "in"})


def is_id_name(parameter: str) -> bool:
    """Whether a parameter, or a field, contains the id of a record."""
    name = parameter.lower()
    return (
        name in (*_IDS, "ids") or name.endswith(("_id", "_ids", "_uid")) or parameter.endswith("Id")
    )


def nouns(identifier: str) -> frozenset[str]:
    """Return the words of a name in singular: `file_id` and `search_files` share `file`."""
    return frozenset(word.rstrip("s") for word in identifier.lower().split("_")) - _NO_NOUNS


def names_by_id(data: Any) -> Iterator[tuple[str, str]]:
    """Yield every record id with every name in the same record.

    In `{"id": 1, "sender_id": 2}` only the first is the id of the record.
    """
    left, stack = _MOST, [data] if isinstance(data, _NESTED) else []
    while stack and left > 0:
        left -= 1
        match stack.pop():
            case Mapping() as record:
                names = [record[name] for name in _NAME_KEYS if isinstance(record.get(name), str)]
                ids = [record[key] for key in _IDS if isinstance(record.get(key), str | int)]
                for id in ids[:1]:
                    yield from ((str(id), name[:_LONGEST_NAME]) for name in names)
                fields = islice(record.values(), _MOST)
                stack.extend(value for value in fields if isinstance(value, _NESTED))
            case list() | tuple() as items:
                stack.extend(item for item in items[:_MOST] if isinstance(item, _NESTED))


def only_id(data: Any) -> str | None:
    """Return the id of the record if data has exactly one."""
    records = data if isinstance(data, list | tuple) else [data]
    if len(records) != 1 or not isinstance(records[0], Mapping):
        return None
    ids = [records[0][key] for key in _IDS if isinstance(records[0].get(key), str | int)]
    return str(ids[0]) if ids else None


LONGEST_TEXT = 400_000
"""Maximum indexed characters of one text."""
LONGEST_CONVERSATION = 2_000_000
"""Maximum for all texts of the user, and for all tool output: about 50 MB of memory."""
_MOST_POSITIONS = 64
"""Maximum indexed places of one word in one kind of text; the first ones suffice."""
_HOSTS = 20_000
"""Maximum hosts of one kind of text."""
_SHORT = 256
"""Maximum characters of a text or value that is remembered as a whole."""
_MOST_SEEN = 4_096
_NAMES = 16
"""Maximum names of records with one id."""
_WINDOW = 6
"""Number of consecutive words that prove a copied part of a long text."""
_MOST_WORDS = 20_000
"""Maximum words of a text that are searched for copied spans."""
_WINDOWS = 64
"""Maximum number of such windows per long text."""


class _Text(msgspec.Struct, frozen=True):
    source: Source
    words: list[str]


class _Table:
    """The texts of one kind that tools or files contain."""

    def __init__(self) -> None:
        self.texts: list[_Text] = []
        self._positions: dict[str, list[tuple[int, int]]] = {}
        self._hosts: dict[tuple[str, int], Source] = {}
        """Host and port, mapped to the first source."""

    def add(self, source: Source, text: str) -> None:
        words = forms.tokens(forms.fold(text))
        at = len(self.texts)
        self.texts.append(_Text(source, words))
        positions = self._positions
        for position, word in enumerate(words):
            known = positions.get(word)
            if known is None:
                positions[word] = [(at, position)]
                if "." in word or "localhost" in word:
                    self._add_host(word, source)
            elif len(known) < _MOST_POSITIONS:
                known.append((at, position))

    def _add_host(self, word: str, source: Source) -> None:
        if "://" not in word and "/" not in word and not word.startswith(("www.", "localhost")):
            return  # `find_host` finds the word itself
        address = forms.address_of(word)
        if address is None or len(self._hosts) >= _HOSTS:
            return
        self._hosts.setdefault(address[:2], source)
        host, _, last = address.host.rpartition(".")
        if "." in host and forms.is_common(last):  # `www.corp.example.They are`
            self._hosts.setdefault((host, address.port), source)

    def find(self, words: list[str]) -> Source | None:
        """Return the source of the first text that contains the words in sequence."""
        try:
            found = [self._positions[word] for word in words]
        except KeyError:
            return None
        if len(words) == 1:
            return self.texts[found[0][0][0]].source
        rarest = min(range(len(words)), key=lambda at: len(found[at]))
        for at, position in found[rarest]:
            text, start = self.texts[at], position - rarest
            if start >= 0 and text.words[start : start + len(words)] == words:
                return text.source
        return None

    def find_host(self, wanted: forms.Address) -> Source | None:
        source = self._hosts.get(wanted[:2])
        return self.find([wanted.host]) if source is None else source


class ConversationIndex:
    """The texts of a session, by source."""

    def __init__(self) -> None:
        self.users = UserWords()
        self._tables: dict[SourceKind, _Table] = {}
        self._records: dict[str, list[tuple[list[str], Source]]] = {}
        """Id, mapped to the names of its records and the source that returned them."""
        self._ids: dict[tuple[str, ...], dict[str, frozenset[str]]] = {}
        """Name, mapped to the ids of its records, each with the kind of the record."""
        self._only: dict[str, Source] = {}
        """Ids of records that a tool returned alone."""
        self._fields = VouchedFields(self.users)
        self._of_user: set[tuple[str, str, Use]] = set()
        """Values and uses that the user's words vouch for; empty after each text of the user."""
        self._seen: set[tuple[SourceKind, bool, str, str]] = set()
        """Short outputs that are indexed."""
        self._pending: list[tuple[Source, str, Any]] = []
        self._room = {True: LONGEST_CONVERSATION, False: LONGEST_CONVERSATION}
        """Remaining characters for the user's texts (True) and for others, separately."""
        self._lock = Lock()
        self.pending_size = 0
        """Number of characters that the next look-up must index first."""

    def add(self, source: Source, text: str, data: Any = None) -> None:
        """Add a text, and the same content as data if available. Text beyond the limits is not
        indexed, so its values have no source.
        """
        is_users = source.kind is SourceKind.USER
        if is_users:
            self._of_user.clear()
        elif not isinstance(data, _NESTED) and self._is_repeated(source, text):
            return
        indexed = text[: min(LONGEST_TEXT, self._room[is_users])]
        if not indexed:
            return
        self._room[is_users] -= len(indexed)
        self.pending_size += len(indexed)
        self._pending.append((source, indexed, data))

    def _is_repeated(self, source: Source, text: str) -> bool:
        """Whether the same tool has returned the same short text: only the first one counts."""
        if len(text) > _SHORT:
            return False
        key = (source.kind, source.untrusted, source.tool, text)
        if key in self._seen:
            return True
        if len(self._seen) < _MOST_SEEN:
            self._seen.add(key)
        return False

    def catch_up(self) -> None:
        """Index the texts added since the last look-up."""
        with self._lock:  # another thread may be indexing
            self._catch_up()

    def _catch_up(self) -> None:
        while self._pending:
            source, text, data = self._pending[0]
            self._index(source, text, data)
            del self._pending[0]
            self.pending_size -= len(text)

    def _index(self, source: Source, text: str, data: Any) -> None:
        if isinstance(data, _NESTED):
            for id, name in names_by_id(data):
                names = self._records.setdefault(id, [])
                words = forms.tokens(forms.fold(name))
                if len(names) < _NAMES:
                    names.append((words, source))
                self._ids.setdefault(tuple(words), {}).setdefault(id, nouns(source.tool))
            self._fields.add_records(source, data)
            if (only := only_id(data)) is not None:
                self._only[only] = source
        if source.kind is SourceKind.VOUCHED:
            self._fields.add(source, text, data)
            source = msgspec.structs.replace(source, kind=SourceKind.TOOL)
        if source.kind is SourceKind.USER:
            self.users.add(text)
            return
        self._tables.setdefault(source.kind, _Table()).add(source, text)

    def trace(self, parameter: str, value: str, use: Use = NO_USE) -> Source:
        """Return the most trusted source of a value in one use."""
        key = (parameter, value, use)
        if key in self._of_user:
            return _USER
        source = self._trace(parameter, value, use)
        if source is _USER and len(value) <= _SHORT and len(self._of_user) < _MOST_SEEN:
            self._of_user.add(key)
        return source

    def _trace(self, parameter: str, value: str, use: Use) -> Source:
        if self._pending:
            self.catch_up()
        value = value.strip()
        if is_command_name(parameter):
            return _users(self.users.find_command(value)) or NOWHERE
        folded = forms.fold(value)
        mail = forms.email_in(folded)
        address = None if mail is not None else forms.address_of(value)
        if address is not None and not forms.is_named_host(folded, address):
            address = None  # a file: `notes.txt`
        if not folded or (address is None and len(folded) > forms.LONGEST_VALUE):
            return NOWHERE
        words = [mail] if mail is not None else forms.tokens(folded)
        is_evidence = mail is not None or forms.is_evidence(words)
        found = self.users.find_address(address, use) if address is not None else None
        if address is None and is_evidence and words:
            found = self.users.find(words, use, "" if mail else parameter)
        if found != "" and address is None and mail is None:
            number = self.users.find_number(parameter, folded, use)
            found = found if number is None else number
        of_user = _users(found)
        if of_user is not None and of_user.kind is SourceKind.USER:
            return of_user
        if self._is_named_record(parameter, value, use) or self._is_found(parameter, value, use):
            return _NAMED
        if mail is not None and self._fields.is_invited(mail, use):
            return _NAMED
        field = self._fields.find(parameter, folded if mail is None else mail, use, found)
        if field is not None:
            return field
        return of_user or self._elsewhere(words if is_evidence else [], address)

    def _elsewhere(self, words: list[str], address: forms.Address | None) -> Source:
        """Return the first source that contains a value, but does not vouch for it."""
        for kind in _RANKED:
            table = self._tables.get(kind)
            source = None
            if table is not None and words:
                source = table.find(words)
            if source is None and table is not None and address is not None:
                source = table.find_host(address)
            if source is not None:
                return source
        return NOWHERE

    def names_host(self, host: str, port: int) -> bool:
        """Whether the user's words contain an address of a host."""
        if self._pending:
            self.catch_up()
        return self.users.names_host(host, port)

    def _is_named_record(self, parameter: str, value: str, use: Use) -> bool:
        """Whether the user wrote the name of the only record with this id and name.

        The record must be of the kind that the parameter takes.
        """
        names = self._records.get(value)
        if names is None or not is_id_name(parameter):
            return False
        kind = nouns(parameter) or nouns(use.tool)
        for words, source in names:
            if kind.isdisjoint(nouns(source.tool)) or not forms.is_name(words):
                continue
            if self.users.find(words, use) == "" and self._is_unique(words, value, kind):
                return True
        return False

    def _is_found(self, parameter: str, value: str, use: Use) -> bool:
        """Whether a search returned only the record with this id, and the user ordered a change
        that destroys nothing."""
        source = self._only.get(value)
        if source is None or not is_id_name(parameter) or not is_additive(use.tool):
            return False
        kind = nouns(parameter) or nouns(use.tool)
        return self.users.orders(use.action) and not kind.isdisjoint(nouns(source.tool))

    def _is_unique(self, words: list[str], id: str, kind: frozenset[str]) -> bool:
        others = self._ids.get(tuple(words), {})
        return all(other == id or kind.isdisjoint(of) for other, of in others.items())

    def copied(self, text: str) -> Source | None:
        """Return the untrusted source of a span that a text copies: six consecutive words, a line
        of at least three, or an address. The user's words and files are no such source."""
        if self._pending:
            self.catch_up()
        for line in text[:LONGEST_TEXT].splitlines():
            words = forms.tokens(forms.fold(line))
            if 3 <= len(words) < _WINDOW and forms.is_evidence(words):
                source = self._untrusted(words)
                if source is not None:
                    return source
        words = forms.tokens(forms.fold(text[:LONGEST_TEXT]))[:_MOST_WORDS]
        for word in words:
            address = forms.address_of(word) if "://" in word else None
            source = None
            if address is not None and not self.users.names_host(address.host, address.port):
                source = self._elsewhere([word], address)
            if source is not None and source.untrusted:
                return source
        for start in range(max(0, len(words) - _WINDOW + 1)):
            source = self._untrusted(words[start : start + _WINDOW])
            if source is not None:
                return source
        return None

    def _untrusted(self, words: list[str]) -> Source | None:
        """Return the source of consecutive words if only untrusted content has them."""
        if self.users.find(words, NO_USE) is not None:
            return None
        source = self._elsewhere(words, None)
        return source if source.untrusted else None

    def carried(self, text: str) -> Source | None:
        """Return the source of a code, number or address that a text takes from untrusted content:
        a word that hardly appears by chance. Dates and times are no such words."""
        if self._pending:
            self.catch_up()
        for word in forms.tokens(forms.fold(text[:LONGEST_TEXT]))[:_MOST_WORDS]:
            if not forms.is_distinctive(word) or self.users.find([word], NO_USE) is not None:
                continue
            source = self._elsewhere([word], None)
            if source.untrusted:
                return source
        return None

    def parts(self, text: str) -> list[Source]:
        """Return the sources other than the user of which a long text repeats a part."""
        if self._pending:
            self.catch_up()
        words = forms.tokens(forms.fold(text[:LONGEST_TEXT]))
        step = max(_WINDOW, len(words) // _WINDOWS)
        found: dict[Source, None] = {}
        for start in range(0, len(words) - _WINDOW + 1, step):
            window = words[start : start + _WINDOW]
            if self.users.find(window, NO_USE) is not None:
                continue
            for kind in _RANKED:
                table = self._tables.get(kind)
                source = None if table is None else table.find(window)
                if source is not None:
                    found[source] = None
                    break
        return list(found)


def _users(objection: str | None) -> Source | None:
    """Return the source of a value in the user's words; None if they do not contain it."""
    if objection is None:
        return None
    return Source(SourceKind.MENTIONED, reason=objection) if objection else _USER


_USER = Source(SourceKind.USER)
_NAMED = Source(SourceKind.NAMED)
_RANKED = tuple(
    kind
    for kind in SourceKind
    if kind not in (SourceKind.USER, SourceKind.NOWHERE, SourceKind.UNKNOWN)
)
