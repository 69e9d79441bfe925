"""The words of one conversation, indexed once, so that a value is found without reading it again.

    index.add(source, text)        queued; indexed with the next look-up
    index.trace("to", "a@b.c")     the source of the first kind in which the value stands

The texts of one kind form a table: word -> places. A value of several words is found where they
stand in the same order, with nothing between them. A look-up costs a few dictionary accesses,
however long the conversation is; a text over the limits is not indexed: its values stand nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from callgate.policy.provenance import forms, records
from callgate.policy.provenance.sources import NOWHERE, Source, SourceKind

LONGEST_TEXT = 1_000_000
"""Characters of one text that are indexed."""
LONGEST_CONVERSATION = 16_000_000
"""The same of all texts."""
_PLACES = 64
"""Of one word in one kind of text; of more, the first are enough to find a value."""
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
        self._addresses: dict[str, list[tuple[forms.Address, Source]]] = {}

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

    def _add_address(self, word: str, source: Source) -> None:
        address = forms.address_of(word)
        if address is not None:
            self._addresses.setdefault(address.host, []).append((address, source))

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
        for known, source in self._addresses.get(wanted.host, ()):
            if forms.covers(known, wanted):
                return source
        return None

    def find_number(self, parameter: str, folded: str) -> Source | None:
        """An account number however it is grouped, or a short number by what it is called."""
        if not self._keeps_text:
            return None
        squeezed = forms.squeeze(folded)
        if forms.is_grouped_number(squeezed):
            for text in self.texts:
                if forms.stands_grouped(squeezed, text.words):
                    return text.source
        elif folded.isdecimal():
            for text in self.texts:
                if forms.is_named_number(parameter, folded, text.folded, text.words):
                    return text.source
        return None


class ConversationIndex:
    """What was said in a session, and by whom."""

    def __init__(self) -> None:
        self._tables: dict[SourceKind, _Table] = {}
        self._records: dict[str, list[tuple[str, Source]]] = {}
        """Id to the names of the records that have it, and who returned them."""
        self._fields: dict[str, Source] = {}
        """What tools returned that are vouched for: whole fields, never the words in them."""
        self._pending: list[tuple[Source, str, Any]] = []
        self._room = LONGEST_CONVERSATION
        self.pending_size = 0
        """Characters that the next look-up has to index first."""

    def add(self, source: Source, text: str, data: Any = None) -> None:
        """Remember a text, and the same as data where it is known. What is beyond the limits is
        left out: its values stand nowhere."""
        kept = text[: min(LONGEST_TEXT, self._room)]
        if not kept:
            return
        self._room -= len(kept)
        self.pending_size += len(kept)
        self._pending.append((source, kept, data))

    def catch_up(self) -> None:
        """Index what was added since the last look-up."""
        pending, self._pending, self.pending_size = self._pending, [], 0
        for source, text, data in pending:
            if data is not None:
                for id, name in records.names_by_id(data):
                    self._records.setdefault(id, []).append((name, source))
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
        for name, source in names:
            words = forms.tokens(forms.fold(name))
            if kind.isdisjoint(records.nouns(source.tool)) or not forms.is_evidence(words):
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
