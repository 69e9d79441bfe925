"""Where a quotation ends that may itself stand in quotations: `"`, `\\"`, `%22`, `&quot;`.

A text inside JSON has its quotes escaped once, inside JSON inside JSON three times. A value
ends at a quote that is escaped as often as the one that opened it.
"""

from __future__ import annotations

import re
from functools import lru_cache

QUOTE = r"""(?:\\{0,15}["'`]|%2[27]|&quot;|&\#3[49];|&apos;|\\{1,7}u002[27]|\\{1,7}x2[27])"""
"""A pattern for the opening one, in lower case."""
THREE = '"""', "'''"

_SAME = {quote: re.compile(rf"(?<!\\)\\*{quote}|[\r\n]") for quote in "\"'`"}


def closing(text: str, start: int, quote: str) -> int:
    """Where a quotation that began before `start` ends: with the line at the latest."""
    if quote in THREE or quote[-1] not in _SAME:
        found = _spelled_out(quote).search(text, start)
        return found.start() if found is not None else len(text)
    depth = len(quote) - 1
    for found in _SAME[quote[-1]].finditer(text, start):
        escapes = len(found.group()) - 1
        # Escaped less than the opening one, it ends even more than this quotation.
        if escapes <= depth or (escapes - depth) % (2 * (depth + 1)) == 0:
            return found.start()
    return len(text)


@lru_cache(maxsize=64)
def _spelled_out(quote: str) -> re.Pattern[str]:
    end = "" if quote in THREE else r"|[\r\n]"
    return re.compile(re.escape(quote) + end, re.IGNORECASE)
