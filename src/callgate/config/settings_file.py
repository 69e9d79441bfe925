"""The user's `settings.toml` as a command edits it: checked, and written in one step."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from callgate.config.home import Home
from callgate.config.load import load_changed
from callgate.config.locks import alone_in
from callgate.config.toml_edits import with_first, with_table, without_table, without_top_table
from callgate.core.directories import write_private


class SettingsFile:
    """Its text. Each edit raises `SettingsError` where the settings would be wrong afterwards."""

    def __init__(self, home: Home) -> None:
        self._home = home
        try:
            with open(home.settings, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        load_changed(home, data, home.settings)
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
        """Add a key on top."""
        self._replace(with_first(self.text, key, value))

    def remove(self, parent: str, name: str) -> None:
        """Raises `NotATableError` where it is not a table of its own."""
        self._replace(without_table(self.text, parent, name))

    def set_table(self, name: str, table: Mapping[str, Any]) -> None:
        """Put a table in the place of one with this name; an empty one: have none.

        Raises `NotATableError` where it is not a table of its own."""
        text = without_top_table(self.text, name)
        self._replace(with_table(text, (name,), table) if table else text)

    def write(self) -> None:
        """For its owner alone: it may hold what proves who someone is."""
        # Some keep their settings elsewhere, and a link to them here: it stays one.
        write_private(os.path.realpath(self._home.settings), self.text)

    def _replace(self, text: str) -> None:
        load_changed(self._home, text.encode(), self._home.settings)
        self.text = text


@contextmanager
def editing(home: Home) -> Iterator[SettingsFile]:
    """The settings, written at the end: two who change them lose nothing of each other."""
    home.make()
    with alone_in(home.path):
        settings = SettingsFile(home)
        yield settings
        settings.write()
