"""How much of a text a model is shown, and where the rest lies."""

from __future__ import annotations

from callgate import ToolContext
from callgate.packs.files import Shown, show

CHARS_PER_TOKEN = 4
"""About. Languages and models differ; what is promised is a bound, not a count."""
_LONGEST_LINE = 2_000


def cut(text: str, tokens: int, context: ToolContext, *, name: str, complete: bool = True) -> Shown:
    """The beginning of a text. If there is more, all of it goes into an artifact."""
    lines = [piece for line in text.split("\n") for piece in _pieces(line)]
    room, count = tokens * CHARS_PER_TOKEN, 0
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        count += 1
    return show(lines, count, context.artifact, name=name, complete=complete)


def _pieces(line: str) -> list[str]:
    """A line too long to be read is several, if need be."""
    if len(line) <= 2 * _LONGEST_LINE:
        return [line]
    return [line[at : at + _LONGEST_LINE] for at in range(0, len(line), _LONGEST_LINE)]
