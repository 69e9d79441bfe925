"""Draw a terminal as SVG: one screen, or an animated recording.

A screen is a `pyte.Screen`. A recording is a list of output events; each frame is drawn once,
below the previous one, and a style sheet moves the current frame into view. Identical rows are
drawn once.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

import pyte

COLOURS = {
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "cyan": "#56b6c2",
    "magenta": "#c678dd",
    "default": "#d7dae0",
}
CELL, ROW, MARGIN = 8.4, 19, 20
_SHORTEST_S = 0.12
"""Frames with a shorter interval become one frame, because they are unreadable."""
_LAST_S = 6.0


def head(columns: int, height: int) -> str:
    return (
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' width="{columns * CELL + 2 * MARGIN:.0f}" height="{height}"'
        ' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        '<rect width="100%" height="100%" rx="8" fill="#1e2127"/>'
    )


def row_spans(screen: pyte.Screen, row: int) -> str:
    """Return the cells of a row, grouped by style; empty for an empty row."""
    spans: list[tuple[str, list[str]]] = []
    for column in range(screen.columns):
        cell = screen.buffer[row][column]
        colour = COLOURS.get(cell.fg, COLOURS["default"])
        style = f'fill="{colour}"' + (' font-weight="bold"' if cell.bold else "")
        if spans and spans[-1][0] == style:
            spans[-1][1].append(cell.data)
        else:
            spans.append((style, [cell.data]))
    texts = [(style, "".join(cells)) for style, cells in spans]
    texts[-1] = (texts[-1][0], texts[-1][1].rstrip())
    if not any(text.strip() for _, text in texts):
        return ""
    return "".join(f"<tspan {style}>{escape(text)}</tspan>" for style, text in texts if text)


def animate(events: Iterable[tuple[float, str]], columns: int, rows: int) -> str:
    """Return an animation of output events (seconds from the start, text)."""
    frames = list(_frames(events, columns, rows))
    names: dict[str, int] = {}
    for _, drawn in frames:
        for spans in filter(None, drawn):
            names.setdefault(spans, len(names))
    total = frames[-1][0] + _LAST_S
    height = rows * ROW
    steps = "".join(
        f"{100 * at / total:.3f}%{{transform:translateY({-height * number}px)}}"
        for number, (at, _) in enumerate(frames)
    )
    lines = [
        head(columns, height + 2 * MARGIN),
        f"<style>@keyframes play{{{steps}}}"
        f"#film{{animation:play {total:.1f}s step-end infinite}}</style>",
        "<defs>",
        *(
            f'<text id="r{number}" xml:space="preserve">{spans}</text>'
            for spans, number in names.items()
        ),
        "</defs>",
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{columns * CELL:.0f}" height="{height}">'
        '<g id="film">',
    ]
    for number, (_, drawn) in enumerate(frames):
        lines += [
            f'<use href="#r{names[spans]}" y="{height * number + ROW * row + 14}"/>'
            for row, spans in enumerate(drawn)
            if spans
        ]
    return "\n".join([*lines, "</g></svg>", "</svg>"]) + "\n"


def _frames(
    events: Iterable[tuple[float, str]], columns: int, rows: int
) -> Iterable[tuple[float, list[str]]]:
    """Return each screen that was visible long enough, with its start time."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    since: float | None = None
    for at, text in events:
        if since is None:
            since = at
        elif at - since >= _SHORTEST_S:
            yield since, [row_spans(screen, row) for row in range(rows)]
            since = at
        stream.feed(text)
    if since is not None:
        yield since, [row_spans(screen, row) for row in range(rows)]
