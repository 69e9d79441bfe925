"""What a function returned, as the output of a tool.

str, None, blocks          -> shown as they are
any other JSON-like value  -> its JSON as `value`, and the same as text
ok_result, error_result    -> the only envelopes: a dict with a key `ok` is data
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from callgate.core.content import ContentBlock, ImageBlock, JsonBlock, TextBlock
from callgate.core.errors import ToolExecutionError, add_details
from callgate.core.results import Diagnostic
from callgate.core.tools import ToolOutput
from callgate.sources.pydantic_models import is_model

_BLOCKS = (TextBlock, ImageBlock, JsonBlock)
_BLOCK_TYPES: frozenset[type] = frozenset(_BLOCKS)
_PLAIN = frozenset({bool, int, float, dict})
_INTEGERS = frozenset({bool, int})
_LARGE = 1 << 63
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def ok_result(
    value: Any = None,
    *,
    content: ContentBlock | Iterable[ContentBlock] | None = None,
    diagnostics: Iterable[str | Diagnostic | Mapping[str, str]] = (),
    meta: Mapping[str, Any] | None = None,
    files_modified: Iterable[str] | None = None,
) -> ToolOutput:
    """A success that says more than its value: what to show, and what to note beside it."""
    output = as_output(value)
    if content is not None:
        output.content = _as_blocks(content)
    output.metadata = _as_json(dict(meta))[0] if meta else {}
    if notes := [msgspec.to_builtins(note) for note in diagnostics]:
        output.metadata["diagnostics"] = notes
    if files_modified is not None:
        output.files_modified = list(files_modified)
    return output


def error_result(
    message: str,
    *,
    code: str | None = None,
    reason: str | None = None,
    details: Any = None,
) -> ToolOutput:
    """A failure the tool saw itself, in words for the agent.

    Args:
        code: for programs: one of the socket's codes (`VALIDATION_ERROR`, ...) or the tool's own,
            which stands in the details.
        reason: which of the known ways it failed.
        details: any JSON value, for programs.
    """
    _check_text(message)
    metadata: dict[str, Any] = {}
    if reason is not None:
        metadata["reason"] = reason
    if code is not None:
        details = add_details(details, code=code)
    if details is not None:
        metadata["details"] = _as_json(details)[0]
    return ToolOutput(content=[TextBlock(message)], success=False, metadata=metadata, value=None)


def as_output(result: Any) -> ToolOutput:
    """Raises `ToolExecutionError` where the result has no JSON spelling."""
    kind = type(result)
    if kind is str:
        _check_text(result)
        return ToolOutput(content=[TextBlock(result)], value=result)
    if result is None:
        return ToolOutput(content=[TextBlock("")], value=None)
    if kind is int and -_LARGE < result < _LARGE:
        return ToolOutput(content=[TextBlock(str(result))], value=result)
    if kind not in _PLAIN:
        if isinstance(result, ToolOutput):
            return result
        if isinstance(result, _BLOCKS):
            return ToolOutput(content=_as_blocks(result))
        if isinstance(result, (list, tuple)) and not _BLOCK_TYPES.isdisjoint(map(type, result)):
            return ToolOutput(content=_as_blocks(result))
    value, written = _as_json(result)
    text = value if isinstance(value, str) else written.decode()
    return ToolOutput(content=[TextBlock(text)], value=value)


def _as_json(result: Any) -> tuple[Any, bytes]:
    """The result as a JSON reader will see it (text keys, lists, no tuples), and as bytes."""
    try:
        if type(result) in _INTEGERS:
            return result, _encode(result)
        builtins = msgspec.to_builtins(
            result, str_keys=True, builtin_types=_BYTES, enc_hook=_unknown_to_msgspec
        )
        written = _encode(builtins)
        value = _decode(written)
        # msgspec writes NaN as null and bytes as base64: what came back then differs.
        if value != builtins:
            json.dumps(builtins, allow_nan=False)
    except UnicodeEncodeError:
        _refuse("its text has a lone surrogate")
    except NotImplementedError as error:
        _refuse(str(error))
    except (TypeError, ValueError):
        _refuse("NaN, infinity, bytes or another value that JSON does not have")
    except RecursionError:
        _refuse("it is nested too deep")
    return value, written


def _unknown_to_msgspec(value: Any) -> Any:
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__}")


def _as_blocks(content: ContentBlock | Iterable[ContentBlock]) -> list[ContentBlock]:
    blocks = [content] if isinstance(content, _BLOCKS) else [*content]
    for block in blocks:
        if not isinstance(block, _BLOCKS):
            _refuse(f"a {type(block).__name__} among content blocks")
        if isinstance(block, TextBlock):
            _check_text(block.text)
        elif isinstance(block, JsonBlock):
            _as_json(block.value)
    return blocks


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            _refuse("its text has a lone surrogate")


def _refuse(why: str) -> NoReturn:
    raise ToolExecutionError(
        f"The tool returned something that is not JSON: {why}.", reason="not_json"
    )
