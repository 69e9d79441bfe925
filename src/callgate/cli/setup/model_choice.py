"""Names the usual model in the user's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from callgate.cli.ui.terminal import say
from callgate.config.home import Home


def choose_model(home: Home, name: str, table: Mapping[str, str] | None = None) -> None:
    """Write it on top, where no table has begun yet; its own `table`, if it needs one, at the
    end. `SettingsError` where the settings would be wrong then."""
    from callgate.config.settings_file import editing  # lazy: tomlkit is slow to import  # noqa: PLC0415

    with editing(home) as settings:
        settings.put_first("model", name)
        if table is not None:
            settings.add("models", name, table=table)
    say(f"{os.path.realpath(home.settings)} names {name} now.")
