"""Names the usual model in the user's settings."""

from __future__ import annotations

import json
import os

from callgate.cli.ui.terminal import say
from callgate.config.home import Home, write_private
from callgate.config.load import load_changed


def choose_model(home: Home, name: str, table: str = "") -> None:
    """Write it on top, where no table has begun yet; its own `table`, if it needs one, at the
    end. `SettingsError` where the settings would be wrong then."""
    path = os.path.realpath(home.settings)
    try:
        with open(path, encoding="utf-8") as file:
            before = file.read()
    except FileNotFoundError:
        before = ""
    text = f"model = {json.dumps(name)}\n{before}" + (f"\n{table}" if table else "")
    load_changed(home, text.encode(), path)  # it still has to be right
    home.make()
    write_private(path, text)
    say(f"{path} names {name} now.")
