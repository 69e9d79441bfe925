"""The host's side of its process: requests in, events and answers out, and asks back.

A request's id is in flight from its arrival to its one final answer; events go out under ids
in flight and under no others. A host may ask the runtime for what the runtime offered in
`init` and the host announced in its answer, and only for a call that it is executing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from callgate.protocol import strict_json
from callgate.protocol.host_v1 import answers, requests
from callgate.protocol.host_v1.excerpts import Passed, excerpt
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
    Request,
    Returned,
)
from callgate.protocol.host_v1.requests import Fault, fault
from callgate.protocol.ndjson import MAX_LINE, Framer, line

Received = Request[Any] | Fault | Answer | Passed


class HostWire:
    __slots__ = ("_agreed", "_framer", "_in_flight", "_methods", "_offered", "_waiting")

    def __init__(self, methods: Mapping[str, type[Any]] = OF_HOST) -> None:
        """`methods` are those that this side answers."""
        self._methods = methods
        self._framer = Framer()
        self._in_flight: dict[str, type] = {}
        """By id: the type of the params that the runtime sent."""
        self._waiting: dict[str, type] = {}
        """The same for what this host asked."""
        self._offered: frozenset[str] = frozenset()
        self._agreed: frozenset[str] = frozenset()

    @property
    def in_flight(self) -> Mapping[str, type]:
        """The requests that have no final answer yet, each with the type of its params."""
        return self._in_flight

    @property
    def offered(self) -> Iterable[str]:
        """The methods that the runtime says it answers."""
        return self._offered

    @property
    def agreed(self) -> Iterable[str]:
        """The methods that this host may ask for."""
        return self._agreed

    # In.

    def receive(self, data: bytes) -> list[Received]:
        """What the bytes complete: for each line that is not blank exactly one of these."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Received:
        if received is None:
            return fault("size", f"A line has at most {MAX_LINE} bytes.")
        request = requests.canonical(received)
        if request is not None and request.id not in self._in_flight:
            return self._arrived(request)
        try:
            value = strict_json.loads(received)
        except strict_json.StrictJsonError as error:
            return fault("json", f"Not JSON that is taken: {excerpt(str(error))}")
        if type(value) is not dict:
            return fault("object", "A line is a JSON object.")
        if "ok" in value and "method" not in value:
            return self._answered(value, received)
        read = requests.read(value, self._methods, self._in_flight)
        return self._arrived(read) if isinstance(read, Request) else read

    def _arrived(self, request: Request[Any]) -> Request[Any]:
        self._in_flight[request.id] = type(request.params)
        if isinstance(request.params, Init) and request.params.runtime is not UNSET:
            self._offered = frozenset(request.params.runtime.answers)
        return request

    def _answered(self, value: dict[str, Any], received: bytes) -> Received:
        id = value.get("id")
        if type(id) is not str or id not in self._waiting:
            return Passed("unknown_id", excerpt(received))
        pending = self._waiting.pop(id)
        answer = answers.read(value)
        if isinstance(answer, Returned):
            answer = answers.fitting(answer, pending)
        if isinstance(answer, Returned | Failed):
            return answer
        return Failed(id=id, error=Failure(type=requests.PROTOCOL_ERROR, detail=str(answer)))

    # Out.

    def encode(self, frame: Frame | Fault) -> bytes:
        """The frame's line. `ValueError` for what was not asked, not agreed, or is over.

        An answer that cannot be sent becomes a failure; anything else raises `Unsendable`.
        """
        if isinstance(frame, Fault):
            return line(frame.failed)
        if isinstance(frame, Request):
            return self._request(frame)
        if frame.id is None or frame.id not in self._in_flight:
            raise ValueError(f"no request {frame.id!r} waits for this")
        if isinstance(frame, Emitted):
            return line(frame)
        data = requests.sendable(frame)
        request = self._in_flight.pop(frame.id)
        if request is Init and isinstance(frame, Returned) and frame.result.host is not UNSET:
            self._agreed = self._offered.intersection(frame.result.host.asks, OF_RUNTIME)
        return data

    def _request(self, request: Request[Any]) -> bytes:
        id, params = request.id, request.params
        if not requests.is_request_id(id) or id in self._waiting:
            raise ValueError(f"request {id!r} is in flight, or no id")
        if request.method not in self._agreed or OF_RUNTIME[request.method] is not type(params):
            raise ValueError(f"it was not agreed to ask for {request.method!r} like this")
        if self._in_flight.get(params.call) is not ExecuteTool:
            raise ValueError(f"no call {params.call!r} is running")
        data = line(request)
        self._waiting[id] = type(params)
        return data
