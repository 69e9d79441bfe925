"""The supported third-party agents, one module each, and the files of their hooks.

A new agent needs a module with a value `AGENT`, its name in `KNOWN`, and a fixture in
`tests/features/agents/hook_protocol/events`. Start with `values`, which defines the facts about an
agent. No other module of callgate compares an agent's name or has a table of agents.

After a run in the sandbox, only sessions, logs and logins remain in an agent's directories in the
user's home (`agent_homes`). Settings, hooks, plugins, skills, tools, programs and shell snapshots
are read-only, or exist only during the run.

    HOME/hooks/AGENT/hook             the agent runs it before and after each call
    HOME/hooks/AGENT/token            permits only the events of that agent
    HOME/hooks/sockets/PID.sock       an instance accepts events here
    HOME/hooks/proxies/PID/PID.sock   `callgate acp-proxy` accepts its own agent's events
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from callgate.features.agents.known import (
    claude,
    cline,
    codex,
    copilot,
    cursor,
    gemini,
    goose,
    kimi,
    opencode,
    qwen,
    vibe,
)
from callgate.features.agents.known.values import UNKNOWN as UNKNOWN
from callgate.features.agents.known.values import Agent, Hooks
from callgate.policy.rules import is_within
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import AllowedHost

_SETTINGS = (".json", ".toml", ".yaml", ".env")
"""Endings of files whose URLs the agent itself contacts, in contrast to instructions."""

KNOWN: dict[str, Agent] = {
    each.AGENT.name: each.AGENT
    for each in (
        claude, codex, gemini, cursor, opencode, qwen, vibe, kimi, copilot, cline, goose,
    )
}  # fmt: skip
"""Agents by name, in the order of lists in commands."""


def hooked() -> dict[str, Hooks]:
    """Return the hooks of all agents with hooks, by name."""
    return {name: each.hooks for name, each in KNOWN.items() if each.hooks is not None}


def hooks_of(agent: str) -> Hooks:
    """Return the hooks of an agent. Raises `KeyError` if there are none."""
    return hooked()[agent]


def find(argv: Sequence[str]) -> tuple[str, Agent]:
    """Find an agent's program or package in a command line. Return its name and the agent.

    Programs that start the agent, such as `npx` and `node`, are skipped. For an unknown agent,
    return the name of the program and `UNKNOWN`.
    """
    names = {name: agent for agent in KNOWN.values() for name in agent.programs}
    for word in argv:
        for name in (_name(word), _package(word)):
            if name in names:
                return name, names[name]
    return _name(argv[0]), UNKNOWN


def used_directories(
    agent: str, environ: Mapping[str, str] = os.environ, user: str | None = None
) -> list[str] | None:
    """Return the existing directories in which an agent was used, resolved; None: unknown."""
    read = KNOWN[agent].used_directories
    if read is None:
        return None
    found: dict[str, None] = {}
    for path in read(environ, Path(user or os.path.expanduser("~"))):
        if isinstance(path, str) and os.path.isabs(path) and "\0" not in path:
            found[os.path.realpath(path)] = None
    return sorted(path for path in found if os.path.isdir(path))


def model_hosts(agent: Agent, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of an agent's model: from its variables, and the default ones."""
    named = (_host(environ[name]) for name in agent.addresses if environ.get(name))
    return (*filter(None, named), *agent.hosts)


def local_services(
    agent: str, environ: Mapping[str, str], workspace: str
) -> tuple[AllowedHost, ...]:
    """Return the services of this machine that the user's settings of an agent name by a URL."""
    texts = list(environ.values())
    homes = (each.location(os.path.expanduser("~"), environ) for each in KNOWN[agent].homes)
    for home, entry in zip(homes, KNOWN[agent].homes, strict=True):
        if home is None or is_within(os.path.realpath(home), workspace):
            continue
        texts += [
            settings_text(os.path.join(home, name)) or ""
            for name in entry.configuration
            if name.endswith(_SETTINGS)
        ]
    return allowed_hosts.local_services(texts)


