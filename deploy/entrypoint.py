#!/opt/callgate/bin/python
"""Start callgate in a container: build settings from a file and variables, then run the command.

    callgate-entrypoint serve ...       writes settings.toml into the home, becomes `callgate serve`
    callgate-entrypoint check URL       exits with 0 if the URL answers 200, for HEALTHCHECK

The settings come from $CALLGATE_SETTINGS (default /etc/callgate/settings.toml), if that file
exists; the variables below override them. Without both, the home's settings stay unchanged.
Variables that became settings are removed from the environment, so no process that callgate starts
sees the password of the database.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import urllib.request
from collections.abc import MutableMapping

BASE = "/etc/callgate/settings.toml"
VARIABLES = {
    "CALLGATE_STORE_URL": ("store", "url"),
    "CALLGATE_STORE_LISTEN_URL": ("store", "listen_url"),
    "CALLGATE_STORE_SCHEMA": ("store", "schema"),
    "CALLGATE_ADVERTISE_URL": ("instance", "advertise_url"),
    "CALLGATE_PUBLIC_URL": ("instance", "public_url"),
}
"""Variables and the settings keys that they set."""


def main(words: list[str]) -> None:
    if words[:1] == ["check"]:
        sys.exit(check(words[1]))
    write_settings(os.environ)
    os.execvp("callgate", ["callgate", *words])  # noqa: S606  # replaces this process


def check(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # the image names it
            return 0 if answer.status == 200 else 1
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


def write_settings(environ: MutableMapping[str, str]) -> None:
    """Write the settings of the home, and remove the variables that became settings."""
    import tomlkit  # lazy: a health check runs every few seconds  # noqa: PLC0415

    base = environ.get("CALLGATE_SETTINGS", BASE)
    given = {key: environ.pop(name) for name, key in VARIABLES.items() if name in environ}
    given = {key: value for key, value in given.items() if value}
    if not given and not os.path.exists(base):
        return
    settings = tomlkit.document()
    if os.path.exists(base):
        with open(base, encoding="utf-8") as opened:
            settings = tomlkit.parse(opened.read())
    for (table, key), value in given.items():
        settings.setdefault(table, tomlkit.table())[key] = value
    home = os.path.expanduser(environ.get("CALLGATE_HOME") or "~/.callgate")
    os.makedirs(home, mode=0o700, exist_ok=True)
    file, written = tempfile.mkstemp(dir=home, prefix="settings.")  # readable only by its owner
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        opened.write(tomlkit.dumps(settings))
    os.replace(written, os.path.join(home, "settings.toml"))


if __name__ == "__main__":
    main(sys.argv[1:])
