"""What an element hides from people by its attributes. Pure."""

from __future__ import annotations

import re

from callgate_catalogue.web.html import Start

_HIDING = re.compile(
    r"(?<![\w-])(?:"  # a property, and not the end of another's name: background-color
    r"display:none|visibility:(hidden|collapse)|opacity:0*(\.0+)?(?![.\d])|font-size:0(?![.\d])"
    r"|font-size:[01]?(\.\d+)?p[xt]|text-indent:-\d{3,}|(left|top|right|bottom):-\d{3,}"
    r"|margin-(left|top|right|bottom):-\d{4,}|clip:rect\(0"
    r"|clip-path:(inset\((50|100)%|circle\(0)|color:transparent|content-visibility:hidden)"
    r"|(transform:|\))scale[xy]?\(0*(\.0+)?[,)]"
)
_NO_ROOM = re.compile(r"(?<![\w-])(?:max-)?(?:height|width):0*(?:\.0+)?(?:px|pt|em|%)?(?:;|!|\Z)")
_CSS_NOTHING = re.compile(r"/\*.*?(?:\*/|\Z)|\s+", re.DOTALL)
_CSS_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})\s?|\\(.)", re.DOTALL)


def is_hidden(tag: Start) -> bool:
    attributes = tag.attributes
    if (
        "hidden" in attributes
        or "popover" in attributes
        or (tag.name == "dialog" and "open" not in attributes)
    ):
        return True
    style = _plain_style(attributes.get("style", ""))
    if "overflow:hidden" in style and _NO_ROOM.search(style):
        return True
    return bool(style) and _HIDING.search(style) is not None


def _plain_style(style: str) -> str:
    """As a browser understands it, in one spelling."""
    if "\\" in style:
        style = _CSS_ESCAPE.sub(_unescaped, style)
    return _CSS_NOTHING.sub("", style).lower()


def _unescaped(found: re.Match[str]) -> str:
    if found[2]:
        return found[2]
    number = int(found[1], 16)
    return chr(number) if 0 < number <= 0x10FFFF else "\ufffd"
