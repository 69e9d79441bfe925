"""Shows how a call ended: the result on stdout, the rest on stderr, an exit code.

The same for a call of our own runtime and for one that an instance made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from callgate.cli.errors import EXIT_CODES, OK
from callgate.cli.ui.envelope import block_text, envelope, shown_blocks
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import answered_by_words, is_terminal, say
from callgate.core.content import ImageBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.results import ErrorInfo, ToolResult

_DISK = ("store_unwritable", "audit_unwritable", "undo_unwritable")
_NO_RULE = ("address_refused", "host_refused", "google_read_only")
"""No rule decided, and the sentence itself says what to do."""


class CallOutcome(NamedTuple):
    result: ToolResult
    signal: int | None = None
    """The first of those that told us to stop."""

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
        """The work could not be stopped: a thread of it still runs, and would be waited for."""
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
    """Print the end of a call; the exit code.

    Args:
        schema: of the tool's arguments, where there is such a tool.
        streamed: its output was shown while it ran.
        answered_by: the `instance` that made it, None for a runtime of its own, and the version
            of the `policy`.
    """
    result = ended.result
    if options.json:
        print_json({**envelope(result), "answered_by": answered_by})
    # On one terminal, what was seen live is not shown again.
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
            "--yes allows it this once; a rule in settings.toml allows it for good; "
            f"callgate policy explain {name} ... says why it is asked."
        )
    if not error.user_visible:
        return "CALLGATE_LOG=debug shows what happened."
    match error.error_class:
        case ToolErrorClass.NOT_FOUND:
            return "callgate tools --all lists the tools."
        case ToolErrorClass.VALIDATION_ERROR if schema is not None:
            return f"{name} takes {_takes(schema)}"
        case ToolErrorClass.PERMISSION_DENIED if error.reason in _DISK:
            return "callgate doctor says more."
        case ToolErrorClass.PERMISSION_DENIED if error.reason == "workspace_escape":
            return (
                "--workspace DIR works in another directory; [workspace] extra_roots in "
                "settings.toml opens one beside it for good (docs/decide/policy.md)."
            )
        case ToolErrorClass.PERMISSION_DENIED if error.reason not in _NO_RULE:
            return f"callgate policy explain {name} ... says which rule decided."
    return None


def _takes(schema: Mapping[str, Any]) -> str:
    """What arguments there are, as one would write them."""
    required = schema.get("required", ())
    words = []
    for key, each in schema.get("properties", {}).items():
        kind = each.get("type", "value")
        word = f"{key}={kind if isinstance(kind, str) else '|'.join(kind)}"
        words.append(word if key in required else f"[{word}]")
    return " ".join(words) or "no arguments."
