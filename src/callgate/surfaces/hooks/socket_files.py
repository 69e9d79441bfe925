"""The socket of an instance for the hooks of agents: its file, made and removed."""

from __future__ import annotations

import os
import socket

from callgate.config.agents.settings_files import sockets_directory
from callgate.core.directories import make_private_directory

_BACKLOG = 64


def bind(home: str) -> socket.socket:
    """The listening socket of an instance. Raises `OSError`."""
    directory = sockets_directory(home)
    make_private_directory(directory)
    _reap(directory)
    return bind_in(directory)


def bind_in(directory: str) -> socket.socket:
    """A listening socket in a directory that exists. Raises `OSError`."""
    name = f"{os.getpid()}.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # by descriptor: a path to a socket may be no longer than 107 bytes
        listening.bind(f"/proc/self/fd/{fd}/{name}")
        os.chmod(os.path.join(directory, name), 0o600)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(fd)
    return listening


def release(home: str, listening: socket.socket) -> None:
    """Idempotent."""
    listening.close()
    try:
        os.unlink(os.path.join(sockets_directory(home), f"{os.getpid()}.sock"))
    except OSError:
        pass


def _reap(directory: str) -> None:
    """Remove sockets of processes that are gone, and an older one of this process."""
    for name in os.listdir(directory):
        pid = name.partition(".")[0]
        if pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}"):
            os.unlink(os.path.join(directory, name))
