"""The words of one conversation, indexed once, so that a value is found without reading it again.

    index.add(source, text)        queued; indexed with the next look-up
    index.trace("to", "a@b.c")     the source of the first kind in which the value stands

The texts of one kind form a table: word -> places. A value of several words is found where they
stand in the same order, with nothing between them. A look-up costs a few dictionary accesses,
however long the conversation is; a text over the limits is not indexed: its values stand nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

import msgspec

from callgate.policy.provenance import forms, records
from callgate.policy.provenance.destinations import is_command_name
from callgate.policy.provenance.sources import NOWHERE, Source, SourceKind

LONGEST_TEXT = 400_000
"""Characters of one text that are indexed."""
LONGEST_CONVERSATION = 2_000_000
"""The same of all that a person wrote, and of all that tools gave: about 50 MB of memory."""
_PLACES = 64
"""Of one word in one kind of text; of more, the first are enough to find a value."""
_ADDRESSES = 1_000
"""Of one host in one kind of text."""
_NAMES = 16
"""Of records with one id."""
_QUOTES = ("`", '"', "'")
_WINDOW = 6
"""Words in a row that show that a part of a long text was copied."""
_WINDOWS = 64
"""Of one long text that are looked for."""


class _Text(msgspec.Struct, frozen=True):
    source: Source
    folded: str
    """Empty where nobody looks for numbers in it."""
    words: list[str]


class _Table:
    """The texts of one kind."""

    def __init__(self, *, keeps_text: bool) -> None:
        self._keeps_text = keeps_text
        self.texts: list[_Text] = []
        self._places: dict[str, list[tuple[int, int]]] = {}
        self._addresses: dict[tuple[str, int], dict[str, Source]] = {}
        """Host and port to what of its paths is meant."""
        self._groups: dict[str, list[tuple[int, int]]] = {}
        """Like `_places`, of the groups in which people write numbers."""

    def add(self, source: Source, text: str) -> None:
        folded = forms.fold(text)
        words = forms.tokens(folded)
        at = len(self.texts)
        self.texts.append(_Text(source, folded if self._keeps_text else "", words))
        places = self._places
        for position, word in enumerate(words):
            known = places.get(word)
            if known is None:
                places[word] = [(at, position)]
                if "://" in word or (self._keeps_text and "." in word) or "localhost" in word:
                    self._add_address(word, source)
            elif len(known) < _PLACES:
                known.append((at, position))
            if self._keeps_text:
                starts = self._groups.setdefault(word.replace("-", ""), [])
                if len(starts) < _PLACES:
                    starts.append((at, position))

    def _add_address(self, word: str, source: Source) -> None:
        address = forms.address_of(word)
        if address is not None and ("://" in word or forms.is_named_host(word, address)):
            meant = self._addresses.setdefault(address[:2], {})
            if len(meant) < _ADDRESSES:
                meant.setdefault(address.scope, source)

    def find(self, words: list[str]) -> Source | None:
        """The first text in which the words stand in a row."""
        try:
            found = [self._places[word] for word in words]
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

    def find_address(self, wanted: forms.Address) -> Source | None:
        meant = self._addresses.get(wanted[:2])
        if meant is None:
            return None
        return next((meant[each] for each in forms.scopes(wanted.path) if each in meant), None)

    def quotes(self, value: str) -> Source | None:
        """The text in which a command stands as it is, on a line of its own or in quotes."""
        wanted = " ".join(value.split())
        for text in self.texts:
            for line in text.folded.split("\n"):
                line = " ".join(line.split())
                at = line.find(wanted) if wanted else -1
                if at < 0:
                    continue
                before, after = line[:at][-1:], line[at + len(wanted) :][:1]
                if before == after and before in ("", *_QUOTES):
                    return text.source
        return None

    def find_number(self, parameter: str, folded: str) -> Source | None:
        """An account number however it is grouped, or a short number by what it is called."""
        if not self._keeps_text:
            return None
        squeezed = forms.squeeze(folded)
        if forms.is_grouped_number(squeezed):
            return self._find_groups(squeezed)
        if folded.isdecimal():
            for at in dict.fromkeys(at for at, _ in self._places.get(folded, ())):
                text = self.texts[at]
                if forms.is_named_number(parameter, folded, text.folded, text.words):
                    return text.source
        return None

    def _find_groups(self, squeezed: str) -> Source | None:
        for length in range(1, len(squeezed) + 1):
            for at, position in self._groups.get(squeezed[:length], ()):
                last = position + len(squeezed) + 1
                groups = [
                    word.replace("-", "")
                    for word in self.texts[at].words[max(0, position - 1) : last]
                ]
                if forms.stands_grouped(squeezed, groups, (min(position, 1),)):
                    return self.texts[at].source
        return None


class ConversationIndex:
    """What was said in a session, and by whom."""

    def __init__(self) -> None:
        self._tables: dict[SourceKind, _Table] = {}
        self._records: dict[str, list[tuple[list[str], Source]]] = {}
        """Id to the names of the records that have it, and who returned them."""
        self._fields: dict[str, Source] = {}
        """What tools returned that are vouched for: whole fields, never the words in them."""
        self._pending: list[tuple[Source, str, Any]] = []
        self._room = {True: LONGEST_CONVERSATION, False: LONGEST_CONVERSATION}
        """For what the user wrote, which no output can crowd out, and for the rest."""
        self._lock = Lock()
        self.pending_size = 0
        """Characters that the next look-up has to index first."""

    def add(self, source: Source, text: str, data: Any = None) -> None:
        """Remember a text, and the same as data where it is known. What is beyond the limits is
        left out: its values stand nowhere."""
        is_users = source.kind is SourceKind.USER
        kept = text[: min(LONGEST_TEXT, self._room[is_users])]
        if not kept:
            return
        self._room[is_users] -= len(kept)
        self.pending_size += len(kept)
        self._pending.append((source, kept, data))

    def catch_up(self) -> None:
        """Index what was added since the last look-up."""
        with self._lock:  # another thread may be at it
            self._catch_up()

    def _catch_up(self) -> None:
        while self._pending:
            source, text, data = self._pending[0]
            self._index(source, text, data)
            del self._pending[0]
            self.pending_size -= len(text)

    def _index(self, source: Source, text: str, data: Any) -> None:
        if data is not None:
            for id, name in records.names_by_id(data):
                names = self._records.setdefault(id, [])
                if len(names) < _NAMES:
                    names.append((forms.tokens(forms.fold(name)), source))
        if source.kind is SourceKind.VOUCHED:
            self._add_fields(source, text, data)
            source = msgspec.structs.replace(source, kind=SourceKind.TOOL)
        table = self._tables.get(source.kind)
        if table is None:
            in_full = source.kind in _FULL_TEXT
            table = self._tables[source.kind] = _Table(keeps_text=in_full)
        table.add(source, text)

    def _add_fields(self, source: Source, text: str, data: Any) -> None:
        words: Iterable[str]
        if data is not None and not isinstance(data, str):
            words = map(forms.fold, records.scalars(data))
        else:  # in running text only what is plainly a value
            words = (word for word in forms.tokens(forms.fold(text)) if forms.is_plain_value(word))
        for word in words:
            self._fields.setdefault(word.strip(), source)

    def trace(self, parameter: str, value: str, tool: str = "") -> Source:
        """Where a value stands: of several texts, one of the first kind. `tool` takes it."""
        if self._pending:
            self.catch_up()
        folded = forms.fold(value.strip())
        if is_command_name(parameter):
            users = self._tables.get(SourceKind.USER)
            return (users.quotes(folded) if users is not None else None) or NOWHERE
        mail = forms.email_in(folded)
        address = None if mail is not None else forms.address_of(folded)
        if not folded or (address is None and len(folded) > forms.LONGEST_VALUE):
            return NOWHERE
        words = [mail] if mail is not None else forms.tokens(folded)
        is_evidence = mail is not None or forms.is_evidence(words)
        for kind in _RANKED:
            source = None
            table = self._tables.get(kind)
            if kind is SourceKind.NAMED:
                source = self._named_record(parameter, value.strip(), tool)
            elif kind is SourceKind.VOUCHED:
                source = self._fields.get(folded if mail is None else mail)
            elif table is not None and address is not None:
                source = table.find_address(address)
            elif table is not None:
                source = table.find(words) if is_evidence and words else None
                if source is None:
                    source = table.find_number(parameter, folded)
            if source is not None:
                return source
        return NOWHERE

    def _named_record(self, parameter: str, value: str, tool: str) -> Source | None:
        """Whether the user wrote the name of a record that has this id, and is of the kind that
        the parameter takes."""
        names = self._records.get(value)
        users = self._tables.get(SourceKind.USER)
        if names is None or users is None or not records.is_id_name(parameter):
            return None
        kind = records.nouns(parameter) or records.nouns(tool)
        for words, source in names:
            if kind.isdisjoint(records.nouns(source.tool)) or not forms.is_name(words):
                continue
            if users.find(words) is not None:
                return _NAMED
        return None

    def parts(self, text: str) -> list[Source]:
        """The texts other than the user's of which a long text repeats a part."""
        if self._pending:
            self.catch_up()
        words = forms.tokens(forms.fold(text[:LONGEST_TEXT]))
        step = max(_WINDOW, len(words) // _WINDOWS)
        found: dict[Source, None] = {}
        for start in range(0, len(words) - _WINDOW + 1, step):
            window = words[start : start + _WINDOW]
            for kind in _RANKED:
                table = self._tables.get(kind)
                source = None if table is None else table.find(window)
                if source is not None:
                    found[source] = None
                    break
        return [source for source in found if source.kind is not SourceKind.USER]


_NAMED = Source(SourceKind.NAMED)
_RANKED = tuple(kind for kind in SourceKind if kind not in (SourceKind.NOWHERE, SourceKind.UNKNOWN))
_FULL_TEXT = frozenset({SourceKind.USER})
"""Texts that vouch for a value: hosts without a scheme and numbers are looked for in them."""
