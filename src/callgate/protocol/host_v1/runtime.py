"""Both sides of one host process: requests out; answers, events and requests in.

The runtime's side is `RuntimeWire`:

    sent ----> in flight ---> Returned | Failed | Broken        exactly one of these
                   |
                   +--------> abandoned: later lines with the id are ignored

A host's stdout may contain anything, because plugins print. A line that is not a frame is reported
as `Passed` and has no effect. A line that can only be the answer to a request, but is unreadable,
ends that request as `Broken`. A host that sends nothing else is `hopeless`.

The host's side is `HostWire`. A request's id is in flight from its arrival to its one final answer;
events use only ids that are in flight. A host may send requests that the runtime offered in `init`
and the host announced in its answer, and only for a call that it is executing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from callgate.protocol import strict_json
from callgate.protocol.host_v1 import lines
from callgate.protocol.host_v1.frames import (
    OF_HOST,
    OF_RUNTIME,
    Answer,
    Emitted,
    ExecuteTool,
    Failed,
    Failure,
    Frame,
    Init,
    IsCancelled,
    Params,
    Passed,
    Request,
    Returned,
    excerpt,
)
from callgate.protocol.host_v1.lines import Breach, Fault, fault
from callgate.protocol.strict_json import MAX_LINE, Framer, line

MAX_NOISE = 100
"""Maximum consecutive lines that are not frames."""
MAX_NOISE_BYTES = 4 * MAX_LINE
MAX_STRAYS = 10_000
"""Maximum consecutive frames without a request in flight."""
MAX_ASKED = 64
"""Maximum pending requests of a host."""
_HEAD = 4_096
_ENDLESS = 2 * MAX_LINE


class Broken(msgspec.Struct, frozen=True):
    """A request that is over, because its answer violated the protocol."""

    id: str
    why: Breach
    """After `version` the caller has to end the host."""
    shown: str
    """The beginning of the line, for logs."""


Received = Returned | Failed | Emitted | Request[Any] | Fault | Broken | Passed


class RuntimeWire:
    __slots__ = (
        "_abandoned",
        "_agreed",
        "_framer",
        "_host_requests",
        "_in_flight",
        "_methods",
        "_noise",
        "_noise_bytes",
        "_offered",
        "_strays",
    )

    def __init__(self, methods: Mapping[str, type] = OF_HOST) -> None:
        """`methods`: the methods that we may request from the other side."""
        self._methods = methods
        self._framer = Framer(head=_HEAD)
        self._in_flight: dict[str, type] = {}
        """By id: the type of the params."""
        self._abandoned: set[str] = set()
        self._host_requests: dict[str, type] = {}
        """Pending requests of the host."""
        self._offered: frozenset[str] = frozenset()
        self._agreed: dict[str, type[Params]] = {}
        self._noise = self._noise_bytes = self._strays = 0

    @property
    def in_flight(self) -> Mapping[str, type]:
        """The requests without an outcome, each with the type of its params."""
        return self._in_flight

    @property
    def agreed(self) -> Iterable[str]:
        """The runtime's methods that were offered to the host, and that it announced."""
        return self._agreed.keys()

    @property
    def hopeless(self) -> Literal["noise", "too_long", "strays"] | None:
        """The reason to end this host, if it sends too much that is not a message."""
        if self._framer.longest > _ENDLESS:
            return "too_long"
        if self._noise > MAX_NOISE or self._noise_bytes > MAX_NOISE_BYTES:
            return "noise"
        return "strays" if self._strays > MAX_STRAYS else None

    # Output.

    def encode(self, frame: Request[Any] | Answer | Fault) -> bytes:
        """Encode a frame as a line. Raises `ValueError` for an id that is invalid, in flight, or
        without a request.

        An answer that cannot be encoded becomes a failure; a request raises `Unsendable`.
        """
        if isinstance(frame, Request):
            return self._request(frame)
        if isinstance(frame, Fault):
            return line(frame.failed)
        if frame.id not in self._host_requests:
            raise ValueError(f"the host did not ask {frame.id!r}")
        data = lines.sendable(frame)
        del self._host_requests[frame.id]
        return data

    def _request(self, request: Request[Any]) -> bytes:
        id, params = request.id, request.params
        if not lines.is_request_id(id):  # a host could not refer to the request
            raise ValueError("an id has 1 to 128 printable ASCII characters")
        if id in self._in_flight or id in self._abandoned:
            raise ValueError(f"request {id!r} is in flight")
        if self._methods.get(request.method) is not type(params):
            raise ValueError(f"{request.method!r} is not asked of a host with these params")
        data = line(request)
        self._in_flight[id] = type(params)
        if isinstance(params, Init) and params.runtime is not UNSET:
            self._offered = frozenset(params.runtime.answers)
        return data

    def abandon(self, id: str) -> None:
        """Stop waiting for a request. Its id is free again after the host has answered."""
        if self._in_flight.pop(id, None) is not None:
            self._abandoned.add(id)

    # Input.

    def drop(self) -> None:
        """Drop a line that does not end."""
        self._framer.drop()

    def receive(self, data: bytes) -> list[Received]:
        """Return one item for each complete line that is not blank."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Received:
        if received is None:
            return self._unreadable(self._framer.heads.popleft(), "too_long", MAX_LINE)
        frame = lines.canonical_answer(received)
        if frame is not None:
            return self._answered(frame.id, frame, received)
        try:
            value = strict_json.loads(received)
        except strict_json.StrictJsonError:
            return self._unreadable(received, "json", len(received))
        if type(value) is not dict:
            return self._passed("noise", received)
        if not lines.is_answer(value):
            return self._requested(value, received)
        id = value.get("id")
        if type(id) is not str:
            complaint = id is None and value.get("ok") is False
            return self._passed("complaint" if complaint else "noise", received)
        return self._answered(id, lines.read_answer(value), received)

    def _answered(
        self, id: str, frame: Returned | Failed | Emitted | Breach, received: bytes
    ) -> Received:
        request = self._in_flight.get(id)
        if request is None:
            return self._stray(id, not isinstance(frame, Emitted), received)
        if isinstance(frame, Returned):
            frame = lines.fitting(frame, request)
        if isinstance(frame, str):
            return self._broken(id, frame, received)
        if self._noise or self._strays:
            self._noise = self._noise_bytes = self._strays = 0
        if not isinstance(frame, Emitted):
            del self._in_flight[id]
            if request is Init and isinstance(frame, Returned):
                self._agree(frame)
        return frame

    def _agree(self, begun: Returned) -> None:
        """Apply the answer to `init`; one for another session changes nothing."""
        if (announced := begun.result.host) is not UNSET:
            names = self._offered.intersection(announced.asks, OF_RUNTIME)
            self._agreed = {name: OF_RUNTIME[name] for name in names}

    def _requested(self, value: dict[str, Any], received: bytes) -> Received:
        """Handle a request of the host. A plugin may have printed a request of the runtime."""
        if "method" not in value:
            return self._passed("noise", received)
        method = value["method"]
        if not self._agreed or type(method) is not str or method in self._methods:
            return self._passed("not_agreed", received)
        request = lines.read_request(value, self._agreed, self._host_requests)
        if isinstance(request, Request):
            request = self._permitted(request)
        if isinstance(request, Fault):
            self._count(len(received))
            return request
        self._noise = self._noise_bytes = self._strays = 0
        self._host_requests[request.id] = type(request.params)
        return request

    def _permitted(self, request: Request[Any]) -> Request[Any] | Fault:
        call = request.params.call
        if call in self._abandoned:
            if isinstance(request.params, IsCancelled):
                return request
            return fault("call", "The call was cancelled.", request.id, "Cancelled")
        if self._in_flight.get(call) is not ExecuteTool:
            return fault("call", "That call is not running.", request.id, "UnknownCall")
        if len(self._host_requests) >= MAX_ASKED:
            detail = f"At most {MAX_ASKED} requests wait for the runtime at once."
            return fault("call", detail, request.id, "TooManyRequests")
        return request

    def _unreadable(self, received: bytes, why: Breach, size: int) -> Received:
        id = lines.named(received)
        if id is not None and id in self._in_flight:
            return self._broken(id, why, received)
        return self._passed("too_long" if why == "too_long" else "noise", received, size)

    def _broken(self, id: str, why: Breach, received: bytes) -> Broken:
        del self._in_flight[id]
        return Broken(id, why, excerpt(received))

    def _stray(self, id: str, final: bool, received: bytes) -> Passed:
        if id in self._abandoned:
            if final:
                self._abandoned.remove(id)
            return Passed("abandoned", excerpt(received))
        self._strays += 1
        return Passed("unknown_id", excerpt(received))

    def _passed(
        self,
        why: Literal["noise", "too_long", "not_agreed", "complaint"],
        received: bytes,
        size: int | None = None,
    ) -> Passed:
        self._count(len(received) if size is None else size)
        return Passed(why, excerpt(received))

    def _count(self, size: int) -> None:
        self._noise += 1
        self._noise_bytes += size


ReceivedByHost = Request[Any] | Fault | Answer | Passed


class HostWire:
    __slots__ = ("_agreed", "_framer", "_in_flight", "_methods", "_offered", "_waiting")

    def __init__(self, methods: Mapping[str, type[Any]] = OF_HOST) -> None:
        """`methods`: the methods that this side answers."""
        self._methods = methods
        self._framer = Framer()
        self._in_flight: dict[str, type] = {}
        """By id: the type of the params from the runtime."""
        self._waiting: dict[str, type] = {}
        """By id: the type of the params of this host's own requests."""
        self._offered: frozenset[str] = frozenset()
        self._agreed: frozenset[str] = frozenset()

    @property
    def in_flight(self) -> Mapping[str, type]:
        """The requests without a final answer, each with the type of its params."""
        return self._in_flight

    @property
    def offered(self) -> Iterable[str]:
        """Return the methods that the runtime answers."""
        return self._offered

    @property
    def agreed(self) -> Iterable[str]:
        """The runtime's methods that this host may use."""
        return self._agreed

    # Input.

    def receive(self, data: bytes) -> list[ReceivedByHost]:
        """Return one item for each complete line that is not blank."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> ReceivedByHost:
        if received is None:
            return fault("size", f"A line has at most {MAX_LINE} bytes.")
        request = lines.canonical_request(received)
        if request is not None and request.id not in self._in_flight:
            return self._arrived(request)
        try:
            value = strict_json.loads(received)
        except strict_json.StrictJsonError as error:
            return fault("json", f"Not accepted JSON: {excerpt(str(error))}")
        if type(value) is not dict:
            return fault("object", "A line is a JSON object.")
        if "ok" in value and "method" not in value:
            return self._answered(value, received)
        read = lines.read_request(value, self._methods, self._in_flight)
        return self._arrived(read) if isinstance(read, Request) else read

    def _arrived(self, request: Request[Any]) -> Request[Any]:
        self._in_flight[request.id] = type(request.params)
        if isinstance(request.params, Init) and request.params.runtime is not UNSET:
            self._offered = frozenset(request.params.runtime.answers)
        return request

    def _answered(self, value: dict[str, Any], received: bytes) -> ReceivedByHost:
        id = value.get("id")
        if type(id) is not str or id not in self._waiting:
            return Passed("unknown_id", excerpt(received))
        pending = self._waiting.pop(id)
        answer = lines.read_answer(value)
        if isinstance(answer, Returned):
            answer = lines.fitting(answer, pending)
        if isinstance(answer, Returned | Failed):
            return answer
        return Failed(id=id, error=Failure(type=lines.PROTOCOL_ERROR, detail=str(answer)))

    # Output.

    def encode(self, frame: Frame | Fault) -> bytes:
        """Encode a frame as a line. Raises `ValueError` if the frame has no request, was not agreed
        on, or follows a final answer.

        An answer that cannot be encoded becomes a failure; other frames raise `Unsendable`.
        """
        if isinstance(frame, Fault):
            return line(frame.failed)
        if isinstance(frame, Request):
            return self._request(frame)
        if frame.id is None or frame.id not in self._in_flight:
            raise ValueError(f"no request {frame.id!r} waits for this")
        if isinstance(frame, Emitted):
            return line(frame)
        data = lines.sendable(frame)
        request = self._in_flight.pop(frame.id)
        if request is Init and isinstance(frame, Returned) and frame.result.host is not UNSET:
            self._agreed = self._offered.intersection(frame.result.host.asks, OF_RUNTIME)
        return data

    def _request(self, request: Request[Any]) -> bytes:
        id, params = request.id, request.params
        if not lines.is_request_id(id) or id in self._waiting:
            raise ValueError(f"request {id!r} is in flight, or no id")
        if request.method not in self._agreed or OF_RUNTIME[request.method] is not type(params):
            raise ValueError(f"it was not agreed to ask for {request.method!r} like this")
        if self._in_flight.get(params.call) is not ExecuteTool:
            raise ValueError(f"no call {params.call!r} is running")
        data = line(request)
        self._waiting[id] = type(params)
        return data
