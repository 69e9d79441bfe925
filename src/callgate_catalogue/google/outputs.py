"""How the results of Google tools look: lines to read, and the same as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from callgate import TextBlock, ToolOutput
from callgate_catalogue.web.markdown import without_unseen

MAX_TEXT = 200_000
"""Characters of a text that a result shows."""


def text_output(text: str, value: Any, **more: Any) -> ToolOutput:
    cut = len(text) > MAX_TEXT
    if cut:
        text = f"{text[:MAX_TEXT]}\n[cut: {len(text):,} characters in all]"
    return ToolOutput(content=[TextBlock(text)], value=value, truncated=cut, **more)


def listed(lines: Iterable[str], value: Any, *, nothing: str, more: bool = False) -> ToolOutput:
    """One line an item; `more` says that there are others."""
    return text_output(in_lines(lines, nothing, more), value, metadata={"more": more})


def in_lines(lines: Iterable[str], nothing: str, more: bool) -> str:
    shown = list(lines)
    if more and shown:
        shown.append(f"[the first {len(shown)}; there are more]")
    return "\n".join(shown) or nothing


def one_line(text: str) -> str:
    """Lists have one line an item, whatever stands in it, and all of it is seen."""
    return " ".join(without_unseen(text).split())


def given(input: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Of the arguments those that were given."""
    return {name: input[name] for name in names if name in input}
