"""Parse a shell command line into its simple commands, without running or expanding anything.

The language is the common part of `bash -c` and `sh -c`: words, quotes, the operators
; && || | and newline, redirections, comments. All other syntax is a doubt. The result is exact if
there are no doubts. With doubts it still lists every command that could be recognized, also inside
keywords, groups, substitutions and here-documents, so that a denied command is found there. The
parser skips text only if no shell would run it.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from callgate.policy.shell_patterns import (
    MAX_CHARACTERS,
    MAX_SEGMENTS,
    MAX_TOKENS,
    Doubt,
    ParsedCommand,
    Reading,
    Redirect,
    Segment,
    TooMuch,
    Word,
)
from callgate.policy.shell_words import WORD_END, read_here_document, read_word

_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\|")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|<|>>|>\||>&|>)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=", re.DOTALL)

_LINE = re.compile(r"[^\n]*")
_JOINED_LINE = re.compile(r"[^\\\n]*(?:\\.[^\\\n]*)*\\?", re.DOTALL)
"""A line of a here-document with an unquoted delimiter: a final backslash joins the next line."""

_DESCRIPTORS = frozenset("0123456789-")
_WRITING = frozenset({">", ">>", ">|", "<>"})
_TRANSPARENT = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!"}
    | {"coproc"}
)
"""Keywords that may precede a command."""
_KEYWORDS = _TRANSPARENT | {"for", "in", "case", "select", "function", "time", "[[", "]]"}


class Draft:
    """A segment during parsing. Here-documents are added after its end."""

    def __init__(self, source: str, start: int, joined_by: str, nested: bool) -> None:
        self.source = source
        self.start = self.end = start
        self.joined_by = joined_by
        self.nested = nested
        self.words: list[Word] = []
        self.redirects: list[Redirect] = []
        self.assignments: list[str] = []
        self.inputs: list[str] = []

    def finish(self) -> Segment:
        literal = all(word.literal for word in self.words)
        return Segment(
            text=self.source[self.start : self.end],
            argv=tuple(word.text for word in self.words),
            literal=literal,
            redirects=tuple(self.redirects),
            assignments=tuple(self.assignments),
            joined_by=self.joined_by,
            nested=self.nested,
            emptied=() if literal else tuple(p for word in self.words for p in word.emptied),
            inputs=tuple(self.inputs),
        )


class Budget:
    """The remaining tokens of one command line, for all of its nested texts."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_TOKENS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooMuch


class TextReader:
    """Parses one text and the texts inside it, which share doubts and drafts."""

    def __init__(
        self, doubts: dict[Doubt, None], drafts: list[Draft], budget: Budget | None = None
    ) -> None:
        self.doubts = doubts
        self.drafts = drafts
        self.budget = budget or Budget()
        self.awaited: list[tuple[Draft, Word, bool]] = []
        """Here-documents that begin on the next line: segment, delimiter, tabs stripped."""

    def read(self, text: str) -> None:
        reading = Reading(text, 0, self.doubts, self.read_substitution, self.read_text)
        _ListReader(self, reading, nested=False).read()

    def read_substitution(self, reading: Reading) -> None:
        """Parse the inside of `$( )` or `<( )`, which has separate here-documents."""
        awaited, self.awaited = self.awaited, []
        self.read_group(reading)
        self.awaited = awaited

    def read_group(self, reading: Reading) -> None:
        reading.enter()
        _ListReader(self, reading, nested=True).read()
        reading.exit()

    def read_text(self, outer: Reading, text: str) -> None:
        inner = self.inside(outer, text)
        self.budget.spend()
        reader = TextReader(self.doubts, self.drafts, self.budget)  # its here-documents end with it
        _ListReader(reader, inner, nested=True, closed_by_end=True).read()

    def start_segment(self, reading: Reading, joined_by: str, nested: bool) -> Draft:
        if len(self.drafts) >= MAX_SEGMENTS:
            raise TooMuch
        draft = Draft(reading.text, reading.pos, joined_by, nested)
        self.drafts.append(draft)
        return draft

    def read_here_documents(self, reading: Reading) -> None:
        """Consume the lines up to each awaited delimiter; the position is the start of a line."""
        awaited, self.awaited = self.awaited, []
        if reading.arithmetic:
            return  # it may have been a shift: then these lines are commands
        for draft, delimiter, tabs_stripped in awaited:
            body = _read_body(reading, delimiter, tabs_stripped)
            draft.inputs.append(body)
            if not delimiter.quoted:
                inner = self.inside(reading, body)
                read_here_document(inner)

    def inside(self, outer: Reading, text: str) -> Reading:
        """Return the state for a text inside another one."""
        inner = Reading(text, outer.depth, self.doubts, self.read_substitution, self.read_text)
        inner.enter()
        return inner


