"""What the fetching step sees of the user's settings, and where programs keep their caches.

Registries often need a token. It is in the package manager's own files and variables, which the
fetching step sees and the server does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from callgate.sandbox.launch import child_environment, without_secrets_keys
from callgate.sources.packages.package_commands import Manager

_NPM = r"""
    npm_config_(?:.*registry|.*_auth(?:token)?|proxy|https_proxy|noproxy|ca|cafile|cert|key|strict_ssl
    |userconfig|globalconfig|fetch_.*|maxsockets) | npm_token | node_auth_token
"""
_PIP = r"""
    pip_(?:index_url|extra_index_url|find_links|no_index|trusted_host|cert|client_cert|proxy
    |config_file|default_timeout|timeout|retries|disable_pip_version_check|only_binary|no_binary)
"""
_UV = r"""
    uv_(?:.*index.*|find_links|native_tls|system_certs|insecure_host|config_file|http_.*|request_.*
    |offline|keyring_provider|python|python_preference|python_downloads|python_install_mirror)
"""
_PROXIES = "(?:http|https|all|no)_proxy"
_NAMES: dict[Manager, re.Pattern[str]] = {
    "npm": re.compile(f"(?:{_NPM}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
    "uv": re.compile(f"(?:{_UV}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
    "pip": re.compile(f"(?:{_PIP}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
}
_FILES: dict[Manager, tuple[str, ...]] = {
    "npm": (".npmrc",),
    "uv": (".config/uv",),
    "pip": (".config/pip", ".pip"),
}
_NAMED_FILES = re.compile(r"(?:npm_config_(?:user|global)config|(?:pip|uv)_config_file)\Z", re.I)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\??\}")
_LONGEST = 64 * 1024
_SHARED = (
    ".npm",
    ".cache/node",
    ".local/share/pnpm",
    ".cache/pnpm",
    ".cache/yarn",
    ".yarn",
    ".bun",
    ".cache/uv",
    ".local/share/uv",
    ".cache/pipx",
    ".local/share/pipx",
    ".local/pipx",
    ".cache/deno",
)
"""Below a home: what package managers share between all that they run, also outside of us."""


def fetching_environment(
    manager: Manager, environ: Mapping[str, str], home: str, downloads: str
) -> dict[str, str]:
    """The variables of the fetching step, which puts its caches below `downloads`."""
    wanted = _NAMES[manager]
    passed = {name: value for name, value in environ.items() if wanted.match(name)}
    if manager == "npm":
        named = _referenced(os.path.join(home, ".npmrc"))
        ours = without_secrets_keys(environ)
        passed |= {name: ours[name] for name in named if name in ours}
    return {
        **child_environment(environ),
        **passed,
        **private_caches(downloads),
        "UV_PYTHON_INSTALL_DIR": os.path.join(os.path.dirname(downloads), "python"),
        "npm_config_update_notifier": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def private_caches(cache: str) -> dict[str, str]:
    """Every package manager's directories, below one of its own."""
    directories = {
        "XDG_CACHE_HOME": "",
        "npm_config_cache": "npm",
        "PNPM_HOME": "pnpm",
        "YARN_CACHE_FOLDER": "yarn",
        "YARN_GLOBAL_FOLDER": "yarn-global",
        "BUN_INSTALL_CACHE_DIR": "bun",
        "UV_CACHE_DIR": "uv",
        "UV_TOOL_DIR": "uv-tools",
        "UV_TOOL_BIN_DIR": "uv-bin",
        "UV_PYTHON_INSTALL_DIR": "uv-python",
        "PIP_CACHE_DIR": "pip",
        "PIPX_HOME": "pipx",
        "PIPX_BIN_DIR": "pipx-bin",
        "DENO_DIR": "deno",
        "COREPACK_HOME": "corepack",
    }
    return {
        name: os.path.join(cache, directory).rstrip("/") for name, directory in directories.items()
    }


def configuration(manager: Manager, environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """The files and directories of the user's in which a package manager is set up."""
    named = [value for name, value in environ.items() if _NAMED_FILES.match(name)]
    paths = [*(os.path.join(home, name) for name in _FILES[manager]), *named]
    if "XDG_CONFIG_HOME" in environ and manager != "npm":
        paths.append(os.path.join(environ["XDG_CONFIG_HOME"], manager))
    return tuple(path for path in paths if os.path.isabs(path) and os.path.exists(path))


def without_shared(paths: Iterable[str], home: str) -> Iterator[str]:
    """Those that are no directory which package managers share."""
    shared = [os.path.realpath(os.path.join(home, name)) for name in _SHARED]
    for path in paths:
        real = os.path.realpath(path)
        if not any(real == each or real.startswith(f"{each}/") for each in shared):
            yield path


def _referenced(path: str) -> list[str]:
    """The variables that a .npmrc names."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _REFERENCE.findall(file.read(_LONGEST))
    except OSError:
        return []
