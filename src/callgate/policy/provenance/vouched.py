"""Fields of trusted tools, and the uses that the user's words permit for each. Pure.

    {"name": "Ann", "email": "ann@corp.example", "note": "call me"}
        the address counts if the user wrote "Ann", and no other record has this name
        the note never counts: a stranger may have written it
    ["general", "random"] of `list_channels`
        "general" counts as a channel if the user wrote it, or asked for "the channel with ..."
    {"title": "Kick-off", "participants": [...]} of any tool
        they count if the user wrote "the participants of Kick-off", if one record has the name
    {"iban": "..."} of `get_account`: the user's own record counts as a whole

A directory that strangers may write to (`Source.untrusted`) never vouches for a web address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from callgate.policy.provenance import forms
from callgate.policy.provenance.actions import NEEDS_A_WORD
from callgate.policy.provenance.requests import ORDINARY_WORD, Use
from callgate.policy.provenance.sources import Source
from callgate.policy.provenance.users_words import UserWords

_MOST = 5_000
_MOST_FIELDS = 16
"""Maximum remembered fields with one value."""
_NAMES = ("name", "full_name", "display_name", "title")
_FREE_TEXTS = frozenset(
    """note notes comment comments description text body message content bio about review reviews
    remark remarks memo summary subject status signature""".split()  # noqa: SIM905
)
_GROUPS = (
    frozenset({"channel", "room", "chat", "group", "team"}),
    frozenset("user username member person people recipient colleague guest contact".split()),  # noqa: SIM905
)
"""Nouns for one kind of entry."""
_SECRETS = frozenset({"password", "passphrase", "secret", "pin", "token"})
_VERBS = frozenset({"get", "search", "list", "find", "by", "all", "in", "id", "ids", "read"})

_INVITED = frozenset({"participants", "attendees", "invitees"})
"""Fields of any record that count if the user names both the record and the field."""

Name = tuple[str, ...]
"""The words of a name."""


class _Field(msgspec.Struct, frozen=True):
    source: Source
    names: tuple[Name, ...]
    """The names of its record; empty if it has none."""
    record: int
    """Equal for equal records."""


class VouchedFields:
    """The fields of one conversation."""

    def __init__(self, users: UserWords) -> None:
        self._users = users
        self._fields: dict[str, list[_Field]] = {}
        self._records: dict[Name, set[int]] = {}
        """A name, or one word of it, mapped to the records that have it."""
        self._invited: dict[str, list[tuple[Name, str]]] = {}
        """A person, mapped to the names of records and the fields that list them."""
        self._listed: dict[Name, set[int]] = {}

    def add(self, source: Source, text: str, data: Any) -> None:
        found: Iterator[tuple[str, tuple[Name, ...], int]]
        if data is None or isinstance(data, str):  # in running text, only plain values count
            words = forms.tokens(forms.fold(text))
            found = ((word, (), 0) for word in words if forms.is_plain_value(word))
        else:
            found = _fields_in(data)
        for value, names, record in found:
            known = self._fields.setdefault(value, [])
            if len(known) < _MOST_FIELDS:
                known.append(_Field(source, names, record))
            for name in names:
                for part in (name, *((word,) for word in name)):
                    self._records.setdefault(part, set()).add(record)

    def add_records(self, source: Source, data: Any) -> None:
        """Add the people whom records of any tool list as participants."""
        for name, record, key, people in _invited_in(data):
            self._listed.setdefault(name, set()).add(record)
            for person in people:
                self._invited.setdefault(person, []).append((name, key))

    def is_invited(self, value: str, use: Use) -> bool:
        """Whether a folded value is in the list of a record, and the user named both."""
        return any(
            len(self._listed[name]) == 1
            and self._users.find(list(name), use) == ""
            and self._users.mentions(key)
            for name, key in self._invited.get(value, ())
        )

    def find(self, parameter: str, value: str, use: Use, objection: str | None) -> Source | None:
        """Return the source of a folded field that may be used so. `objection`: what the user's
        words say about the value itself (`UserWords.find`)."""
        for field in self._fields.get(value, ()):
            if self._may_use(field, parameter, value, use, objection):
                return field.source
        return None

    def _may_use(
        self, field: _Field, parameter: str, value: str, use: Use, objection: str | None
    ) -> bool:
        kinds = _kinds(parameter)
        if kinds & _SECRETS:
            return False
        if use.action in NEEDS_A_WORD and not self._users.orders(use.action):
            return False
        if not field.names and not field.source.untrusted:
            return True
        if "://" in value or value.startswith("www."):
            return False
        entries = _kinds(field.source.tool)
        if not forms.is_plain_value(value) and kinds and entries.isdisjoint(kinds):
            return False
        if self._users.describes(entries if forms.is_plain_value(value) else entries & kinds):
            return True
        if field.names:
            return any(self._is_named(name, use) for name in field.names)
        words = forms.tokens(value)
        return objection == ORDINARY_WORD and self._users.ends_phrase(words, use)

    def _is_named(self, name: Name, use: Use) -> bool:
        """Whether the user wrote a name, or a part of it, that only one record has."""
        for part in (name, *((word,) for word in name)):
            found = self._users.find(list(part), use, "name")
            if found == "" and len(self._records[part]) == 1:
                return True
        return False


def _invited_in(data: Any) -> Iterator[tuple[Name, int, str, list[str]]]:
    """Yield the name, hash and key of each record with a list of people, and these."""
    stack = [data]
    for _ in range(_MOST):
        if not stack:
            return
        value = stack.pop()
        if isinstance(value, Mapping):
            names = [value[key] for key in _NAMES if isinstance(value.get(key), str)]
            for key in _INVITED & value.keys() if names else ():
                listed = value[key] if isinstance(value[key], list) else []
                people = [forms.fold(each) for each in listed[:_MOST] if isinstance(each, str)]
                words = tuple(forms.tokens(forms.fold(names[0])))
                yield words, _hash(value), key, people
            stack += list(value.values())[:_MOST]
        elif isinstance(value, list | tuple):
            stack += value[:_MOST]


def _hash(record: Mapping[str, Any]) -> int:
    return hash(str(sorted(map(str, record.items()))))


def _fields_in(data: Any) -> Iterator[tuple[str, tuple[Name, ...], int]]:
    """Yield the folded scalar fields of data, with the names of their record and its hash."""
    stack: list[tuple[Any, tuple[Name, ...], int]] = [(data, (), 0)]
    for _ in range(_MOST):
        if not stack:
            return
        value, names, record = stack.pop()
        match value:
            case Mapping():
                found = tuple(
                    tuple(forms.tokens(forms.fold(value[key])))
                    for key in _NAMES
                    if isinstance(value.get(key), str)
                )
                inherited = found or names
                number = _hash(value) if found else record
                stack += [
                    (inner, inherited, number)
                    for key, inner in list(value.items())[:_MOST]
                    if str(key).lower() not in _FREE_TEXTS
                ]
            case list() | tuple():
                stack += [(item, names, record) for item in value[:_MOST]]
            case str() | int() | float():
                yield forms.fold(str(value)).strip(), names, record


@lru_cache(maxsize=4096)
def _kinds(identifier: str) -> frozenset[str]:
    """Return the nouns of a tool or parameter in singular, with nouns of the same kind."""
    words = re.split(r"[_.\W]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower())
    found = {word.rstrip("s") for word in words if word and word not in _VERBS}
    for group in _GROUPS:
        if found & group:
            found |= group
    return frozenset(found)