def _read_body(reading: Reading, delimiter: Word, tabs_stripped: bool) -> str:
    lines: list[str] = []
    shape = _LINE if delimiter.quoted else _JOINED_LINE
    while reading.pos < len(reading.text):
        match = shape.match(reading.text, reading.pos)
        assert match is not None, "an empty line is one, too"
        reading.pos = match.end() + 1
        line = match.group() if delimiter.quoted else match.group().replace("\\\n", "")
        if (line.lstrip("\t") if tabs_stripped else line) == delimiter.text:
            break
        lines.append(line)
    return "\n".join(lines)


class _ListReader:
    """Parses commands joined by operators, to the end of the text or to a closing `)`."""

    def __init__(
        self, texts: TextReader, reading: Reading, *, nested: bool, closed_by_end: bool = False
    ) -> None:
        self.texts = texts
        self.reading = reading
        self.nested = nested
        self.awaits_closer = nested and not closed_by_end
        self.draft: Draft | None = None
        self.joiner = ""
        self.open_cases = 0
        """Inside `case`, a `)` ends a pattern instead of a group."""
        self.after_group = False
        """The preceding token was a group in parentheses or a keyword, in place of a command."""

    def read(self) -> None:
        reading = self.reading
        text, end = reading.text, len(reading.text)
        while reading.pos < end:
            char = text[reading.pos]
            if char in " \t":
                reading.pos += 1
            elif char == ")" and self.awaits_closer and not self.open_cases:
                reading.pos += 1
                break
            else:
                self._read_token(char)
        else:
            if self.awaits_closer:
                reading.doubt(Doubt.UNBALANCED)
        if self.joiner in ("&&", "||", "|") and not self._has_command():
            reading.doubt(Doubt.SYNTAX)

    def _read_token(self, char: str) -> None:
        reading = self.reading
        self.texts.budget.spend()
        if char == "\n":
            reading.pos += 1
            self._end_line()
        elif char == "#" and not reading.arithmetic:
            newline = reading.text.find("\n", reading.pos)
            reading.pos = newline if newline >= 0 else len(reading.text)
        elif char in ";&|":
            self._read_operator()
        elif char in "()":
            self._read_parenthesis(char)
        elif redirect := _REDIRECT.match(reading.text, reading.pos):
            self._read_redirect(redirect)
        else:
            self._read_word()

    def _has_command(self) -> bool:
        return self.draft is not None or self.after_group

    def _current(self) -> Draft:
        if self.draft is None:
            self.draft = self.texts.start_segment(self.reading, self.joiner, self.nested)
        return self.draft

    def _end_segment(self, joiner: str) -> None:
        self.draft = None
        self.after_group = False
        self.joiner = joiner

    def _end_line(self) -> None:
        if self._has_command():
            self._end_segment("\n")
        self.texts.read_here_documents(self.reading)

    def _read_operator(self) -> None:
        reading = self.reading
        match = _OPERATOR.match(reading.text, reading.pos)
        assert match is not None, "every one of ; & | is an operator"
        operator = match.group()
        reading.pos = match.end()
        if operator == "&":
            followed = reading.text.startswith(">", reading.pos)
            reading.doubt(Doubt.DIALECT if followed else Doubt.BACKGROUND)
        elif operator == "|&":
            reading.doubt(Doubt.DIALECT)
        elif operator.startswith(";") and len(operator) > 1:
            reading.doubt(Doubt.COMPOUND)
        if not self._has_command():
            reading.doubt(Doubt.SYNTAX)
        self._end_segment(operator)

    def _read_parenthesis(self, char: str) -> None:
        reading = self.reading
        reading.doubt(Doubt.PARENTHESES)
        if reading.text.startswith("((", reading.pos):
            reading.arithmetic = True
        reading.pos += 1
        if char == "(":
            self.texts.read_group(reading)
        self._end_segment(";")
        self.after_group = True

    def _read_redirect(self, match: re.Match[str]) -> None:
        reading = self.reading
        draft = self._current()
        descriptor, operator = match.groups()
        if not descriptor and reading.text.startswith(("<(", ">("), reading.pos):
            self._read_process_substitution(draft)
            return
        if len(descriptor) > 1:
            reading.doubt(Doubt.DIALECT)
        reading.pos = draft.end = match.end()
        target = self._read_target()
        draft.end = reading.pos
        if operator in ("<<", "<<-", "<<<"):
            reading.doubt(Doubt.HERE_DOCUMENT)
            if operator == "<<<":
                draft.inputs.append(target.text if target else "")
            elif target is not None and target.literal:
                self.texts.awaited.append((draft, target, operator == "<<-"))
        literal = target.text if target is not None and target.literal else None
        writes = operator in _WRITING
        if operator in (">&", "<&") and (literal is None or literal not in _DESCRIPTORS):
            reading.doubt(Doubt.DIALECT)
            writes = operator == ">&"
        draft.redirects.append(Redirect(operator, literal, writes, descriptor))

    def _read_target(self) -> Word | None:
        reading = self.reading
        text = reading.text
        while text[reading.pos : reading.pos + 1] in (" ", "\t"):
            reading.pos += 1
        following = text[reading.pos : reading.pos + 1]
        if following in ("", "#", *WORD_END) or _REDIRECT.match(text, reading.pos):
            reading.doubt(Doubt.SYNTAX)
            return None
        return read_word(reading)

    def _read_process_substitution(self, draft: Draft) -> None:
        reading, start = self.reading, self.reading.pos
        reading.doubt(Doubt.PROCESS)
        reading.pos += 2
        self.texts.read_substitution(reading)
        draft.words.append(Word(reading.text[start : reading.pos], False, False, ()))
        draft.end = reading.pos

    def _read_word(self) -> None:
        reading, start = self.reading, self.reading.pos
        draft = self._current()
        word = read_word(reading)
        draft.end = reading.pos
        if word.text.startswith("{") and reading.text.startswith(("<", ">"), reading.pos):
            reading.doubt(Doubt.DIALECT)  # {name}> opens a descriptor in bash
        if draft.words:
            draft.words.append(word)
            if word.text == "{" and draft.words[0].text == "function":
                self._end_segment(";")
        elif _ASSIGNMENT.match(word.text):
            reading.doubt(Doubt.ASSIGNMENT)
            draft.assignments.append(word.text)
        elif word.text in _KEYWORDS and not word.quoted:
            self._read_keyword(draft, word, start)
        else:
            draft.words.append(word)

    def _read_keyword(self, draft: Draft, word: Word, start: int) -> None:
        self.reading.doubt(Doubt.COMPOUND)
        if word.text == "case":
            self.open_cases += 1
        elif word.text == "esac" and self.open_cases:
            self.open_cases -= 1
        if word.text in _TRANSPARENT and draft.start == start:
            self.texts.drafts.pop()  # the segment begins after the keyword
            self._end_segment(self.joiner)
            self.after_group = True
        else:
            draft.words.append(word)


