"""Edits of `settings.toml` by commands: validated, atomic, comments unchanged.

    table_text(("mcp", "docs"), {...})     one table as TOML
    with_table(text, ("mcp", "docs"), …)   the text with that table at its end
    with_first(text, "model", "...")       the text with a key at the top, before any table
    with_value(text, "policy", "key", …)   the text with a key of a table set to a value
    without_table(text, "mcp", "docs")     the text without that table and the tables inside
    without_top_table(text, "store")       the text without a separate table

tomlkit writes values and finds tables. Additions go to the end or the top of the text, so the
remaining bytes do not depend on tomlkit. Only commands that edit settings import this module:
importing tomlkit takes as long as a whole `callgate call`.

Settings of one package of tools.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Item, Table, Whitespace

from callgate.config.home import Home, alone_in
from callgate.config.load import load_changed, load_user
from callgate.core.local.disk import write_private


def read_settings(name: str) -> tuple[str, Any]:
    """Return the path of the home and the settings of a package. Raises `SettingsError`."""
    home = Home.from_environment()
    return home.path, load_user(home)[0].of_pack(name)


class NotATableError(ValueError):
    """The table cannot be removed without another change."""


def table_text(names: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return a table as TOML; tables inside it are inline."""
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
    """Return the text with a table at its end, after an empty line."""
    newline = _newline(text)
    end = "" if not text or text.endswith("\n") else newline
    return text + end + newline + table_text(names, values).replace("\n", newline)


def with_first(text: str, key: str, value: str) -> str:
    """Return the text with a key at the top, before any table."""
    return f"{key} = {_item(value).as_string()}{_newline(text)}{text}"


def with_value(text: str, table: str, key: str, value: str) -> str:
    """Return the text with a key of `[table]` set.

    Raises `NotATableError` if it has another form, such as an inline table.
    """
    expected = tomllib.loads(text)
    expected[table] = {**expected.get(table, {}), key: value}
    line = f"{key} = {_item(value).as_string()}{_newline(text)}"
    lines = text.splitlines(keepends=True)
    candidates = [
        "".join([*lines[:at], line, *lines[at + 1 :]])
        for at, each in enumerate(lines)
        if each.partition("=")[0].strip() == key
    ]
    candidates += [
        "".join([*lines[: at + 1], line, *lines[at + 1 :]])
        for at, each in enumerate(lines)
        if each.partition("#")[0].strip() == f"[{table}]"
    ]
    candidates.append(with_table(text, (table,), {key: value}))
    for edited in candidates:
        try:
            if tomllib.loads(edited) == expected:
                return edited
        except tomllib.TOMLDecodeError:
            continue
    raise NotATableError(f"[{table}] is not a table of its own")


def without_table(text: str, parent: str, name: str) -> str:
    """Return the text without `[parent.name]` and the tables inside it.

    Raises `NotATableError` if it has another form, such as an inline table.
    """
    remaining = tomllib.loads(text)
    del remaining[parent][name]
    edited = _cut(text, parent, name)
    if _without_empty(tomllib.loads(edited), parent) != _without_empty(remaining, parent):
        raise NotATableError(f"[{parent}.{name}] is not a table of its own")
    return edited


def without_top_table(text: str, name: str) -> str:
    """Return the text without `[name]`. Raises `NotATableError` if it has another form."""
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
                # White space makes tomlkit write no header for it.
                body[at] = (None, Whitespace(_comments_at_end(item)))
    return document.as_string()


def _comments_at_end(table: Table) -> str:
    """Return the comments between a table's last value and the next header.

    tomlkit counts them to the table; people read them as comments on the next one.
    """
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


class SettingsFile:
    """The text of the file. Each edit raises `SettingsError` if it would make the settings
    invalid.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        try:
            with open(home.settings, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        self.settings = load_changed(home, data, home.settings)[0]
        self.text = data.decode("utf-8")

    @property
    def servers(self) -> Mapping[str, Any]:
        """The tables of MCP servers, by name."""
        tables: Mapping[str, Any] = tomllib.loads(self.text).get("mcp", {})
        return tables

    def add(self, *names: str, table: Mapping[str, Any]) -> None:
        """Add a table at the end."""
        self._replace(with_table(self.text, names, table))

    def put_first(self, key: str, value: str) -> None:
        """Add a key at the top."""
        self._replace(with_first(self.text, key, value))

    def put(self, table: str, key: str, value: str) -> None:
        """Set a key of a table. Raises `NotATableError` if it has another form."""
        self._replace(with_value(self.text, table, key, value))

    def remove(self, parent: str, name: str) -> None:
        """Remove a table. Raises `NotATableError` if it has another form."""
        self._replace(without_table(self.text, parent, name))

    def set_table(self, name: str, table: Mapping[str, Any]) -> None:
        """Replace a table with this name; an empty one removes it.

        Raises `NotATableError` if it has another form.
        """
        text = without_top_table(self.text, name)
        self._replace(with_table(text, (name,), table) if table else text)

    def write(self) -> None:
        """Write the file, readable by its owner only: it may contain credentials."""
        # Some users store their settings elsewhere, with a link here: it remains a link.
        write_private(os.path.realpath(self._home.settings), self.text)

    def _replace(self, text: str) -> None:
        self.settings = load_changed(self._home, text.encode(), self._home.settings)[0]
        self.text = text


@contextmanager
def editing(home: Home) -> Iterator[SettingsFile]:
    """Edit the settings, which are written at the end. Concurrent edits lose nothing."""
    home.make()
    with alone_in(home.path):
        settings = SettingsFile(home)
        yield settings
        settings.write()
