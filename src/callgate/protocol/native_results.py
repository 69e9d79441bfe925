"""A result that a tool wrote in the words of one provider, for the dialects that speak them.

    the format of the dialect   -> its parts, as they are; an unknown part becomes text
    any other format            -> None: the dialect shows the result's text instead

A provider that is sent a part it does not know refuses the whole conversation from then on: only
known parts reach it as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from callgate.core.content import NativeFormat, NativeResult


class _Dialect(NamedTuple):
    text: str
    """The type of its text parts."""
    parts: frozenset[str]


_DIALECTS: dict[NativeFormat, _Dialect] = {
    "openai.chat_completions": _Dialect(
        "text", frozenset({"text", "image_url", "input_audio", "file"})
    ),
    "openai.responses": _Dialect(
        "input_text", frozenset({"input_text", "input_image", "input_file"})
    ),
    "anthropic.messages": _Dialect("text", frozenset({"text", "image", "document"})),
}


def native_parts(
    native: NativeResult | None, format: NativeFormat, *, failed: bool
) -> list[dict[str, Any]] | None:
    """What stands as the content of a result; None where its text is to be shown. `failed`: say
    first that the call did, because the dialect has no other way to."""
    if native is None or native.format != format or not native.content:
        return None
    dialect = _DIALECTS[format]
    parts = [_part(each, dialect) for each in native.content]
    return [{"type": dialect.text, "text": "Error:"}, *parts] if failed else parts


def _part(part: Any, dialect: _Dialect) -> dict[str, Any]:
    kind = part.get("type") if type(part) is dict else None
    if type(kind) is str and kind in dialect.parts and (kind != dialect.text or _text(part)):
        return part  # type: ignore[no-any-return]
    shown = part if type(part) is str else msgspec.json.encode(part).decode()
    return {"type": dialect.text, "text": shown or " "}


def native_text(native: NativeResult) -> str:
    """The same for who does not speak its format: its texts, or its JSON if it is more."""
    texts = [_text(part) for part in native.content]
    if None in texts:
        return msgspec.json.encode(native.content).decode()
    return "\n".join(filter(None, texts))


def native_size(native: NativeResult) -> int:
    """The characters of its texts: as in other results, images are not counted."""
    return sum(len(_text(part) or "") for part in native.content)


def _text(part: Any) -> str | None:
    text = part.get("text") if type(part) is dict else None
    return text if type(text) is str and text else None
