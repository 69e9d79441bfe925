"""Text in messages: escapes of invisible characters, suggestions for typos, inert Markdown.

    code     one line, as a code span: no heading, link, image or HTML can result
    fenced   many lines, in a fence that is longer than any run of backticks inside
    folded   the same, collapsed by default

Escapes such as `\\x1b` and `\\u202e` replace characters that act on a terminal, change the
Escapes such as `\\x1b` and `\\u202e` replace characters that control a terminal, change the
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Printable by their category, but invisible: fillers, blanks, joiners and
# the selectors that change the character before them.
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def is_seen(char: str) -> bool:
    return char.isprintable() and UNSEEN.match(char) is None


def escape(char: str) -> str:
    """Return an escape such as `\\x1b` or `\\u202e`."""
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the most similar word, if one is similar enough."""
    import difflib  # lazy: only once something is misspelt  # noqa: PLC0415

    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None


LONG_LINES, LONG_CHARACTERS = 20, 2_000
"""A text that exceeds either limit is folded."""
_LONGEST_SPAN = 300

_RUNS = re.compile("`+")


def code(text: str) -> str:
    """Return a code span: long text is truncated, blank text becomes `(empty)`."""
    if len(text) > _LONGEST_SPAN:
        text = f"{text[:_LONGEST_SPAN]}..."
    shown = "".join(map(_shown, text))
    if not shown.strip():
        return "(empty)"
    marks = "`" * (_longest_run(shown) + 1)
    # A span loses one blank at either end, and needs one next to a backtick.
    return (
        f"{marks} {shown} {marks}"
        if shown[0] in "` " or shown[-1] in "` "
        else (f"{marks}{shown}{marks}")
    )


def fenced(text: str, language: str = "text") -> str:
    shown = visible_lines(text)
    marks = "`" * max(_longest_run(shown) + 1, 3)
    end = "" if shown.endswith("\n") or not shown else "\n"
    return f"{marks}{language}\n{shown}{end}{marks}"


def folded(title: str, text: str, language: str = "text") -> str:
    """Return the text under a trusted title, collapsed if the text is long."""
    lines = text.count("\n") + 1
    if lines <= LONG_LINES and len(text) <= LONG_CHARACTERS:
        return f"{title}:\n\n{fenced(text, language)}"
    summary = f"{title}: {lines:,} lines, {len(text):,} characters"
    # The blank lines end the HTML, so that the fence is read as Markdown.
    return f"<details><summary>{summary}</summary>\n\n{fenced(text, language)}\n\n</details>"


def visible_lines(text: str) -> str:
    """Keep line ends and tabs, and escape all other invisible characters."""
    if not UNSEEN.search(text) and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char in "\n\t" else _shown(char) for char in text)


def _shown(char: str) -> str:
    return char if is_seen(char) else escape(char)


def _longest_run(text: str) -> int:
    return max(map(len, _RUNS.findall(text)), default=0)
