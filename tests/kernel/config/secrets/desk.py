"""A home whose settings name a key, with a secret of each kind in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from callgate.config.home import Home
from callgate.config.secret_opening import TokenFile
from callgate.core.models import Key
from callgate.features.chat.models.make import store_key, stored_keys
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.oauth import OAuthClient, Tokens
from callgate_catalogue.settings import GoogleTable

VARIABLE, NEW = "CALLGATE_SECRETS_KEY", "CALLGATE_SECRETS_NEW"
ONE, TWO = "one-0123456789-abcdefghij-klmnopqrst", "two-0123456789-abcdefghij-klmnopqrst"
SETTINGS = f'[secrets]\nkey_env = "{VARIABLE}"\n'
NAMES = ["google.json", "keys.json", "mcp/web.tokens"]
MODEL, ACCESS, REFRESH = "sk-canary-1f2e3d4c", "ya29.canary-5a6b7c", "1//canary-8d9e0f"
TOKENS = Tokens(access_token=ACCESS, refresh_token=REFRESH, expires_at=0.0, scopes=("s",))


def settings(home: Path, text: str = SETTINGS) -> None:
    (home / "settings.toml").write_text(text)


def fill(home: Path) -> None:
    store_key(Home(str(home)), "openai", Key(MODEL))
    tokens(home).write({"tokens": {"access_token": ACCESS, "refresh_token": REFRESH}})
    accounts(home).put("default", TOKENS, OAuthClient("c"), read_only=False)


def accounts(home: Path) -> GoogleAccounts:
    return GoogleAccounts(str(home), GoogleTable())


def tokens(home: Path) -> TokenFile:
    return TokenFile(str(home / "mcp" / "web.tokens"), str(home))


def contents(home: Path) -> dict[str, Any]:
    """What is read of all three."""
    return {
        "keys": {name: key.reveal() for name, key in stored_keys(Home(str(home))).items()},
        "tokens": tokens(home).read(),
        "google": accounts(home).known().accounts["default"].refresh_token,
    }


EVERYTHING = {
    "keys": {"openai": MODEL},
    "tokens": {"tokens": {"access_token": ACCESS, "refresh_token": REFRESH}},
    "google": REFRESH,
}


def on_disk(home: Path) -> dict[str, str]:
    return {name: (home / name).read_text() for name in NAMES}


def shows(text: str | bytes) -> list[str]:
    """Which of our secrets are in a text."""
    data = text.encode() if isinstance(text, str) else text
    known = (ONE, TWO, MODEL, ACCESS, REFRESH)
    return [each for each in known if each.encode() in data or json.dumps(each)[1:-1].encode() in data]
