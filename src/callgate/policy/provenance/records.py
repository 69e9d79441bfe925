"""Records in what a tool returns as data: which id belongs to which name. Pure, and bounded.

    {"id": 24, "title": "Dental check-up", ...}    the id 24 is that of "Dental check-up"

Only data counts, never running text: whoever writes the text of a mail does not choose its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_IDS = ("id", "id_", "_id", "uid", "uuid")
_NAMES = ("name", "title", "filename", "file_name", "subject", "label", "summary", "display_name")
_MOST = 5_000
"""Records and lists of one output that are looked at."""
_LONGEST_NAME = 200
_NESTED = (Mapping, list, tuple)
_NO_NOUNS = frozenset({"", "id", "uid", "uuid", "get", "search", "list", "find", "by", "all", "in"})


def is_id_name(parameter: str) -> bool:
    """Whether a parameter, or a field, has the id of a record."""
    name = parameter.lower()
    return (
        name in (*_IDS, "ids") or name.endswith(("_id", "_ids", "_uid")) or parameter.endswith("Id")
    )


def nouns(identifier: str) -> frozenset[str]:
    """The words of a name without their plural: `file_id` and `search_files` share `file`."""
    return frozenset(word.rstrip("s") for word in identifier.lower().split("_")) - _NO_NOUNS


def scalars(data: Any) -> Iterator[str]:
    """Every field of some data, as a text."""
    left, stack = _MOST, [data]
    while stack and left > 0:
        left -= 1
        match stack.pop():
            case Mapping() as record:
                stack.extend(islice(record.values(), _MOST))
            case list() | tuple() as items:
                stack.extend(items[:_MOST])
            case str() | int() | float() as value:
                yield str(value)


def names_by_id(data: Any) -> Iterator[tuple[str, str]]:
    """Every id of a record with every name that stands beside it. In `{"id": 1, "sender_id": 2}`
    only the first is the record's own."""
    left, stack = _MOST, [data] if isinstance(data, _NESTED) else []
    while stack and left > 0:
        left -= 1
        match stack.pop():
            case Mapping() as record:
                names = [record[name] for name in _NAMES if isinstance(record.get(name), str)]
                ids = [record[key] for key in _IDS if isinstance(record.get(key), str | int)]
                for id in ids[:1]:
                    yield from ((str(id), name[:_LONGEST_NAME]) for name in names)
                fields = islice(record.values(), _MOST)
                stack.extend(value for value in fields if isinstance(value, _NESTED))
            case list() | tuple() as items:
                stack.extend(item for item in items[:_MOST] if isinstance(item, _NESTED))
