"""The process that stores pre-images of a command, and the performing thread's end of it.

    performing thread: Recorder --- descriptor, path ---> storing process: Store

The performing thread is in the command's Landlock domain and, with namespaces, among its mounts. It
can append lines to the log, but it cannot reach the stored files. The storing process is outside of
both. It receives an open descriptor of each file to store, so no path can be exchanged.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys

from callgate.core.local.preimage_store import Store
from callgate.core.local.preimages import LOG

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from callgate.sandbox.orders import Preimages

_LONGEST_REQUEST = 8192


def prepare(order: Preimages) -> None:
    """Load the module that encrypts, once for all commands of the broker."""
    if order["key"] is None:
        return
    sys.path.append(order["modules"])
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # lazy: only with a key  # noqa: F401, PLC0415
    except ImportError as error:
        raise OSError(errno.ENOSYS, str(error)) from error
    finally:
        sys.path.remove(order["modules"])


def open_log(order: Preimages) -> int:
    """Create the log of a command, and lock it as long as it is open."""
    path = os.path.join(order["directory"], LOG)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    log = os.open(path, flags, 0o600)
    fcntl.flock(log, fcntl.LOCK_SH)
    return log


def serve(order: Preimages, channel: socket.socket) -> None:
    """Store files for a performing thread, until it closes its end."""
    store = Store(
        order["directory"],
        order["max_file"],
        order["max_total"],
        key=order["key"],
        strict=order["strict"],
        tolerant=order["tolerant"],
    )
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(channel, _LONGEST_REQUEST, 1)
        except OSError:
            return
        if not request or not descriptors:
            return
        try:
            path = request[1:]
            is_link = request[:1] == b"L"
            answer = store.link(descriptors[0], path) if is_link else store.copy(descriptors[0])
        except OSError as error:
            answer = b"?%d" % (error.errno or errno.EIO)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(answer)


class RemoteStore:
    """The performing thread's end of a store."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def link(self, file: int, path: bytes) -> bytes:
        return self._ask(b"L" + path, file)

    def copy(self, file: int) -> bytes:
        return self._ask(b"C", file)

    def _ask(self, request: bytes, file: int) -> bytes:
        socket.send_fds(self._channel, [request], [file])
        answer = self._channel.recv(_LONGEST_REQUEST)
        if not answer:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if answer[:1] == b"?":
            number = int(answer[1:])
            raise OSError(number, os.strerror(number))
        return answer
