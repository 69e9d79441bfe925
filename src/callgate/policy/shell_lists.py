"""Reads lists of commands: operators, redirections, keywords, groups and here-documents.

A keyword or a group is a doubt; the commands inside are read all the same. Text is passed
over only where no shell would run it, so that nothing denied hides there.
"""

from __future__ import annotations

import re

from callgate.policy.shell_reading import Reading, TooMuch, Word
from callgate.policy.shell_values import MAX_SEGMENTS, MAX_TOKENS, Doubt, Redirect, Segment
from callgate.policy.shell_words import WORD_END, read_here_document, read_word

_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\|")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|<|>>|>\||>&|>)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=", re.DOTALL)

_LINE = re.compile(r"[^\n]*")
_JOINED_LINE = re.compile(r"[^\\\n]*(?:\\.[^\\\n]*)*\\?", re.DOTALL)
"""A line of a here-document whose delimiter is not quoted: a backslash joins the next."""

_DESCRIPTORS = frozenset("0123456789-")
_WRITING = frozenset({">", ">>", ">|", "<>"})
_TRANSPARENT = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!"}
    | {"coproc"}
)
"""Keywords after which a command may follow."""
_KEYWORDS = _TRANSPARENT | {"for", "in", "case", "select", "function", "time", "[[", "]]"}


class Draft:
    """A segment while it is read. Here-documents reach it after its end."""

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
    """The tokens that one command line may still have, in all of its nested texts."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_TOKENS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooMuch


class TextReader:
    """Reads one text and the texts inside it; all of them share doubts and drafts."""

    def __init__(
        self, doubts: dict[Doubt, None], drafts: list[Draft], budget: Budget | None = None
    ) -> None:
        self.doubts = doubts
        self.drafts = drafts
        self.budget = budget or Budget()
        self.awaited: list[tuple[Draft, Word, bool]] = []
        """Here-documents that begin on the next line: whose, delimiter, tabs stripped."""

    def read(self, text: str) -> None:
        reading = Reading(text, 0, self.doubts, self.read_substitution, self.read_text)
        _ListReader(self, reading, nested=False).read()

    def read_substitution(self, reading: Reading) -> None:
        """Read the inside of `$( )` or `<( )`, which has here-documents of its own."""
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
        """Take the lines up to each awaited delimiter; the position is a line's start."""
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
        """A reading of a text that was found inside another one."""
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
    """Reads commands joined by operators, to the end of the text or to a closing `)`."""

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
        """In `case`, a `)` ends a pattern and closes nothing."""
        self.after_group = False
        """A group in parentheses or a keyword stands where a command would."""

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
