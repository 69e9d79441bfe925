"""What a tool in a host gave: the value of `execute_tool` as our output, and the other way.

    {"success": true, "result": any}         a success; the value is `result`
    {"success": false, "error": "..."}       a failure that the tool saw itself
    anything without a boolean `success`     a success with that value

Beside `result` or `error` a host may put `output`: what to show in place of the value, and
what to note beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callgate.core.content import ContentBlock, FileDiff, NativeResult, TextBlock
from callgate.core.errors import GENERIC_FAILURE
from callgate.core.tools import ToolOutput


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    content: list[ContentBlock] | UnsetType = UNSET
    metadata: dict[str, Any] = {}
    truncated: bool = False
    files_modified: list[str] | None = None
    """This and the next count only from a process that runs our own functions."""
    command_executed: str | None = None
    diffs: tuple[FileDiff, ...] = ()
    """Counts only from a worker."""


_NOTHING_MORE = Output()


class ProviderNative(NativeResult, frozen=True, kw_only=True, tag="provider_native_tool_result"):
    """What a model is to see, in its provider's own words."""


def to_output(value: Any, *, trusted: bool = False) -> ToolOutput:
    """`trusted`: the value comes from a process that runs our own functions."""
    if type(value) is not dict or type(value.get("success")) is not bool:
        return ToolOutput(content=[TextBlock(_text(value))], value=value)
    more = _more(value.get("output"))
    success = value["success"]
    result = value.get("result")
    text = _text(result) if success else _text(value.get("error")) or GENERIC_FAILURE
    return ToolOutput(
        content=[TextBlock(text)] if more.content is UNSET else more.content,
        success=success,
        value=UNSET if trusted and "result" not in value else result,
        metadata=more.metadata,
        truncated=more.truncated,
        files_modified=more.files_modified if trusted else None,
        command_executed=more.command_executed if trusted else None,
        diffs=more.diffs if trusted else (),
    )


def to_value(output: ToolOutput) -> dict[str, Any]:
    """The same from the other side; nothing is lost between our own processes."""
    value: dict[str, Any] = {"success": output.success}
    if output.value is not UNSET:
        value["result"] = output.value
    text_block = TextBlock(_text(output.value)) if output.success else None
    if not output.success:
        value["error"] = "\n".join(
            block.text for block in output.content if isinstance(block, TextBlock)
        )
        text_block = TextBlock(value["error"] or GENERIC_FAILURE)
    more = Output(
        content=UNSET if output.content == [text_block] else output.content,
        metadata=output.metadata,
        truncated=output.truncated,
        files_modified=output.files_modified,
        command_executed=output.command_executed,
        diffs=output.diffs,
    )
    if more != _NOTHING_MORE:
        value["output"] = msgspec.to_builtins(more)
    return value


def to_model_text(value: Any) -> str | ProviderNative:
    """What `format_tool_result` gave: text, or the one envelope that stays structured."""
    if type(value) is dict and value.get("type") == ProviderNative.__struct_config__.tag:
        try:
            return msgspec.convert(value, ProviderNative)
        except msgspec.ValidationError:
            pass
    return _text(value)


def _more(output: Any) -> Output:
    """Whatever is wrong with the extras, the result is not lost over it."""
    if output is None:
        return _NOTHING_MORE
    try:
        return msgspec.convert(output, Output)
    except msgspec.ValidationError:
        return _NOTHING_MORE


def _text(value: Any) -> str:
    if value is None or value is UNSET:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
