"""Package registries that the configuration of the user and the machine names, as rules.

    /etc/npmrc, ~/.npmrc, /etc/pip.conf, ~/.config/pip/pip.conf, ~/.pip/pip.conf,
    /.cargo/config.toml, ~/.cargo/config.toml, $CARGO_HOME/config.toml, variables
                 --> hosts of each package manager --> rules about `connect_host`

The files of a workspace count for nothing: they may come from an untrusted source. A manager
without a configured registry uses its public one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from callgate.core.commands import CONNECT_HOST
from callgate.policy.installers import CARGO, NPM, PIP
from callgate.policy.rules import Outcome
from callgate.sandbox import allowed_hosts

_PUBLIC = {
    NPM: ("registry.npmjs.org",),
    PIP: ("pypi.org",),
    CARGO: ("index.crates.io", "static.crates.io"),
}
_FILES_OF_PYPI = "files.pythonhosted.org"
_NPM_FILES = ("/etc/npmrc", "~/.npmrc")
_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_CARGO_FILES = (
    *("/.cargo/config.toml", "/.cargo/config"),
    *("~/.cargo/config.toml", "~/.cargo/config"),
)
_NPM_LINE = re.compile(r"\s*(?:@[^:=\s]+:)?registry\s*=\s*(.+?)\s*\Z")
_PIP_LINE = re.compile(r"\s*(?:extra[-_])?index[-_]url\s*[=:]\s*(.*?)\s*\Z")
_NPM_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
_PIP_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_CARGO_VARIABLE = re.compile(r"CARGO_REGISTRIES_\w+_INDEX\Z")
_PORTS = {"http": 80, "https": 443}


def rules(home: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """Return a rule for each registry: commands that only install may connect to it."""
    return tuple(
        {
            "decision": str(Outcome.ALLOW),
            "tool": CONNECT_HOST,
            "arguments": {"host": host, "installs": manager},
        }
        for manager, hosts in registries(home, environ).items()
        for host in hosts
    )


def registries(home: str, environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the hosts of the registries of each package manager."""
    named = {
        NPM: [*_values(_lines(_NPM_FILES, home), _NPM_LINE), *_variables(environ, _NPM_VARIABLES)],
        PIP: [*_pip_values(_lines(_PIP_FILES, home)), *_variables(environ, _PIP_VARIABLES)],
    }
    found = {}
    for manager, texts in named.items():
        hosts = [host for text in texts if (host := _host(text)) is not None] or _PUBLIC[manager]
        files = (_FILES_OF_PYPI,) if _PUBLIC[PIP][0] in hosts else ()
        found[manager] = tuple(dict.fromkeys((*hosts, *files)))
    return {**found, CARGO: _cargo(home, environ)}


def _cargo(home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of Cargo's registries, and the public ones unless a source replaces them."""
    directory = environ.get("CARGO_HOME", "")
    of_variable = (
        (f"{directory}/config.toml", f"{directory}/config") if os.path.isabs(directory) else ()
    )
    texts: list[Any] = [environ[name] for name in sorted(environ) if _CARGO_VARIABLE.match(name)]
    is_replaced = False
    for document in _documents((*_CARGO_FILES, *of_variable), home):
        sources = _tables(document, "source")
        registries = _tables(document, "registries")
        texts += [each.get("index") for each in registries.values()]
        texts += [each.get("registry") for each in sources.values()]
        is_replaced = is_replaced or "replace-with" in sources.get("crates-io", {})
    named = [_host(text.removeprefix("sparse+")) for text in texts if isinstance(text, str)]
    hosts = [host for host in named if host is not None]
    return tuple(dict.fromkeys((*hosts, *(() if is_replaced else _PUBLIC[CARGO]))))


def _documents(paths: Iterable[str], home: str) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield tomllib.loads("\n".join(_lines((path,), home)))
        except (ValueError, RecursionError):
            continue  # Cargo does not read it either


def _tables(document: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    table = document.get(name)
    entries = table.items() if isinstance(table, dict) else ()
    return {key: value for key, value in entries if isinstance(value, dict)}


def _lines(paths: Iterable[str], home: str) -> Iterator[str]:
    for path in paths:
        try:
            with open(path.replace("~", home, 1), encoding="utf-8") as file:
                yield from file.read().splitlines()
        except (OSError, UnicodeDecodeError):
            continue  # missing, or not readable for the package manager either


def _values(lines: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    for line in lines:
        found = pattern.match(line)
        if found is not None:
            yield found[1]


def _pip_values(lines: Iterable[str]) -> Iterator[str]:
    """Yield the addresses of an index, also those in indented lines that continue a value."""
    continues = False
    for line in lines:
        found = _PIP_LINE.match(line)
        if found is not None:
            yield from found[1].split()
        elif continues and line[:1] in (" ", "\t"):
            yield from line.split()
        continues = found is not None or (continues and line[:1] in (" ", "\t"))


def _variables(environ: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield from environ.get(name, "").split()


def _host(text: str) -> str | None:
    """Return the host of an address, as lists of hosts have it; None if it has none."""
    try:
        address = urlsplit(text.strip("\"'"))
        host, port = address.hostname, address.port
        if host is None or address.scheme not in _PORTS:
            return None
        shown = f"[{host}]" if ":" in host else host
        is_usual = port is None or port == _PORTS[address.scheme]
        return str(allowed_hosts.parse(shown if is_usual else f"{shown}:{port}"))
    except ValueError:
        return None
