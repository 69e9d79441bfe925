"""The runtime's side of one host process: requests out, answers, events and asks in.

    asked ---> in flight ---> Returned | Failed | Broken        exactly one of these
                   |
                   +--------> abandoned: what still comes under the id is passed over

A host's stdout may carry anything, since plugins print. What is no frame is reported as
`Passed` and harms nobody; what can only have been meant as the answer to a request, and cannot
be read as one, ends that request as `Broken`. A host that says nothing else is `hopeless`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from callgate.protocol import strict_json
from callgate.protocol.host_v1 import answers, requests
from callgate.protocol.host_v1.answers import Breach
from callgate.protocol.host_v1.excerpts import Passed, excerpt
from callgate.protocol.host_v1.frames import (
    OF_HOST,
    OF_RUNTIME,
    Answer,
    Emitted,
    ExecuteTool,
    Failed,
    Init,
    IsCancelled,
    Params,
    Request,
    Returned,
)
from callgate.protocol.host_v1.requests import Fault, fault
from callgate.protocol.ndjson import MAX_LINE, Framer, line

MAX_NOISE = 100
"""Lines in a row that are no frames."""
MAX_NOISE_BYTES = 4 * MAX_LINE
MAX_STRAYS = 10_000
"""Frames in a row that belong to nothing in flight."""
MAX_ASKED = 64
"""Requests of a host that wait for the runtime at once."""
_HEAD = 4_096
_ENDLESS = 2 * MAX_LINE


class Broken(msgspec.Struct, frozen=True):
    """A request that is over, because its answer broke the rules."""

    id: str
    why: Breach
    """After `version` the host is to be ended."""
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
        """`methods` are those that the other side may be asked for."""
        self._methods = methods
        self._framer = Framer(head=_HEAD)
        self._in_flight: dict[str, type] = {}
        """By id: the type of the params."""
        self._abandoned: set[str] = set()
        self._host_requests: dict[str, type] = {}
        """What the host asked and was not told yet."""
        self._offered: frozenset[str] = frozenset()
        self._agreed: dict[str, type[Params]] = {}
        self._noise = self._noise_bytes = self._strays = 0

    @property
    def in_flight(self) -> Mapping[str, type]:
        """The requests that have no outcome yet, each with the type of its params."""
        return self._in_flight

    @property
    def host_requests(self) -> Mapping[str, type]:
        """The requests of the host that have no answer yet."""
        return self._host_requests

    @property
    def agreed(self) -> Iterable[str]:
        """The methods that the host may ask for: what was offered, and it announced."""
        return self._agreed.keys()

    @property
    def hopeless(self) -> Literal["noise", "too_long", "strays"] | None:
        """Why this host is to be ended: it says too much that means nothing."""
        if self._framer.longest > _ENDLESS:
            return "too_long"
        if self._noise > MAX_NOISE or self._noise_bytes > MAX_NOISE_BYTES:
            return "noise"
        return "strays" if self._strays > MAX_STRAYS else None

    # Out.

    def encode(self, frame: Request[Any] | Answer | Fault) -> bytes:
        """The frame's line. `ValueError` for an id that is wrong, in flight, or not asked.

        An answer that cannot be sent becomes a failure; a request raises `Unsendable`.
        """
        if isinstance(frame, Request):
            return self._request(frame)
        if isinstance(frame, Fault):
            return line(frame.failed)
        if frame.id not in self._host_requests:
            raise ValueError(f"the host did not ask {frame.id!r}")
        data = requests.sendable(frame)
        del self._host_requests[frame.id]
        return data

    def _request(self, request: Request[Any]) -> bytes:
        id, params = request.id, request.params
        if not requests.is_request_id(id):  # no host could say to which request it objects
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
        """Wait no longer for a request; its id is free again when the host has answered."""
        if self._in_flight.pop(id, None) is not None:
            self._abandoned.add(id)

    # In.

    def drop(self) -> None:
        """Let go of a line that will not end."""
        self._framer.drop()

    def receive(self, data: bytes) -> list[Received]:
        """What the bytes complete: for each line that is not blank exactly one of these."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Received:
        if received is None:
            return self._unreadable(self._framer.heads.popleft(), "too_long", MAX_LINE)
        frame = answers.canonical(received)
        if frame is not None:
            return self._answered(frame.id, frame, received)
        try:
            value = strict_json.loads(received)
        except strict_json.StrictJsonError:
            return self._unreadable(received, "json", len(received))
        if type(value) is not dict:
            return self._passed("noise", received)
        if not answers.is_answer(value):
            return self._requested(value, received)
        id = value.get("id")
        if type(id) is not str:
            complaint = id is None and value.get("ok") is False
            return self._passed("complaint" if complaint else "noise", received)
        return self._answered(id, answers.read(value), received)

    def _answered(
        self, id: str, frame: Returned | Failed | Emitted | Breach, received: bytes
    ) -> Received:
        request = self._in_flight.get(id)
        if request is None:
            return self._stray(id, not isinstance(frame, Emitted), received)
        if isinstance(frame, Returned):
            frame = answers.fitting(frame, request)
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
        """An init of another session, which says nothing of it, changes nothing."""
        if (announced := begun.result.host) is not UNSET:
            names = self._offered.intersection(announced.asks, OF_RUNTIME)
            self._agreed = {name: OF_RUNTIME[name] for name in names}

    def _requested(self, value: dict[str, Any], received: bytes) -> Received:
        """A host asks for something; or a plugin has printed a request of ours."""
        if "method" not in value:
            return self._passed("noise", received)
        method = value["method"]
        if not self._agreed or type(method) is not str or method in self._methods:
            return self._passed("not_agreed", received)
        request = requests.read(value, self._agreed, self._host_requests)
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
        id = answers.named(received)
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
