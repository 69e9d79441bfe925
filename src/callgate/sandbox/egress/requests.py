"""What a command asks of the proxy: one request head, read strictly, and how it is passed on.

    CONNECT host:port HTTP/1.1                 a tunnel
    GET http://host[:port]/path HTTP/1.1       one request, passed on as `GET /path`

Nothing else is understood, and nothing is repaired: where two programs could read a head in
two ways, it is refused. A body has a length that was said once. What is passed on is written
anew, with the target's own name as Host, so the server sees the host that was judged.
No I/O here.
"""

from __future__ import annotations

import re

import msgspec

from callgate.sandbox import allowed_hosts

LARGEST_HEAD = 32 * 1024
_MOST_FIELDS = 200

_REQUEST_LINE = re.compile(rb"([A-Z]{1,32}) ([\x21-\x7e]{1,16384}) HTTP/1\.[01]\Z")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)\Z")
_ABSOLUTE = re.compile(r"http://([^/?#]*)([/?][^#]*)?\Z", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_OF_A_CONNECTION = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"proxy-authorization",
        b"keep-alive",
        b"te",
        b"trailer",
        b"upgrade",
        b"host",
        b"content-length",
    }
)
"""Not passed on as they are: about this connection alone, or written anew."""


class Malformed(ValueError):
    """A request that is not passed on, with the status that says so."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Request(msgspec.Struct, frozen=True):
    host: str
    port: int
    head: bytes = b""
    """What the server is sent first. Nothing: it is a tunnel, and all bytes are the command's."""
    body: int = 0
    """How many bytes of the command's follow the head."""

    @property
    def authority(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def parse(head: bytes) -> Request:
    """Read a head, up to and with its empty line. Raises `Malformed`."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request_line = _REQUEST_LINE.match(lines[0])
    if request_line is None:
        raise Malformed(400, "this is no HTTP/1 request")
    fields = _fields(lines[1:])
    method, target = request_line[1], request_line[2].decode("ascii")
    if method == b"CONNECT":
        host, port = _split(target)
        if port is None:
            raise Malformed(400, "CONNECT names a host and a port")
        return Request(host, port)
    found = _ABSOLUTE.match(target)
    if found is None:
        raise Malformed(400, "a proxy is asked for http://host/path, or to CONNECT")
    host, port = _split(found[1])
    length = _body_length(fields)
    named = _bracketed(host) + ("" if port is None else f":{port}")
    passed_on = [
        method + b" /" + (found[2] or "").removeprefix("/").encode("ascii") + b" HTTP/1.1",
        b"Host: " + named.encode("ascii"),
        *(name + b": " + value for name, value in _end_to_end(fields)),
        *([] if length is None else [b"Content-Length: %d" % length]),
        b"Connection: close",
    ]
    return Request(host, port or 80, b"\r\n".join(passed_on) + b"\r\n\r\n", length or 0)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(authority: str) -> tuple[str, int | None]:
    try:
        return allowed_hosts.split(authority)
    except ValueError as error:
        raise Malformed(400, str(error)) from None


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > _MOST_FIELDS:
        raise Malformed(431, "too many fields")
    found = [_FIELD.match(line) for line in lines]
    fields = [(field[1], field[2].strip(b" \t")) for field in found if field is not None]
    if len(fields) != len(lines):
        raise Malformed(400, "a header field is not one")
    for once in (b"host", b"content-length"):
        if len(_values(fields, once)) > 1:
            raise Malformed(400, f"{once.decode()} is said twice")
    return fields


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in fields if each.lower() == name]


def _body_length(fields: list[tuple[bytes, bytes]]) -> int | None:
    lengths = _values(fields, b"content-length")
    if _values(fields, b"transfer-encoding"):
        if lengths:
            raise Malformed(400, "a body has either a length or an encoding")
        raise Malformed(411, "the length of a body must be said")
    if not lengths:
        return None
    if _LENGTH.match(lengths[0]) is None:
        raise Malformed(400, "content-length is not a number")
    return int(lengths[0])


def _end_to_end(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = b",".join(_values(fields, b"connection")).split(b",")
    dropped = _OF_A_CONNECTION | {name.strip().lower() for name in named}
    return [(name, value) for name, value in fields if name.lower() not in dropped]
