"""Parse one shell word as both bash and dash would, or note why this is impossible.

A word that only one of them would parse this way is a doubt, and so is a word whose value depends
on more than the text. After a doubt, parsing continues as well as possible, because a denied
command must be recognized inside a command that is not understood.

Every function only moves `Reading.pos` forward, so parsing is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from callgate.policy.shell_patterns import Doubt, Reading, Word

WORD_END = frozenset(" \t\n;&|<>()")

_PLAIN = re.compile(r"[^ \t\n;&|<>()'\"\\$`*?\[{~]+")
_PLAIN_IN_QUOTES = re.compile(r'[^"\\$`]+')
_PLAIN_IN_BRACES = re.compile(r"[^'\"\\$`}\]]+")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BACKTICKS = re.compile(r"[^`\\]*(?:\\.[^`\\]*)*", re.DOTALL)
_ANSI_C = re.compile(r"\$'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL)
_ANSI_C_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))",
    re.DOTALL,
)
_ANSI_C_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b"}
_BREAK = "\0"
"""Marks in an emptied word the points at which an expansion of IFS would split it."""


class _Draft:
    """A word during parsing."""

    __slots__ = ("brace", "emptied", "literal", "pieces", "quoted", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.pieces: list[str] = []
        self.emptied: list[str] = []
        self.literal = True
        self.quoted = False
        self.brace = False

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.emptied.append(text)

    def add_expansion(self, source: str) -> None:
        """Add text that the shell would replace."""
        self.literal = False
        self.pieces.append(source)

    def finish(self, reading: Reading) -> Word:
        text = "".join(self.pieces)
        if self.brace and ("," in text or ".." in text):
            self.literal = False
            reading.doubt(Doubt.BRACES)
            self.emptied = [re.sub("[{},]", _BREAK, "".join(self.emptied))]
        if self.literal:
            return Word(text, True, self.quoted, (text,))
        emptied = tuple(part for part in "".join(self.emptied).split(_BREAK) if part)
        return Word(text, False, self.quoted, emptied)


def read_word(reading: Reading) -> Word:
    """Parse from the current position, which is not a blank or operator, to the end of the word."""
    text, end = reading.text, len(reading.text)
    draft = _Draft(reading.pos)
    while reading.pos < end:
        if run := _PLAIN.match(text, reading.pos):
            draft.add(run.group())
            reading.pos = run.end()
            continue
        char = text[reading.pos]
        if char in WORD_END:
            break
        _SPECIAL[char](reading, draft)
    return draft.finish(reading)


def read_here_document(reading: Reading) -> None:
    """Find the commands in a here-document with an unquoted delimiter."""
    scrap = _Draft(0)
    while reading.pos < len(reading.text):
        _quoted_piece(reading, scrap)
        if reading.text.startswith('"', reading.pos):
            reading.pos += 1


def _single_quotes(reading: Reading, draft: _Draft) -> None:
    draft.quoted = True
    close = reading.text.find("'", reading.pos + 1)
    if close < 0:
        draft.literal = False
        reading.doubt(Doubt.UNBALANCED)
        close = len(reading.text)
    draft.add(reading.text[reading.pos + 1 : close])
    reading.pos = close + 1


def _double_quotes(reading: Reading, draft: _Draft) -> None:
    draft.quoted = True
    reading.pos += 1
    while reading.pos < len(reading.text):
        if reading.text[reading.pos] == '"':
            reading.pos += 1
            return
        _quoted_piece(reading, draft)
    draft.literal = False
    reading.doubt(Doubt.UNBALANCED)


def _quoted_piece(reading: Reading, draft: _Draft) -> None:
    """Parse one piece of text inside double quotes; stops at a double quote."""
    text, pos = reading.text, reading.pos
    if run := _PLAIN_IN_QUOTES.match(text, pos):
        draft.add(run.group())
        reading.pos = run.end()
    elif text[pos] == "`":
        _backticks(reading, draft)
    elif text[pos] == "$":
        _dollar(reading, draft, quoted=True)
    elif text[pos] == "\\":
        following = text[pos + 1 : pos + 2]
        reading.pos += 2
        if following == "\n":
            draft.literal = False
            reading.doubt(Doubt.CONTINUATION)
        elif following in ("$", "`", '"', "\\"):
            draft.add(following)
        else:
            draft.add("\\" + following)


def _backslash(reading: Reading, draft: _Draft) -> None:
    draft.quoted = True
    following = reading.text[reading.pos + 1 : reading.pos + 2]
    reading.pos += 2
    if following in ("", "\n"):
        draft.literal = False
        reading.doubt(Doubt.CONTINUATION)
    else:
        draft.add(following)


def _glob(reading: Reading, draft: _Draft) -> None:
    pos = reading.pos
    char = reading.text[pos]
    reading.pos += 1
    draft.add(char)
    alone = pos == draft.start and reading.text[pos + 1 : pos + 2] in ("", *WORD_END)
    if char == "[" and alone:
        return  # the command [, or a bracket that matches nothing
    draft.literal = False
    reading.doubt(Doubt.GLOB)
    if char == "[":
        reading.arithmetic = True  # bash computes the index of an array


def _tilde(reading: Reading, draft: _Draft) -> None:
    pos = reading.pos
    if pos == draft.start or reading.text[pos - 1] in "=:":
        draft.literal = False
        reading.doubt(Doubt.TILDE)
    draft.add("~")
    reading.pos += 1


def _open_brace(reading: Reading, draft: _Draft) -> None:
    draft.brace = True
    draft.add("{")
    reading.pos += 1


def _dollar(reading: Reading, draft: _Draft, quoted: bool = False) -> None:
    text, start = reading.text, reading.pos
    following = text[start + 1 : start + 2]
    if following in ("", " ", "\t", "\n") or (quoted and following in '")|'):
        draft.add("$")
        reading.pos += 1
        return
    if following in ("'", '"') and not quoted:
        _special_quotes(reading, draft)
        return
    if following == "(":
        _substitution(reading)
    elif following == "{":
        reading.doubt(Doubt.VARIABLE)
        reading.pos += 2
        _pass_over(reading, "}", quoted)
    elif following == "[":
        reading.doubt(Doubt.ARITHMETIC)
        reading.pos += 2
        _pass_over(reading, "]", quoted)
    else:
        reading.doubt(Doubt.VARIABLE)
        name = _PARAMETER.match(text, start + 1)
        reading.pos = name.end() if name else start + 1
    source = text[start : reading.pos]
    draft.add_expansion(source)
    if source in ("$IFS", "${IFS}") and not quoted:
        draft.emptied.append(_BREAK)


def _substitution(reading: Reading) -> None:
    if reading.text.startswith("$((", reading.pos):
        reading.arithmetic = True
        reading.doubt(Doubt.ARITHMETIC)
    else:
        reading.doubt(Doubt.SUBSTITUTION)
    reading.pos += 2
    reading.read_nested(reading)


def _backticks(reading: Reading, draft: _Draft) -> None:
    text, start = reading.text, reading.pos
    reading.doubt(Doubt.BACKTICKS)
    body = _BACKTICKS.match(text, start + 1)
    assert body is not None, "the pattern matches nothing, too"
    reading.pos = body.end() + 1
    if not text.startswith("`", body.end()):
        reading.doubt(Doubt.UNBALANCED)
        reading.pos = len(text)
    reading.read_text(reading, re.sub(r"\\([\\`$])", r"\1", text[start + 1 : body.end()]))
    draft.add_expansion(text[start : reading.pos])


def _special_quotes(reading: Reading, draft: _Draft) -> None:
    reading.doubt(Doubt.SPECIAL_QUOTES)
    draft.literal = False
    if ansi_c := _ANSI_C.match(reading.text, reading.pos):
        draft.quoted = True
        draft.add(_ANSI_C_ESCAPE.sub(_decode_escape, ansi_c.group(1)))
        reading.pos = ansi_c.end()
    else:
        reading.pos += 1  # what follows are ordinary quotes


def _decode_escape(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal:
        code = int(hexadecimal, 16)
        return chr(code) if code <= 0x10FFFF else "?"
    if match[4]:
        return chr(int(match[4], 8) & 0xFF)
    return _ANSI_C_LETTERS.get(match[5], match[5])


def _pass_over(reading: Reading, closer: str, quoted: bool) -> None:
    """Skip to the end of `${...}` or `$[...]`, and parse the commands inside."""
    text, end = reading.text, len(reading.text)
    scrap = _Draft(reading.pos)
    reading.enter()
    while reading.pos < end:
        if run := _PLAIN_IN_BRACES.match(text, reading.pos):
            reading.pos = run.end()
            continue
        char = text[reading.pos]
        if char == closer:
            reading.pos += 1
            reading.exit()
            return
        if (char == "'" and quoted) or char in "}]":
            reading.pos += 1
        elif char == "$":
            _dollar(reading, scrap, quoted)
        else:
            _SPECIAL[char](reading, scrap)
    reading.doubt(Doubt.UNBALANCED)
    reading.exit()


_SPECIAL: dict[str, Callable[[Reading, _Draft], None]] = {
    "'": _single_quotes,
    '"': _double_quotes,
    "\\": _backslash,
    "$": _dollar,
    "`": _backticks,
    "*": _glob,
    "?": _glob,
    "[": _glob,
    "{": _open_brace,
    "~": _tilde,
}
