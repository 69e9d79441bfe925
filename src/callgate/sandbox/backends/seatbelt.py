"""The macOS sandbox: a jail as the text of a profile for `sandbox-exec -p`.

Written from the profile language's documented forms and tested as text only. Later rules win
over earlier ones, so the order is: refuse all, allow reading, allow writing, then take away
what is protected and hidden.
"""

from __future__ import annotations

from callgate.sandbox.jails import Jail, Network, below_any

_HEAD = """\
(version 1)
(deny default)
(allow process-exec process-fork)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-read-metadata)
(allow file-read* (literal "/"))
(allow file-ioctl (literal "/dev/tty"))
(allow file-read* file-write-data (literal "/dev/null") (literal "/dev/zero")
       (literal "/dev/random") (literal "/dev/urandom") (literal "/dev/tty"))
"""


def profile(jail: Jail) -> str:
    lines = [_HEAD.rstrip("\n")]
    visible = sorted({*jail.readable, *jail.writable})
    for path in visible:
        lines.append(f"(allow file-read* (subpath {quoted(path)}))")
    for path in sorted(jail.opaque):
        lines.append(f"(deny file-read* (subpath {quoted(path)}))")
    for path in visible:
        if below_any(path, jail.opaque):
            lines.append(f"(allow file-read* (subpath {quoted(path)}))")
    for path in sorted(jail.writable):
        lines.append(f"(allow file-write* (subpath {quoted(path)}))")
    for path in sorted(jail.protected):
        lines.append(f"(deny file-write* (subpath {quoted(path)}))")
        # A directory above it must not be moved away with it, and another put in its place.
        lines += [
            f"(deny file-write-unlink (literal {quoted(above)}))" for above in _above(path, jail)
        ]
    for path in sorted(jail.hidden):
        lines.append(f"(deny file-read* file-write* (subpath {quoted(path)}))")
    for path in sorted(jail.revealed):
        rights = "file-read* file-write*" if path in jail.writable else "file-read*"
        lines.append(f"(allow {rights} (subpath {quoted(path)}))")
    lines += _network(jail)
    return "\n".join(lines) + "\n"


def arguments(jail: Jail, command: tuple[str, ...]) -> tuple[str, ...]:
    return ("/usr/bin/sandbox-exec", "-p", profile(jail), *command)


def quoted(path: str) -> str:
    """A string of the profile language: nothing in a path ends it, or begins another rule."""
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ValueError(f"a path with control characters cannot be written: {path!r}")
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _above(path: str, jail: Jail) -> list[str]:
    """The directories between a protected path and the writable root that it is in."""
    directories = []
    directory = path.rpartition("/")[0]
    while directory and directory not in jail.writable:
        directories.append(directory)
        directory = directory.rpartition("/")[0]
    return directories if directory or "/" in jail.writable else []


def _network(jail: Jail) -> list[str]:
    lines = []
    if jail.network is Network.ALL:
        lines.append("(allow network*)")
        if not jail.unix_sockets:
            lines.append("(deny network-outbound (remote unix-socket))")
    elif jail.unix_sockets:
        lines.append("(allow network-outbound (remote unix-socket))")
    return lines
