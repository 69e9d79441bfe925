"""User and machine settings of npm, uv and pip for a package fetch."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from callgate.features.mcp.client.directories import private_caches
from callgate.features.mcp.client.package_commands import Manager
from callgate.redaction.texts import redact
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.jails import is_below
from callgate.sandbox.plans import child_environment, without_secrets_keys

_NPM = r"""
    npm_config_(?:.*[-_:](?:_auth|_authtoken|_password|username|certfile|keyfile)|_auth|_authtoken
    |.*registry|registry|proxy|https[-_]proxy|noproxy|ca|cafile|cert|key|strict[-_]ssl
    |userconfig|globalconfig|fetch[-_].*|maxsockets|local[-_]address|ignore[-_]scripts|before
    |min[-_]release[-_]age|offline|prefer[-_](?:on|off)line|replace[-_]registry[-_]host)
    | npm_token | node_auth_token | node_use_system_ca | node_use_env_proxy
    | node_tls_reject_unauthorized
"""
_PIP = r"""
    pip_(?:index_url|extra_index_url|find_links|no_index|trusted_host|cert|client_cert|proxy
    |config_file|default_timeout|timeout|retries|disable_pip_version_check|only_binary|no_binary
    |prefer_binary|uploaded_prior_to|use_feature|use_deprecated)
"""
_UV = r"""
    uv_(?:.*index.*|find_links|native_tls|system_certs|insecure_host|config_file|no_config|http_.*
    |request_.*|offline|python|python_preference|python_downloads|python_install_mirror
    |exclude_newer|no_build|no_binary)
    | ssl_client_cert
"""
_PROXIES = "(?:http|https|all|no)_proxy"
_VARIABLES: dict[Manager, re.Pattern[str]] = {
    "npm": re.compile(f"(?:{_NPM}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
    "uv": re.compile(f"(?:{_UV}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
    "pip": re.compile(f"(?:{_PIP}|{_PROXIES})\\Z", re.IGNORECASE | re.VERBOSE),
}
_PATH_VARIABLES = re.compile(
    r"""(?:npm_config_(?:.*:)?(?:userconfig|globalconfig|cafile|certfile|keyfile)
    |(?:pip|uv)_(?:config_file|find_links)|pip_cert|pip_client_cert|ssl_client_cert|ssl_cert_file
    |ssl_cert_dir|node_extra_ca_certs|requests_ca_bundle|curl_ca_bundle|nix_ssl_cert_file
    )\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_SECRET_NAMES = re.compile(r"(?:token|_auth|password|(?:\A|[-_:])key)\Z", re.IGNORECASE)
_LOGIN_NAMES = re.compile(
    r"(?:token|_auth|password|username|certfile|keyfile|(?:\A|[-_:])(?:key|cert))\Z", re.IGNORECASE
)
_PROXY_NAMES = re.compile(r"(?:\A|[-_])proxy\Z", re.IGNORECASE)
_NPM_FILES = re.compile(r"npm_config_(?:user|global)config\Z", re.IGNORECASE)
_AUTHORITIES = re.compile(
    r"(?:npm_config_)?cafile\b|ssl_cert_|node_extra_ca_certs|.*_ca_bundle|nix_ssl_cert_file",
    re.IGNORECASE,
)
_NODE_OPTIONS = re.compile(r"--(?:use-(?:openssl|system|bundled)-ca|tls-(?:min|max)-v1\.[0-3])\Z")
"""The Node options that are passed to npm; other options can run code."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:\?|:?-[^}]*)?\}")
_USER_INFO = re.compile(r"://([^\s/@\"']+)@")
_NPM_PATHS = re.compile(r"(?:cafile|(?:.*:)?(?:certfile|keyfile))\Z", re.IGNORECASE)
_LONGEST = 1024 * 1024
_SHORTEST_SECRET = 4
_RETRIES = {
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "5000",
}
"""Milliseconds. npm's defaults are 10 s and 60 s, without any output while it waits."""


class NpmLine(NamedTuple):
    text: str
    """The line in the file."""
    key: str
    value: str
    """The value, with variables expanded."""


class StepSettings(NamedTuple):
    env: dict[str, str]
    """All variables of the step."""
    files: tuple[str, ...]
    """Files that the step can read in addition to its own directory."""


