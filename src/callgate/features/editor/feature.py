"""The agent of an editor (ACP)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.feature import Feature


def _settings() -> type:
    from callgate.features.editor.settings import EditorSettings  # lazy: with a table in the file  # noqa: PLC0415

    return EditorSettings


def _commands() -> Mapping[str, Any]:
    from callgate.features.editor.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


FEATURE = Feature(
    name="editor",
    settings=_settings,
    commands=_commands,
)
