"""The text of a PDF, by pypdf where it is installed (`callgate[documents]`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import Any

from callgate.core.errors import ToolCancelled, ToolExecutionError
from callgate.core.tools import ToolContext

MOST_PAGES = 500
MOST_CHARACTERS = 5_000_000


def is_available() -> bool:
    try:
        import_module("pypdf")
    except ImportError:
        return False
    return True


async def text_of(content: bytes, context: ToolContext) -> str:
    return await asyncio.to_thread(read, content, context.cancel_event.is_set)


def read(content: bytes, should_stop: Callable[[], bool] = lambda: False) -> str:
    """The text, page by page. Raises a `ToolExecutionError` of one sentence."""
    try:
        pypdf: Any = import_module("pypdf")
    except ImportError:
        raise ToolExecutionError(
            "To read a PDF, install what it takes: pip install 'callgate[documents]'.",
            reason="not_installed",
        ) from None
    texts: list[str] = []
    size = 0
    try:
        reader = pypdf.PdfReader(BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolExecutionError("The PDF has a password.", reason="not_text")
        for number, page in enumerate(reader.pages, start=1):
            if should_stop():
                raise ToolCancelled
            text = (page.extract_text() or "").strip()
            texts.append(f"[page {number}]\n{text}")
            size += len(text)
            if number >= MOST_PAGES or size >= MOST_CHARACTERS:
                texts.append("[more pages are left out]")
                break
    except (ToolCancelled, ToolExecutionError):
        raise
    except Exception as error:  # foreign code on a foreign file
        raise ToolExecutionError("The PDF cannot be read.", reason="not_text") from error
    if not size:
        raise ToolExecutionError(
            "The PDF has no text: it may be made of pictures.", reason="not_text"
        )
    return "\n\n".join(texts)
