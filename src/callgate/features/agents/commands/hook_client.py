"""The client that an agent's hook runs: sends the event to an instance and prints the answer.

    hook_client.py AGENT pre|post|prompt DIRECTORY REFUSAL SECONDS   < event
    hook_client.py AGENT run DIRECTORY TICKET

On a failure after a call or at a prompt, it prints nothing: the agent continues. On any failure
before a call it prints REFUSAL with the reason inserted. If it cannot, the shell
script around it prints a refusal. DIRECTORY is `hooks` in callgate's home. The module uses only the
standard library and runs as a script, so that no other module is imported.
"""

from __future__ import annotations

import _socket  # imports in a tenth of the time of `socket`
import os
import sys

REASON = "@REASON@"
_RUN_S = 86_400.0
_CONNECT_S = 5
_PROMPT_S = 5.0
"""Time limit for a prompt, which waits for no person."""
_QUIET = ("post", "prompt")
_MAX_EVENT = 32 * 1024 * 1024
_MOST_ANSWER = 16 * 1024 * 1024
_NO_INSTANCE = "No callgate instance is running, so nothing was run. Start it with callgate protect"


class NoAnswer(Exception):
    pass


class NoInstance(NoAnswer):
    """No process listens. `str(error)` ends with the command to start one, without the agent."""


def main(argv: list[str], stdin: int = 0, stdout: int = 1) -> int:
    agent, phase, directory, last = argv[:4]
    if phase == "run":
        return _run(agent, directory, last, stdout)
    try:
        limit_s = _PROMPT_S if phase == "prompt" else float(argv[4])
        answer = _ask(agent, phase, directory, _read_event(stdin), limit_s)
    except NoAnswer as error:
        reason = f"{error} {agent}" if isinstance(error, NoInstance) else str(error)
        answer = b"" if phase in _QUIET else _refusal(last, reason)
    except (OSError, ValueError) as error:
        reason = f"callgate is not reachable: {getattr(error, 'strerror', None) or error}"
        answer = b"" if phase in _QUIET else _refusal(last, reason)
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
        raise NoAnswer(f"The event of the hook is larger than {_MAX_EVENT} bytes.")
    return b"".join(pieces)


def _ask(agent: str, phase: str, directory: str, event: bytes, limit_s: float) -> bytes:
    if phase not in ("pre", *_QUIET):
        raise NoAnswer("The phase of a hook must be pre, post or prompt.")
    header = _header(agent, directory, f', "phase": "{phase}", "size": {len(event)}')
    kind, sizes, answer = _converse(directory, header + event, limit_s)
    if kind != b"callgate-hook" or len(sizes) != 1 or int(sizes[0]) != len(answer):
        raise NoAnswer("The answer of the callgate instance is incomplete.")
    return answer


def _run(agent: str, directory: str, ticket: str, stdout: int) -> int:
    """Run the command of a ticket in callgate's sandbox."""
    if not all(letter.isalnum() or letter in "-_" for letter in ticket):
        sys.stderr.write("callgate: the ticket is invalid\n")
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
    """Send a request to the newest instance that answers.

    Returns the first word of the first line, its other words, and the rest of the answer.
    """
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
                raise NoAnswer("The answer of the callgate instance is too long.")
    finally:
        connection.close()
    line, _, body = answer.partition(b"\n")
    words = line.split(b" ")
    if len(words) < 2:
        raise NoAnswer("The callgate instance refused the event. Run callgate hook status.")
    return words[0], words[1:], body


def _sockets(directory: str) -> str:
    """Return the directory of the instances' sockets.

    In the sandbox of an agent behind `callgate acp-proxy` it contains the proxy's socket instead.
    """
    sockets, proxies = os.path.join(directory, "sockets"), os.path.join(directory, "proxies")
    if os.path.isdir(sockets) or not os.path.isdir(proxies):
        return sockets
    names = os.listdir(proxies)
    return os.path.join(proxies, names[0]) if len(names) == 1 else sockets


def _connect(sockets: str) -> _socket.socket:
    """Connect to the newest instance.

    The listener must be the owner of the directory or root, because the request has a token.
    """
    try:
        names = [name for name in os.listdir(sockets) if name.endswith(".sock")]
        names.sort(key=lambda name: -os.stat(os.path.join(sockets, name)).st_mtime)
        fd = os.open(sockets, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise NoInstance(_NO_INSTANCE) from None
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
    raise NoInstance(_NO_INSTANCE)


def _owner(directory: int) -> int:
    """Return the owner of a directory. Raises `NoAnswer` if other users can write there."""
    status = os.fstat(directory)
    if status.st_mode & 0o022:
        raise NoAnswer("Other users can write to the directory of callgate's sockets.")
    return status.st_uid


def _peer_user(connection: _socket.socket) -> int:
    """Return the user id of the peer from the operating system."""
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