def _name(word: str) -> str:
    base = os.path.basename(word.rstrip("/")).partition("@")[0]
    if not base and "@" in word:  # `@scope/name@1.2`, whose last part is not empty, or `@latest`
        base = word.rpartition("@")[0].rpartition("/")[2]
    for ending in (".js", ".mjs", ".cjs", ".py"):
        base = base.removesuffix(ending)
    return base.lower()


def _package(word: str) -> str:
    """Return the npm package of a file; "" for any other word."""
    _, found, path = word.rpartition("/node_modules/")
    names = path.split("/")
    return names[1] if found and path.startswith("@") and len(names) > 1 else names[0] * bool(found)


def _host(address: str) -> str | None:
    try:
        url = urlsplit(address if "://" in address else f"https://{address}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    if not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    prefix = "private:" if host == "localhost" else ""
    return f"{prefix}{shown}" if port is None else f"{prefix}{shown}:{port}"


DIRECTORY = "hooks"
SOCKETS = "sockets"
PROXIES = "proxies"
_LARGEST = 4 * 1024 * 1024


def _in_place(agent: str, path: str, environ: Mapping[str, str]) -> str | None:
    """Return the path in the directory of the agent's variable; None if it is not set."""
    user = os.path.expanduser("~")
    for home in KNOWN[agent].homes:
        prefix = f"~/{home.path}/"
        if home.path and path.startswith(prefix) and environ.get(home.variable):
            return os.path.join(home.location(user, environ) or "", path[len(prefix) :])
    return None


def user_file(agent: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's settings file, which an installation edits."""
    path = hooks_of(agent).user
    return _in_place(agent, path, environ) or os.path.expanduser(path)


def settings_files(
    agent: str, workspace: str, environ: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """Yield the absolute path of every file that can change an agent's hooks.

    A directory means all files in it.
    """
    hooks = hooks_of(agent)
    yield user_file(agent, environ)
    for path in (hooks.project, *hooks.protected):
        if path is not None:
            yield os.path.join(workspace, os.path.expanduser(path))
            if (moved := _in_place(agent, path, environ)) is not None:
                yield moved


def user_files(agent: str, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the paths of `settings_files` in the user's home, outside of repositories."""
    hooks = hooks_of(agent)
    yield user_file(agent, environ)
    for path in (hooks.user, *hooks.protected):
        if path.startswith("~/"):
            yield os.path.expanduser(path)
            if (moved := _in_place(agent, path, environ)) is not None:
                yield moved


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`.

    A repository may contain a FIFO or a device in place of settings, which would block the reader.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def settings_text(path: str) -> str | None:
    """Return the text of a settings file; None if it does not exist.

    The text of an unreadable file is `?`, which is invalid in every format.
    """
    try:
        with open_regular(path) as file:
            return file.read(_LARGEST).decode("utf-8", "replace").removeprefix("\ufeff")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError:
        return "?"


def hook_directory(home: str, agent: str) -> str:
    return os.path.join(home, DIRECTORY, agent)


def sockets_directory(home: str) -> str:
    return os.path.join(home, DIRECTORY, SOCKETS)


def hook_name(home: str, agent: str) -> str:
    """Return the name of callgate's hook in the agent's settings.

    A repository's settings can turn a hook off by its name. The name is therefore derived from the
    token, which no repository knows.
    """
    import hashlib  # lazy: most callers need no name  # noqa: PLC0415

    try:
        with open(token_file(home, agent), "rb") as file:
            return f"callgate-{hashlib.sha256(file.read(256)).hexdigest()[:16]}"
    except OSError:
        return "callgate"


def proxies_directory(home: str) -> str:
    return os.path.join(home, DIRECTORY, PROXIES)


def token_file(home: str, agent: str) -> str:
    return os.path.join(hook_directory(home, agent), "token")
