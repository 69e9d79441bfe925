"""The interface through which every command is started.

Whoever runs a command makes a `Command` and gives it to a `Launcher`. A sandbox is a launcher:
it starts the same command with less in reach. Nothing else starts commands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from callgate.core.commands import Command as Command
from callgate.core.commands import Launcher as Launcher
from callgate.core.commands import Running as Running

_NAMES = """
    PATH HOME USER LOGNAME SHELL TMPDIR TMP TEMP TZ
    LANG LANGUAGE LC_ALL LC_ADDRESS LC_COLLATE LC_CTYPE LC_IDENTIFICATION LC_MEASUREMENT
    LC_MESSAGES LC_MONETARY LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME
    TERM COLORTERM NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE
    XDG_CACHE_HOME XDG_CONFIG_DIRS XDG_CONFIG_HOME XDG_DATA_DIRS XDG_DATA_HOME XDG_STATE_HOME
    SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS
    GIT_SSL_CAINFO PIP_CERT NIX_SSL_CERT_FILE
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_ROOT NVM_DIR JAVA_HOME GOPATH GOROOT
    CARGO_HOME RUSTUP_HOME ANDROID_HOME DOTNET_ROOT LD_LIBRARY_PATH
"""
_PASSED_ON = frozenset(_NAMES.split())
"""Where programs and files are, and how to speak: nothing that proves who someone is."""

_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


SECRETS_PREFIX = "CALLGATE_SECRETS_"
"""Variables that begin so hold a key of `[secrets]`, and no process that we start gets one."""


def without_secrets_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that is to have all of ours but the keys of `[secrets]`."""
    return {name: environ[name] for name in environ if not name.startswith(SECRETS_PREFIX)}


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a command may see of our environment: named variables only, and no secret.

    A list of what passes, because no list of what must not is ever complete. Keys, tokens,
    agents' sockets, `LD_PRELOAD`, `BASH_ENV`, exported functions and every CALLGATE_ variable
    stay behind. A proxy passes unless its address holds a password.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_ON or (name.upper() in _PROXIES and "@" not in value)
    }


def with_proxy(environ: Mapping[str, str], port: int, served: Collection[str]) -> dict[str, str]:
    """The environment of a command that reaches the network by a proxy on its own loopback.

    `served` are hosts behind the proxy: the loopback's own names are otherwise reached directly.
    """
    inherited = {name: value for name, value in environ.items() if name.upper() not in _PROXIES}
    address = f"http://127.0.0.1:{port}"
    direct = ",".join(name for name in _LOOPBACK if name not in served)
    proxies = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "ALL_PROXY": address}
    if direct:
        proxies["NO_PROXY"] = direct
    return inherited | proxies | {name.lower(): value for name, value in proxies.items()}
