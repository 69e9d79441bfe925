"""Untrusted text as a piece of Markdown in which nothing of it acts.

    code     one line, as a code span: no heading, link, image or HTML can come of it
    fenced   many lines, in a fence that is longer than any run of backticks inside
    folded   the same, closed until someone opens it

Characters that would act on a terminal, turn the direction of writing, end a line where a
reader sees none, or show as nothing at all become escapes such as `\\x1b` and `\\u202e`.
"""

from __future__ import annotations

import re

from callgate.core.text.characters import UNSEEN, escape, is_seen

LONG_LINES, LONG_CHARACTERS = 20, 2_000
"""What is longer than either of these is folded."""
_LONGEST_SPAN = 300

_RUNS = re.compile("`+")


def code(text: str) -> str:
    """A code span; what is long is cut, and an empty text is said to be one."""
    if len(text) > _LONGEST_SPAN:
        text = f"{text[:_LONGEST_SPAN]}..."
    shown = "".join(map(_shown, text))
    if not shown.strip():
        return "(empty)"
    marks = "`" * (_longest_run(shown) + 1)
    # A span loses one blank at either end, and needs one beside a backtick.
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
    """The text under a title, which is a word of ours; closed where the text is long."""
    lines = text.count("\n") + 1
    if lines <= LONG_LINES and len(text) <= LONG_CHARACTERS:
        return f"{title}:\n\n{fenced(text, language)}"
    summary = f"{title}: {lines:,} lines, {len(text):,} characters"
    # The blank lines end the HTML, so that the fence is read as Markdown.
    return f"<details><summary>{summary}</summary>\n\n{fenced(text, language)}\n\n</details>"


def visible_lines(text: str) -> str:
    """Line ends and tabs stay; whatever else cannot be seen becomes an escape."""
    if not UNSEEN.search(text) and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char in "\n\t" else _shown(char) for char in text)


def _shown(char: str) -> str:
    return char if is_seen(char) else escape(char)


def _longest_run(text: str) -> int:
    return max(map(len, _RUNS.findall(text)), default=0)