class ManagerSettings(NamedTuple):
    step: StepSettings
    secrets: tuple[str, ...]
    ignored: tuple[str, ...]
    """Settings that are ignored because their path is in the workspace or relative."""
    authorities: tuple[str, ...]
    """Files of the step with CA certificates."""
    npmrc: tuple[NpmLine, ...]
    """The lines of all npmrc files, the machine's first."""
    usual: frozenset[str]
    """Variables that every program gets. They are no login, even if they contain a user name."""
    downloads: str
    services: tuple[AllowedHost, ...]
    """Registries and proxies on this machine."""

    def script_step(self) -> StepSettings:
        """Return npm's settings without logins, for the scripts of packages.

        One file with the other lines replaces all npmrc files. Proxies stay, because scripts need
        them for downloads.
        """
        path = os.path.join(self.downloads, "npmrc-without-logins")
        with open(path, "x", encoding="utf-8") as file:
            file.writelines(
                f"{each.text}\n" for each in self.npmrc if self._is_public(each.key, each.value)
            )
        env = {
            name: value
            for name, value in self.step.env.items()
            if name in self.usual or (self._is_public(name, value) and not _NPM_FILES.match(name))
        }
        fixed = {"npm_config_userconfig": path, "npm_config_globalconfig": f"{path}-of-the-machine"}
        return StepSettings({**env, **fixed}, self.authorities)

    def _is_public(self, name: str, value: str) -> bool:
        """Return whether a setting contains no login."""
        if _PROXY_NAMES.search(name):
            return True
        return not _LOGIN_NAMES.search(name) and not any(each in value for each in self.secrets)

    def covered(self, text: str) -> str:
        """Return the text with tokens and passwords masked."""
        for secret in self.secrets:
            text = text.replace(secret, "[REDACTED]")
        return redact(text)


class _Found:
    """Collects the settings files of a fetch and their contents."""

    def __init__(self, workspace: Sequence[str], home: str) -> None:
        # If the workspace contains the home, all settings are in it, so they are allowed.
        self._workspace = [each for each in workspace if not is_below(home, each)]
        self.files: dict[str, None] = {}
        self.authorities: list[str] = []
        self.texts: list[str] = []
        self.npmrc: list[list[NpmLine]] = []
        """Lines by file, the user's first."""
        self.ignored: list[str] = []

    def add(self, setting: str, path: str) -> bool:
        """Add a file unless its path is relative or in the workspace. Return whether it counts."""
        spellings = (os.path.normpath(path), os.path.realpath(path))
        inside = any(is_below(each, root) for each in spellings for root in self._workspace)
        if inside or not os.path.isabs(path):
            self.ignored.append(f"{setting} = {path}")
            return False
        if os.path.exists(path):
            self.files[path] = None
            if _AUTHORITIES.match(setting):
                self.authorities.append(path)
        return True

    def read(self, setting: str, path: str) -> str:
        """Return the text of a settings file; empty if it is missing or does not count."""
        if not os.path.isfile(path) or not self.add(setting, path):
            return ""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_LONGEST)
        except OSError:
            return ""
        self.texts.append(text)
        return text


def manager_settings(
    manager: Manager,
    environ: Mapping[str, str],
    home: str,
    downloads: str,
    workspace: Sequence[str],
) -> ManagerSettings:
    """Return the settings of one fetch, with its caches below `downloads`."""
    roots = [os.path.realpath(each) for each in workspace]
    found = _Found(roots, os.path.realpath(home))
    ours = without_secrets_keys(environ)
    passed = {name: value for name, value in ours.items() if _VARIABLES[manager].match(name)}
    env = {**child_environment(ours), **passed}
    for name in [name for name in env if _PATH_VARIABLES.match(name)]:
        counts = [found.add(name, path) for path in _paths(name, env[name])]
        if not all(counts):
            del env[name]
    lines = _READERS[manager](ours, env, home, found)
    fixed = {
        **private_caches(downloads),
        "UV_PYTHON_INSTALL_DIR": os.path.join(os.path.dirname(downloads), "python"),
        "npm_config_update_notifier": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return ManagerSettings(
        step=StepSettings({**env, **fixed}, tuple(found.files)),
        secrets=_secrets([*env.items(), *lines], found.texts),
        ignored=tuple(found.ignored),
        authorities=tuple(found.authorities),
        npmrc=tuple(line for file in reversed(found.npmrc) for line in file),
        usual=frozenset({*child_environment(ours), *fixed} - {*passed}),
        downloads=downloads,
        services=_local_services([*env.items(), *lines], found.texts),
    )


def _paths(name: str, value: str) -> list[str]:
    """Return the paths in a variable. URLs in a list of links are skipped."""
    if not name.lower().endswith("find_links"):
        return [os.path.expanduser(value)]
    return [os.path.expanduser(each) for each in value.split() if "://" not in each]


# --- npm -----------------------------------------------------------------------------------------


def _npm(
    environ: Mapping[str, str], env: dict[str, str], home: str, found: _Found
) -> list[tuple[str, str]]:
    """Add the variables that npm needs, and return the keys and values of its files.

    A variable names the global npmrc explicitly, because npm looks for it below its prefix.
    """
    lower = {name.lower(): name for name in env}
    named = lower.get("npm_config_userconfig")
    user = _npmrc(environ, home, found, env[named] if named else os.path.join(home, ".npmrc"))
    named = lower.get("npm_config_globalconfig")
    machine_path = env[named] if named else _global_npmrc(environ, dict(user), home)
    machine = _npmrc(environ, home, found, machine_path)
    if named is None and machine_path in found.files:
        env["npm_config_globalconfig"] = machine_path
    for text in found.texts:
        for name in _REFERENCE.findall(text):
            if name in environ:
                env[name] = environ[name]
    options = [
        each for each in environ.get("NODE_OPTIONS", "").split() if _NODE_OPTIONS.match(each)
    ]
    if options:
        env["NODE_OPTIONS"] = " ".join(options)
    names = {*lower, *(f"npm_config_{key.replace('-', '_')}" for key, _ in (*user, *machine))}
    if not any(name.startswith("npm_config_fetch_") for name in names):
        env.update(_RETRIES)
    return [*user, *machine]


def _npmrc(
    environ: Mapping[str, str], home: str, found: _Found, path: str
) -> list[tuple[str, str]]:
    """Return the keys and values of one npmrc."""
    lines = []
    for line in found.read("npmrc", path).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            text = _REFERENCE.sub(lambda name: environ.get(name[1], ""), value.strip().strip("\"'"))
            lines.append(NpmLine(line, key.strip(), text))
    found.npmrc.append(lines)
    for _, key, value in lines:
        if _NPM_PATHS.match(key):
            found.add(f"{key} in {path}", _with_home(value, home))
    return [(each.key, each.value) for each in lines]


def _global_npmrc(environ: Mapping[str, str], user: Mapping[str, str], home: str) -> str:
    """Return the path as npm finds it: below the configured prefix, else below node's prefix."""
    if "globalconfig" in user:
        return _with_home(user["globalconfig"], home)
    prefix = next(
        (value for name, value in environ.items() if name.lower() == "npm_config_prefix"),
        user.get("prefix"),
    )
    if not prefix:
        node = shutil.which("node", path=environ.get("PATH"))
        if node is None:
            return ""
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(node)))
    return os.path.join(_with_home(prefix, home), "etc", "npmrc")


