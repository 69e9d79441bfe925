"""The result of a call as `callgate call` prints it, also of a reply from an instance."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from callgate.cli.errors import CHECK_SETTINGS, EXIT_CODES, OK, CliError
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import answered_by_words, is_terminal, say
from callgate.core.calls import ErrorInfo, ToolResult
from callgate.core.content import ContentBlock, ImageBlock, TextBlock
from callgate.core.errors import ToolErrorClass

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def envelope(result: ToolResult) -> dict[str, Any]:
    """Return a result as JSON values, always with the same keys, `ok` first."""
    fields: dict[str, Any] = {"ok": result.ok, **msgspec.structs.asdict(result)}
    del fields["diffs"]  # large; `files_modified` names the changed files
    del fields["native"]  # for models; `content` has the same data in callgate's blocks
    if result.error is not None:
        error = msgspec.to_builtins(result.error, enc_hook=repr)
        fields["error"] = {"class": None, "message": None, "reason": None, "details": None, **error}
    try:  # through JSON, because metadata of a tool can have any type
        return _decode(msgspec.json.encode(fields, enc_hook=repr))
    except UnicodeEncodeError:  # a lone surrogate, which JSON can contain only as an escape
        return msgspec.to_builtins(fields, str_keys=True, enc_hook=repr)  # type: ignore[no-any-return]


def shown_blocks(result: ToolResult) -> list[ContentBlock]:
    """Return the blocks for stdout: the content without the final error block."""
    if result.ok or result.error is None or result.error.reason == "tool_reported":
        return result.content
    return result.content[:-1] if result.partial else []


def block_text(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ImageBlock):
        return f"[{block.media_type}, {_size(block)}]"
    return msgspec.json.encode(block.value, enc_hook=repr).decode()


def _size(image: ImageBlock) -> str:
    data = image.source.data
    if image.source.kind != "base64":
        return data
    return f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes"


_DISK = ("store_unwritable", "audit_unwritable", "undo_unwritable")
_NO_RULE = ("address_refused", "host_refused", "google_read_only")
"""Refusals without a rule, whose message says what to do."""


class CallOutcome(NamedTuple):
    result: ToolResult
    signal: int | None = None
    """The first signal that stopped the command."""

    @property
    def exit_code(self) -> int:
        error = self.result.error
        if error is None:
            return OK
        if self.signal is not None and error.error_class is ToolErrorClass.CANCELLED:
            return 128 + self.signal
        return EXIT_CODES[error.error_class]

    @property
    def goes_on(self) -> bool:
        """Whether a thread of the call could not be stopped, so that the exit must not wait."""
        error = self.result.error
        return error is not None and error.detail_fields.get("stopped") is False


def show(
    ended: CallOutcome,
    schema: Mapping[str, Any] | None,
    options: Any,
    *,
    streamed: bool,
    answered_by: Mapping[str, str | None],
) -> int:
    """Print the end of a call, and return the exit code.

    Args:
        schema: schema of the tool's arguments, if the tool exists.
        streamed: whether the output was shown while the call ran.
        answered_by: the `instance` that made the call, None for the embedded runtime, and the
            version of the `policy`.
    """
    result = ended.result
    if options.json:
        print_json({**envelope(result), "answered_by": answered_by})
    # Live output on the same terminal is not repeated.
    elif not (streamed and is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        _show_content(result, options.quiet)
    for note in result.diagnostics:
        say(f"note: {note}")
    if result.error is not None:
        reported = result.error.reason == "tool_reported"
        message = f"{result.tool} reported failure" if reported else result.error.message
        say(f"error ({result.error.error_class}): {message}")
        hint = _hint(result.error, schema, result.tool)
        if hint is not None:
            say(f"hint: {hint}")
    if options.verbose:
        answered = answered_by_words(answered_by)
        say(f"callgate: {answered}, call {result.call_id}, {result.duration_ms:.0f} ms")
    return ended.exit_code


def _show_content(result: ToolResult, quiet: bool) -> None:
    blocks = shown_blocks(result)
    if result.ok and not "".join(map(block_text, blocks)):
        if not quiet:
            print_text("ok")
        return
    if blocks:
        print_text("\n".join(map(block_text, blocks)))
    if any(isinstance(block, ImageBlock) for block in blocks):
        say("hint: --json prints the image as base64.")


def _hint(error: ErrorInfo, schema: Mapping[str, Any] | None, name: str) -> str | None:
    if error.reason == "no_confirmer":
        return (
            "--yes (once) or a rule in settings.toml (permanently) can allow it; "
            f"callgate policy explain {name} ... shows the reason."
        )
    if not error.user_visible:
        return "CALLGATE_LOG=debug shows details."
    match error.error_class:
        case ToolErrorClass.NOT_FOUND:
            return "callgate tools --all lists the tools."
        case ToolErrorClass.VALIDATION_ERROR if schema is not None:
            return f"{name} takes {_takes(schema)}"
        case ToolErrorClass.PERMISSION_DENIED if error.reason == "settings_invalid":
            return f"Correct the settings. {CHECK_SETTINGS}"
        case ToolErrorClass.PERMISSION_DENIED if error.reason in _DISK:
            return "callgate doctor shows details."
        case ToolErrorClass.PERMISSION_DENIED if error.reason == "workspace_escape":
            return (
                "--workspace DIR works in another directory; [workspace] extra_roots in "
                "settings.toml opens another one permanently (docs/decide/policy.md)."
            )
        case ToolErrorClass.PERMISSION_DENIED if error.reason not in _NO_RULE:
            return f"callgate policy explain {name} ... says which rule decided."
    return None


def _takes(schema: Mapping[str, Any]) -> str:
    """Return the arguments in the form of a command line."""
    required = schema.get("required", ())
    words = []
    for key, each in schema.get("properties", {}).items():
        kind = each.get("type", "value")
        word = f"{key}={kind if isinstance(kind, str) else '|'.join(kind)}"
        words.append(word if key in required else f"[{word}]")
    return " ".join(words) or "no arguments."


def ended(frame: dict[str, Any], tool: str, signal: int | None) -> CallOutcome:
    """Read a `tool_result` frame, complete or shortened."""
    try:
        result = (
            _full_result(frame["whole"], tool) if "whole" in frame else _short_result(frame, tool)
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError):
        raise CliError(
            "the answer of the instance is unreadable",
            hint="callgate audit tail shows whether the call ran.",
            error_class=ToolErrorClass.PROTOCOL_ERROR,
            reason="unreadable_result",
        ) from None
    return CallOutcome(result, signal)


def _full_result(payload: Any, tool: str) -> ToolResult:
    result = msgspec.convert(payload, ToolResult)
    if result.content and result.tool:
        return result
    # The instance answered before the call ended.
    shown = "" if result.error is None else result.error.message
    return msgspec.structs.replace(
        result, tool=result.tool or tool, content=result.content or [TextBlock(shown)]
    )


def _short_result(frame: dict[str, Any], tool: str) -> ToolResult:
    """Read a result that was too long for a line, or was not requested in full."""
    result, error = frame["result"], frame["result"]["error"]
    meta, details = result.get("meta") or {}, dict(error.get("details") or {})
    info = ErrorInfo(
        error_class=ToolErrorClass(details.pop("errorClass")),
        message=str(error["message"]),
        reason=details.pop("reason", None),
        details=details or None,
    )
    return ToolResult(
        call_id=str(meta.get("callId", "")),
        tool=tool,
        ok=False,
        content=[TextBlock(info.message)],
        error=info,
        duration_ms=float(meta.get("durationMs", 0.0)),
    )