_SHELL_STATE = frozenset(
    {".", "source", "eval", "exec", "command", "builtin", "enable", "hash", "fc", "trap"}
    | {"alias", "unalias", "set", "shopt", "unset", "export", "readonly", "local", "declare"}
    | {"typeset", "read", "mapfile", "readarray", "getopts", "let", "bind", "umask", "ulimit"}
)
"""Commands that change the meaning of later commands, or where the shell finds them."""
_COMPUTING = _SHELL_STATE | {"[", "test", "printf", "wait"}


@lru_cache(maxsize=16)
def read_command(text: str) -> ParsedCommand:
    """Parse a command line. Never raises: syntax that is not understood becomes a doubt.

    Cached, because a call is evaluated several times (before and after each wait).
    """
    doubts: dict[Doubt, None] = {}
    drafts: list[Draft] = []
    if len(text) > MAX_CHARACTERS:
        doubts[Doubt.TOO_LONG] = None
    else:
        if not text.replace("\n", " ").replace("\t", " ").isprintable():
            doubts[Doubt.INVISIBLE] = None
        if text.startswith(("-", "+")):
            doubts[Doubt.OPTION] = None
        try:
            TextReader(doubts, drafts).read(text)
        except (TooMuch, RecursionError):
            doubts[Doubt.TOO_LONG] = None
    segments = _with_piped_text([draft.finish() for draft in drafts])
    _doubt_builtins(segments, doubts)
    return ParsedCommand(text=text, segments=segments, doubts=tuple(doubts))


def _with_piped_text(segments: list[Segment]) -> tuple[Segment, ...]:
    """Give each segment the literal text that is piped into it: `echo ls | sh`."""
    for at in range(1, len(segments)):
        before, segment = segments[at - 1], segments[at]
        if segment.joined_by not in ("|", "|&") or not before.argv or segment.inputs:
            continue
        writes = before.argv[0] in ("echo", "printf")
        inputs = (" ".join(before.argv[1:]),) if writes else before.inputs
        if inputs:
            segments[at] = msgspec.structs.replace(segment, inputs=inputs)
    return tuple(segments)


def _doubt_builtins(segments: tuple[Segment, ...], doubts: dict[Doubt, None]) -> None:
    """Add doubts for commands that change the shell, or compute with their words."""
    for number, segment in enumerate(segments, 1):
        program, *arguments = segment.argv or ("",)
        if program.startswith("%"):
            doubts[Doubt.JOB] = None
        if number < len(segments) and _changes_shell(program, arguments):
            doubts[Doubt.SHELL_STATE] = None
        if program in _COMPUTING and any(map(_may_run, arguments)):
            doubts[Doubt.ARITHMETIC] = None


def _changes_shell(program: str, arguments: list[str]) -> bool:
    first = arguments[0] if arguments else ""
    if program == "command":
        return first not in ("-v", "-V")
    return program in _SHELL_STATE or (program == "printf" and first.startswith("-v"))


def _may_run(word: str) -> bool:
    """Whether bash may run a command in the word: it evaluates the index of `a[$(id)]`."""
    return "[" in word and ("$" in word or "`" in word)
