"""Server processes: started while the SDK loads, and diagnosed when the sandbox refuses access."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import re
from collections.abc import Iterable, Iterator

import msgspec

from callgate.core.commands import Command, Launcher, OnOutput, Running, Stream
from callgate.core.errors import ToolError
from callgate.features.mcp.client import directories
from callgate.sandbox import allowed_hosts, sight
from callgate.sandbox.jails import Jail, Network, below_any, is_below
from callgate.sandbox.profiles import SECRETS

_MOST_WAITING = 1024 * 1024
"""Maximum buffered output in bytes; reading pauses beyond it."""


class EarlyStart:
    """A process that starts while the SDK loads; its output is buffered until `take`."""

    def __init__(self, launcher: Launcher, command: Command) -> None:
        self._launcher = launcher
        self._command = command
        self._waiting: list[tuple[Stream, bytes]] = []
        self._size = 0
        self._taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hear: OnOutput | None = None
        self._stdin: int | None = None
        self._running: Running | None = None

    async def begin(self) -> None:
        """Start the process. Raises `ToolError`."""
        theirs, ours = os.pipe()
        self._stdin = ours
        try:
            command = msgspec.structs.replace(self._command, stdin=theirs)
            self._running = await self._launcher.start(command, self._output)
        except OSError as error:
            self._close_stdin()
            raise _not_started(self._command.argv[0], error) from error
        except BaseException:
            self._close_stdin()
            raise
        finally:
            os.close(theirs)

    def take(self, hear: OnOutput) -> tuple[Running, int]:
        """Return the process and the descriptor of its stdin, once. `hear` receives its output."""
        assert self._running is not None and self._stdin is not None
        stdin, self._stdin = self._stdin, None
        self._hear = hear
        for stream, data in self._waiting:
            hear(stream, data)
        self._waiting.clear()
        self._taken.set_result(None)
        return self._running, stdin

    async def abandon(self) -> None:
        """Stop the process unless `take` was called."""
        if self._running is None or self._hear is not None:
            return
        self._hear = _ignore
        self._taken.set_result(None)
        self._close_stdin()
        self._running.stop(0.0)
        await self._running.wait()

    def _output(self, stream: Stream, data: bytes) -> asyncio.Future[None] | None:
        if self._hear is not None:
            return self._hear(stream, data)
        self._waiting.append((stream, data))
        self._size += len(data)
        return self._taken if self._size > _MOST_WAITING else None

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None


def _not_started(program: str, error: OSError) -> ToolError:
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        why = "the program does not exist or is not visible in the sandbox"
    return ToolError(f"{program} cannot be started: {why}")


def _ignore(stream: Stream, data: bytes) -> None:
    return None


_LONGEST_TEXT = 64 * 1024
_MOST = 3
"""Maximum number of lines for each kind of refusal."""
_READ_ONLY = re.compile(r"\b(?:EROFS|EACCES|EPERM)\b|read-only file system|permission denied", re.I)
_WRITING = re.compile(r"EROFS|read-only file system|\b(?:mkdir|open|write|rename|copyfile)\b", re.I)
_PATH = re.compile(r"/[^\s'\"`;|&<>()\[\]{}:,*?$\\]+")
_UNREACHED = re.compile(
    r"""\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ECONNREFUSED)\b|getaddrinfo|name\ resolution
    |fetch\ failed|Name\ or\ service\ not\ known|Could\ not\ resolve\ host|Network\ is\ unreachable
    |All\ connection\ attempts\ failed|Failed\ to\ establish\ a\ new\ connection
    |connection\ (?:error|issue|failed)|\[Errno\ -[23]\]
    |ERR_(?:NAME_NOT_RESOLVED|INTERNET_DISCONNECTED|ADDRESS_UNREACHABLE|CONNECTION_REFUSED
    |TUNNEL_CONNECTION_FAILED|PROXY_CONNECTION_FAILED|NETWORK_ACCESS_DENIED)""",
    re.I | re.VERBOSE,
)
_URL = re.compile(r"\b(https?|wss?)://([^\s/'\"<>?#@]+)", re.I)
_NAMED_HOST = re.compile(
    r"(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|resolve host:?)\s+([A-Za-z0-9._:\[\]-]+)",
    re.I,
)
_UNIX_SOCKET = re.compile(
    r"process_singleton|socket\(\) failed: Operation not permitted"
    r"|Protocol error \(Target\.|Failed to launch the browser process",
    re.I,
)
"""The second line: Chrome exited during its start, and Playwright does not pass on its message."""
_BROWSER_SANDBOX = re.compile(
    r"No usable sandbox|move to new namespace|without --no-sandbox|zygote_host_impl", re.I
)
_PROGRAMS = frozenset({"bin", "sbin", "library", "applications", "desktop"})
"""Directories in a home from which a shell or a desktop starts programs."""
_CODE = ("/node_modules/", "/site-packages/", "/dist-packages/")
_PLAIN_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The access of one server process, and the settings that widen it."""

    name: str
    jail: Jail
    user_home: str
    private_home: str
    """The server's private HOME."""
    table: str
    """The settings table that controls the access, such as `[mcp.NAME]`."""
    approved: bool = True
    """Whether a changed table needs `callgate mcp approve`."""

    def explain(self, text: str, blocked: Iterable[str] = ()) -> str:
        """Return a line for each refusal that an error text shows; empty if there are none.

        `blocked`: the `host:port` that the proxy refused.
        """
        text = text[-_LONGEST_TEXT:]
        lines = (
            *itertools.islice(self._writes(text), _MOST),
            *itertools.islice(self._hidden(text), _MOST),
            *itertools.islice(self._hosts(text, blocked), _MOST),
            *self._browsers(text),
        )
        return "\n".join(dict.fromkeys(lines))

    def _refused(self, action: str, allow: str, *, setting: bool = True) -> str:
        approve = (
            f", then run callgate mcp approve {self.name}" if self.approved and setting else ""
        )
        return f"[The sandbox refused MCP server {self.name!r} {action}. {allow}{approve}.]"

    # --- files --------------------------------------------------------------------------------

    def _writes(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            if not _READ_ONLY.search(line) or not _WRITING.search(line):
                continue
            path = next((each for each in _PATH.findall(line) if self._is_read_only(each)), None)
            if path is None:
                continue
            action = f"to write {path!r}"
            directory = os.path.dirname(path)
            if is_below(path, os.path.dirname(self.private_home)) or any(
                each in path for each in _CODE
            ):
                advice = f"Its own code is read-only: its arguments or `set_env` in `{self.table}`"
                yield self._refused(action, f"{advice} must name a file in {self.private_home!r}")
            elif self._may_be_written(directory):
                grant = f'`writable = ["{directory}"]` in `{self.table}`'
                yield self._refused(action, f"Set {grant} to allow it")
            else:
                advice = f"It can write only in the workspace and in {self.private_home!r}"
                yield self._refused(action, advice, setting=False)

    def _is_read_only(self, path: str) -> bool:
        real, jail = os.path.realpath(path), self.jail
        if below_any(real, ("/dev", "/proc")) or (jail.fresh_tmp and is_below(real, "/tmp")):  # noqa: S108
            return False
        return not below_any(real, jail.writable) or below_any(real, jail.protected)

    def _may_be_written(self, directory: str) -> bool:
        """Return whether a message may suggest `writable` for a directory.

        Directories with a leading dot contain settings and programs of shells, editors, desktops,
        agents and version control, which run outside the sandbox.
        """
        names = os.path.relpath(os.path.realpath(directory), os.path.realpath(self.user_home))
        return self._may_be_granted(directory) and not any(
            name.startswith(".") or name.lower() in _PROGRAMS for name in names.split("/")
        )

    def _may_be_granted(self, directory: str) -> bool:
        """Return whether a message may suggest access to a path: no secrets, no system files."""
        if not directory.isprintable():
            return False
        home, real = os.path.realpath(self.user_home), os.path.realpath(directory)
        if not is_below(real, home) or real == home or below_any(real, self.jail.hidden):
            return False
        if below_any(real, self.jail.protected) or not [*directories.without_shared([real], home)]:
            return False
        names = os.path.relpath(real, home).split("/")
        secrets = [os.path.join(home, each) for each in SECRETS]
        secret = below_any(real, secrets) or any(
            is_below(each, real) for each in (*secrets, *self.jail.hidden)
        )
        return not secret and (len(names) > 1 or not names[0].startswith("."))

    def _hidden(self, text: str) -> Iterator[str]:
        for path in sight.unseen(self.jail, self.user_home, text):
            if is_below(os.path.realpath(path), os.path.realpath(self.private_home)):
                continue
            allow = (
                "Your home directory and secrets are hidden from it, except the paths in"
                f" `{self.table}`"
            )
            if self._may_be_granted(path):
                allow = f'Add "{path}" to `readable` in `[sandbox]` to allow it'
            yield self._refused(f"to read {path!r}", allow, setting=False)

    # --- network ------------------------------------------------------------------------------

    def _hosts(self, text: str, blocked: Iterable[str]) -> Iterator[str]:
        if self.jail.network is Network.ALL:
            return
        found = dict.fromkeys(_unreached(text)) or dict.fromkeys(blocked)
        for host in found:
            entry = self._entry(host)
            if entry is None:
                continue
            named = [*map(str, self.jail.hosts), entry]
            listed = ", ".join(f'"{each}"' for each in dict.fromkeys(named))
            yield self._refused(
                f"the network host {entry!r}",
                f"Set `network = [{listed}]` in `{self.table}` to allow this host",
            )
        if not found and _UNREACHED.search(text) and self.jail.network is Network.NONE:
            yield self._refused(
                "the network",
                f'Set `network = ["HOST"]` in `{self.table}` to allow hosts',
            )

    def _entry(self, authority: str) -> str | None:
        """Return the settings entry for a host; None if it is allowed already or not allowable."""
        try:
            host, port = allowed_hosts.split(authority)
        except ValueError:
            return None
        ports = allowed_hosts.DEFAULT_PORTS if port is None else (port,)
        if all(allowed_hosts.find(self.jail.hosts, host, each) for each in ports):
            return None
        is_address = allowed_hosts.is_address(host)
        if is_address and allowed_hosts.is_metadata(host):
            return None
        local = not is_address and "." not in host
        shown = f"[{host}]" if ":" in host else host
        suffix = "" if port in (None, *allowed_hosts.DEFAULT_PORTS) else f":{port}"
        return f"{'private:' if local else ''}{shown}{suffix}"

    # --- browsers -----------------------------------------------------------------------------

    def _browsers(self, text: str) -> Iterator[str]:
        if _UNIX_SOCKET.search(text) and not (self.jail.own_sockets or self.jail.unix_sockets):
            yield self._refused(
                "Unix sockets, which its browser needs",
                f"Set `unix_sockets = true` in `{self.table}` to allow them among its own"
                " processes",
            )
        if _BROWSER_SANDBOX.search(text):
            yield self._refused(
                "namespaces, which its browser needs for the browser's own sandbox",
                f"Add --no-sandbox to the browser's arguments in `{self.table}`: the browser runs"
                " in callgate's sandbox",
            )


def _unreached(text: str) -> Iterator[str]:
    """Yield `host` or `host:port` from the lines about failed connections."""
    for line in text.splitlines():
        if not _UNREACHED.search(line):
            continue
        for found in _NAMED_HOST.finditer(line):
            if not _is_number(found[1]):
                yield found[1].rstrip(".:")
        for scheme, authority in _URL.findall(line):
            has_port = re.search(r":\d+\Z", authority) is not None
            port = _PLAIN_PORTS[scheme.lower()]
            yield (
                authority
                if has_port or port in allowed_hosts.DEFAULT_PORTS
                else f"{authority}:{port}"
            )


def _is_number(text: str) -> bool:
    """Return whether it is an IPv6 address without brackets, ambiguous with host and port."""
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