def _with_home(path: str, home: str) -> str:
    return os.path.join(home, path[2:]) if path.startswith("~/") else path


# --- uv and pip ----------------------------------------------------------------------------------


def _uv(
    environ: Mapping[str, str], env: dict[str, str], home: str, found: _Found
) -> list[tuple[str, str]]:
    directory = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    user = os.path.join(directory, "uv", "uv.toml")
    for path in ("/etc/uv/uv.toml", user, env.get("UV_CONFIG_FILE", "")):
        try:
            table = tomllib.loads(found.read("uv.toml", path))
        except (ValueError, RecursionError):
            continue
        for each in (table, table.get("pip")):
            links = each.get("find-links", ()) if isinstance(each, dict) else ()
            for link in links if isinstance(links, list) else ():
                _add_local(f"find-links in {path}", str(link), home, found)
    return []


def _pip(
    environ: Mapping[str, str], env: dict[str, str], home: str, found: _Found
) -> list[tuple[str, str]]:
    directory = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    paths = (
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(directory, "pip", "pip.conf"),
        env.get("PIP_CONFIG_FILE", ""),
    )
    for path in paths:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(found.read("pip.conf", path))
        except configparser.Error:
            continue
        for section in parser.sections():
            for key, value in parser.items(section):
                if key in ("cert", "client-cert"):
                    found.add(f"{key} in {path}", _with_home(value, home))
                elif key == "find-links":
                    for link in value.split():
                        _add_local(f"{key} in {path}", link, home, found)
    return []


def _add_local(setting: str, link: str, home: str, found: _Found) -> None:
    path = _with_home(link.removeprefix("file://"), home)
    if os.path.isabs(path):
        found.add(setting, path)


_Reader = Callable[[Mapping[str, str], dict[str, str], str, _Found], list[tuple[str, str]]]
_READERS: dict[Manager, _Reader] = {"npm": _npm, "uv": _uv, "pip": _pip}


# --- registries and proxies on this machine ------------------------------------------------------


def _local_services(
    settings: Iterable[tuple[str, str]], texts: Iterable[str]
) -> tuple[AllowedHost, ...]:
    """Return the services of this machine that settings name by a URL, or as a proxy."""
    urls = [
        f"http://{value}" if _PROXY_NAMES.search(name) and "://" not in value else value
        for name, value in settings
    ]
    return allowed_hosts.local_services((*urls, *texts))


# --- secrets -------------------------------------------------------------------------------------


def _secrets(settings: Iterable[tuple[str, str]], texts: Iterable[str]) -> tuple[str, ...]:
    """Return tokens and passwords, the longest first."""
    settings = list(settings)
    found = {value for name, value in settings if _SECRET_NAMES.search(name)}
    for text in (*texts, *(value for _, value in settings)):
        for user_info in _USER_INFO.findall(text):
            found |= {user_info, *user_info.split(":"), *unquote(user_info).split(":")}
    return tuple(sorted((each for each in found if len(each) >= _SHORTEST_SECRET), key=len)[::-1])
