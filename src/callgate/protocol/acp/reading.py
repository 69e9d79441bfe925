"""Makes typed values of what a client sent, or says which field of it is wrong.

Where the protocol says so (`forgives`), a field that need not be there and does not fit counts
as one that is not there.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import msgspec

from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError, shown

T = TypeVar("T")

_SHOWN = 200


class Received(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    forgives: ClassVar[bool] = False
    meta: Any = msgspec.field(name="_meta", default=None)
    """Whatever came as `_meta`, whole."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


def read_params(wanted: type[T], params: Any) -> T:
    """The parameters of a request or notification. Raises `RpcError` -32602."""
    try:
        return _converted({} if params is None else params, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {_describe(error)}") from None


def read_result(wanted: type[T], result: Any) -> T:
    """What a client answered. Raises `RpcError` -32603."""
    try:
        return _converted({} if result is None else result, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(
            INTERNAL_ERROR, f"the client's answer is wrong: {_describe(error)}"
        ) from None


def _converted(value: Any, wanted: type[T]) -> T:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return msgspec.convert(_forgiven(value, wanted), wanted)


def _forgiven(value: Any, wanted: Any) -> Any:
    """Without the fields that may be forgiven."""
    if type(value) is list and get_origin(wanted) is list:
        return [_forgiven(each, *get_args(wanted)) for each in value]
    struct = _struct_of(value, wanted)
    if struct is None:
        return value
    fields = dict(value)
    for field in _fields(struct):
        name = field.encode_name
        if name in fields:
            fields[name] = _forgiven(fields[name], field.type)
            if _forgives(struct) and not field.required and not _fits(fields[name], field.type):
                del fields[name]
    return fields


def _struct_of(value: Any, wanted: Any) -> type[msgspec.Struct] | None:
    """Which of the structs that a value may become is meant."""
    if type(value) is not dict:
        return None
    for each in get_args(wanted) or (wanted,):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            config = each.__struct_config__
            if config.tag is None or value.get(str(config.tag_field)) == config.tag:
                return each
    return None


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def _forgives(struct: type[msgspec.Struct]) -> bool:
    return bool(getattr(struct, "forgives", False))


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _describe(error: msgspec.ValidationError) -> str:
    """Such as `sessionId: expected str, got int`."""
    problem, _, location = str(error).replace("`", "").rpartition(" - at ")
    if not problem:
        problem, location = location, ""
    path = location.removeprefix("key in ").removeprefix("$").removeprefix(".") or "params"
    return shown(f"{path}: {problem[:1].lower()}{problem[1:]}", _SHOWN)
