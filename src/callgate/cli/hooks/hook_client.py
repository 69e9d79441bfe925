"""What an agent's hook runs: hands the event to an instance, prints the answer. Standard library
only, and run by its file, so that nothing else is loaded.

    hook_client.py AGENT pre|post DIRECTORY REFUSAL SECONDS   < event
    hook_client.py AGENT run DIRECTORY TICKET

Whatever goes wrong before a call, REFUSAL is printed, with the reason in it. The shell script
around it does the same where this cannot. DIRECTORY is `hooks` in the home of callgate.
"""

from __future__ import annotations

import _socket  # the part of `socket` that is needed, in a tenth of its time
import os
import sys

REASON = "@REASON@"
_RUN_S = 86_400.0
_CONNECT_S = 5
_MAX_EVENT = 32 * 1024 * 1024
_MOST_ANSWER = 16 * 1024 * 1024
_NO_INSTANCE = "No callgate instance runs: start one with callgate serve --detach."


class NoAnswer(Exception):
    pass


def main(argv: list[str], stdin: int = 0, stdout: int = 1) -> int:
    agent, phase, directory, last = argv[:4]
    if phase == "run":
        return _run(agent, directory, last, stdout)
    try:
        answer = _ask(agent, phase, directory, _read_event(stdin), float(argv[4]))
    except NoAnswer as error:
        answer = b"" if phase == "post" else _refusal(last, str(error))
    except (OSError, ValueError) as error:
        reason = f"callgate could not be asked: {getattr(error, 'strerror', None) or error}"
        answer = b"" if phase == "post" else _refusal(last, reason)
    _write(stdout, answer)
    return 0


def _read_event(stdin: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(stdin, 1 << 20):
        size += len(piece)
        if size <= _MAX_EVENT:
            pieces.append(piece)
    if size > _MAX_EVENT:
        raise NoAnswer("The event of the hook is larger than callgate takes.")
    return b"".join(pieces)


def _ask(agent: str, phase: str, directory: str, event: bytes, limit_s: float) -> bytes:
    if phase not in ("pre", "post"):
        raise NoAnswer("A hook is called with pre or post.")
    header = _header(agent, directory, f', "phase": "{phase}", "size": {len(event)}')
    kind, sizes, answer = _converse(directory, header + event, limit_s)
    if kind != b"callgate-hook" or len(sizes) != 1 or int(sizes[0]) != len(answer):
        raise NoAnswer("The callgate instance gave no whole answer.")
    return answer


def _run(agent: str, directory: str, ticket: str, stdout: int) -> int:
    """Run the command that a ticket stands for, in the sandbox of callgate."""
    if not all(letter.isalnum() or letter in "-_" for letter in ticket):
        sys.stderr.write("callgate: this is no ticket\n")
        return 1
    try:
        header = _header(agent, directory, f', "ticket": "{ticket}"')
        kind, sizes, text = _converse(directory, header, _RUN_S)
        if kind != b"callgate-run" or len(sizes) != 2 or int(sizes[1]) != len(text):
            raise NoAnswer("the ticket was used before, or its call has ended")
    except (NoAnswer, OSError, ValueError) as error:
        sys.stderr.write(f"callgate: nothing was run: {error}\n")
        return 1
    _write(stdout, text)
    return int(sizes[0])


def _header(agent: str, directory: str, more: str) -> bytes:
    with open(os.path.join(directory, agent, "token"), encoding="ascii") as file:
        token = file.read(256).strip()
    return f'{{"v": 1, "agent": "{agent}", "token": "{token}"{more}}}\n'.encode()


def _converse(directory: str, request: bytes, limit_s: float) -> tuple[bytes, list[bytes], bytes]:
    """Send a request to the newest instance that answers: the words of its first line, and what
    follows."""
    connection = _connect(_sockets(directory))
    try:
        connection.settimeout(limit_s)
        sent = 0
        while sent < len(request):
            sent += connection.send(request[sent : sent + (1 << 20)])
        answer = b""
        while piece := connection.recv(1 << 20):
            answer += piece
            if len(answer) > _MOST_ANSWER:
                raise NoAnswer("The callgate instance answered too much.")
    finally:
        connection.close()
    line, _, rest = answer.partition(b"\n")
    words = line.split(b" ")
    if len(words) < 2:
        raise NoAnswer("The callgate instance did not take the event: is the hook installed?")
    return words[0], words[1:], rest


def _sockets(directory: str) -> str:
    """The directory of the instances' sockets; in the sandbox of an agent behind `callgate
    acp-proxy` there is the socket of that proxy instead."""
    sockets, proxies = os.path.join(directory, "sockets"), os.path.join(directory, "proxies")
    if os.path.isdir(sockets) or not os.path.isdir(proxies):
        return sockets
    names = os.listdir(proxies)
    return os.path.join(proxies, names[0]) if len(names) == 1 else sockets


def _connect(sockets: str) -> _socket.socket:
    """A connection to the newest instance. The request has a token: the listener must be the
    owner of the directory, or root."""
    try:
        names = [name for name in os.listdir(sockets) if name.endswith(".sock")]
        names.sort(key=lambda name: -os.stat(os.path.join(sockets, name)).st_mtime)
        fd = os.open(sockets, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise NoAnswer(_NO_INSTANCE) from None
    try:
        owner = _owner(fd)
        for name in names[:8]:
            connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(f"/proc/self/fd/{fd}/{name}")
                if _peer_user(connection) not in (owner, 0):
                    raise NoAnswer("Another user listens on the socket of callgate.")
                return connection
            except OSError:
                connection.close()
            except NoAnswer:
                connection.close()
                raise
    finally:
        os.close(fd)
    raise NoAnswer(_NO_INSTANCE)


def _owner(directory: int) -> int:
    """The user whose instances listen in a directory. Nobody else may write there."""
    status = os.fstat(directory)
    if status.st_mode & 0o022:
        raise NoAnswer("Other users can write to the directory of callgate's sockets.")
    return status.st_uid


def _peer_user(connection: _socket.socket) -> int:
    """The user at the other end of a connection, as the system knows it."""
    if hasattr(_socket, "SO_PEERCRED"):  # Linux: pid, uid, gid
        data = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    else:  # macOS: LOCAL_PEERCRED of SOL_LOCAL: version, uid, ...
        data = connection.getsockopt(0, 1, 76)
    return int.from_bytes(data[4:8], sys.byteorder)


def _refusal(template: str, reason: str) -> bytes:
    escaped = "".join(
        letter if " " <= letter <= "~" and letter not in '"\\' else " " for letter in reason
    )
    return template.replace(REASON, escaped).encode()


def _write(stdout: int, data: bytes) -> None:
    while data:
        data = data[os.write(stdout, data) :]


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
