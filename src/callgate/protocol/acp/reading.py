"""Makes typed values of what a client sent, or says which field of it is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError, shown

T = TypeVar("T")

_SHOWN = 200


class Received(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    meta: Any = msgspec.field(name="_meta", default=None)
    """Whatever came as `_meta`, whole."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


def read_params(wanted: type[T], params: Any) -> T:
    """The parameters of a request or notification. Raises `RpcError` -32602."""
    try:
        return msgspec.convert({} if params is None else params, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {_said(error)}") from None


def read_result(wanted: type[T], result: Any) -> T:
    """What a client answered. Raises `RpcError` -32603."""
    try:
        return msgspec.convert({} if result is None else result, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(INTERNAL_ERROR, f"the client's answer is wrong: {_said(error)}") from None


def _said(error: msgspec.ValidationError) -> str:
    """Such as `sessionId: expected str, got int`."""
    problem, _, place = str(error).replace("`", "").rpartition(" - at ")
    if not problem:
        problem, place = place, ""
    path = place.removeprefix("key in ").removeprefix("$").removeprefix(".") or "params"
    return shown(f"{path}: {problem[:1].lower()}{problem[1:]}", _SHOWN)
