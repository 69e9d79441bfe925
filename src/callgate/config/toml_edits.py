"""Edits of TOML texts that leave everything else as it is, comments and layout too. Pure.

    table_text(("mcp", "docs"), {...})     one table as TOML
    with_table(text, ("mcp", "docs"), …)   the text with that table at its end
    with_first(text, "model", "...")       the text with a key on top, before any table
    without_table(text, "mcp", "docs")     the text without that table and the tables inside
    without_top_table(text, "store")       the text without a table that stands by itself

tomlkit writes values and finds tables. What is added stands at the end or on top of the text, so
the rest keeps its bytes whatever tomlkit makes of it. Imported only by commands that edit
settings: importing tomlkit takes as long as a whole `callgate call`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item, Table, Whitespace


class NotATableError(ValueError):
    """The table cannot be taken out without a change of something else."""


def table_text(names: Sequence[str], values: Mapping[str, Any]) -> str:
    """A table as TOML; tables inside it are inline."""
    table = tomlkit.table()
    for key, value in values.items():
        table.add(key, _item(value))
    for name in reversed(names[1:]):
        outer = tomlkit.table(is_super_table=True)
        outer.add(name, table)
        table = outer
    document = tomlkit.document()
    document.add(names[0], table)
    return document.as_string()


def with_table(text: str, names: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with a table at its end, behind an empty line."""
    newline = _newline(text)
    end = "" if not text or text.endswith("\n") else newline
    return text + end + newline + table_text(names, values).replace("\n", newline)


def with_first(text: str, key: str, value: str) -> str:
    """The text with a key on top, where no table has begun yet."""
    return f"{key} = {_item(value).as_string()}{_newline(text)}{text}"


def without_table(text: str, parent: str, name: str) -> str:
    """The text without `[parent.name]` and the tables inside it. `NotATableError` where it is
    written in another way, such as inline."""
    remaining = tomllib.loads(text)
    del remaining[parent][name]
    edited = _cut(text, parent, name)
    if _without_empty(tomllib.loads(edited), parent) != _without_empty(remaining, parent):
        raise NotATableError(f"[{parent}.{name}] is not a table of its own")
    return edited


def without_top_table(text: str, name: str) -> str:
    """The text without `[name]`. `NotATableError` where it is written in another way."""
    remaining = tomllib.loads(text)
    remaining.pop(name, None)
    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise NotATableError(str(error)) from None
    body = document.body
    for at, (key, item) in enumerate(body):
        if key is not None and key.key == name and isinstance(item, Table):
            body[at] = (None, Whitespace(_comments_at_end(item)))
    edited = document.as_string()
    if tomllib.loads(edited) != remaining:
        raise NotATableError(f"[{name}] is not a table of its own")
    return edited


def _cut(text: str, parent: str, name: str) -> str:
    try:
        document = tomlkit.parse(text)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise NotATableError(str(error)) from None
    for outer_key, outer in document.body:
        if outer_key is None or outer_key.key != parent or not isinstance(outer, Table):
            continue
        body = outer.value.body
        for at, (key, item) in enumerate(body):
            if key is None or key.key != name or key.is_dotted():
                continue
            if isinstance(item, Table):
                # As white space, which makes tomlkit write no header for it.
                body[at] = (None, Whitespace(_comments_at_end(item)))
    return document.as_string()


def _comments_at_end(table: Table) -> str:
    """The comments behind a table's last value that stand directly above the next header: for
    tomlkit they are part of the table, for people they are about what follows."""
    trailing: list[str] = []
    for key, item in reversed(table.value.body):
        if key is not None:
            if isinstance(item, Table) and not key.is_dotted():
                return _comments_at_end(item) + "".join(trailing)
            break
        if not item.as_string().strip():
            break
        trailing.insert(0, item.as_string())
    return "".join(trailing)


def _without_empty(tree: dict[str, Any], parent: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != parent or value != {}}


def _item(value: Any) -> Item:
    if isinstance(value, Mapping):
        inline = tomlkit.inline_table()
        for key, each in value.items():
            inline.add(key, _item(each))
        return inline
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(map(_item, value))
        return array
    plain: Item = tomlkit.item(value)
    return plain


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
