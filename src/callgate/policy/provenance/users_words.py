"""An index of the user's words, which finds a value and tells whether the words vouch for a use.

    add(text) -> Request (clauses) -> tables: word, address, group of digits, command
    find*(value, use) -> ""            the words vouch for the use
                         "which ..."   they contain the value, but do not vouch for this use
                         None          they do not contain it

A look-up costs a few dictionary accesses for any length of conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from callgate.policy.provenance import forms
from callgate.policy.provenance.actions import Action
from callgate.policy.provenance.requests import Dictation, Request, Use
from callgate.policy.provenance.stances import Stance
from callgate.policy.provenance.words import normalized

_MOST_POSITIONS = 64
"""Maximum indexed places of one word; the first ones suffice."""
_MOST_COMMANDS = 10_000
_LONGEST_COMMAND = 10_000
_QUOTES = ("`", '"', "'")
_MOST_QUOTES = 64
"""Maximum quotation marks of one line that may enclose a command."""
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
ELSEWHERE = "which name another page of this host"

Position = tuple[int, int]
"""The number of a text, and of a word in it."""


class UserWords:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._positions: dict[str, list[Position]] = {}
        self._addresses: dict[tuple[str, int], list[tuple[forms.Address, bool, Position]]] = {}
        """Host and port, mapped to addresses and whether they are written with a scheme."""
        self._groups: dict[str, list[Position]] = {}
        """Like `_positions`, without hyphens, for the digit groups of numbers."""
        self._commands: dict[str, str] = {}
        """Command, mapped to the objection against it."""
        self._orders: set[Action] = set()
        self._described: dict[frozenset[str], bool] = {}

    def add(self, text: str) -> None:
        request = Request(text)
        number = len(self.requests)
        self.requests.append(request)
        self._described.clear()
        for at, word in enumerate(request.words):
            known = self._positions.setdefault(word.text, [])
            if len(known) < _MOST_POSITIONS:
                known.append((number, at))
                self._add_address(word.raw, (number, at))
            starts = self._groups.setdefault(word.text.replace("-", ""), [])
            if len(starts) < _MOST_POSITIONS:
                starts.append((number, at))
        for command, objection in _commands_in(request):
            if len(self._commands) < _MOST_COMMANDS and self._commands.get(command) != "":
                self._commands[command] = objection
        self._orders |= {action for action in Action if request.orders(action)}

    def _add_address(self, raw: str, position: Position) -> None:
        if "." not in raw and "://" not in raw and "localhost" not in raw:
            return
        address = forms.address_of(raw)
        has_scheme = "://" in raw
        if address is None or not forms.is_named_host(forms.fold(raw), address):
            return
        known = self._addresses.setdefault(address[:2], [])
        if len(known) < _MOST_POSITIONS:
            known.append((address, has_scheme, position))

    # Queries.

    def orders(self, action: Action | None) -> bool:
        """Whether some sentence asks for an action."""
        return action is None or action in self._orders

    def find(self, words: list[str], use: Use, parameter: str = "") -> str | None:
        """Look up consecutive words. `parameter`: a plain word must have its role."""
        try:
            found = [self._positions[word] for word in words]
        except KeyError:
            return None
        rarest = min(range(len(words)), key=lambda at: len(found[at]))
        return self._first_use(found[rarest], rarest, words, use, parameter)

    def _first_use(
        self, positions: list[Position], offset: int, words: list[str], use: Use, parameter: str
    ) -> str | None:
        objection: str | None = None
        for number, position in positions:
            request, start = self.requests[number], position - offset
            if start < 0 or request.texts[start : start + len(words)] != words:
                continue
            objection = request.objection(start, len(words), use, parameter)
            if not objection:
                return ""
        return objection

    def mentions(self, word: str) -> bool:
        return word in self._positions

    def ends_phrase(self, words: list[str], use: Use) -> bool:
        """Whether an order has the words as the object of a preposition: "in the one for staff"."""
        return any(
            self.requests[number].is_object_of_order(at, len(words), use)
            for number, at in self._positions.get(words[0], ())
            if self.requests[number].texts[at : at + len(words)] == words
        )

    def describes(self, nouns: frozenset[str]) -> bool:
        """Whether an order asks for entries of a kind: "the channel with ...", "all members"."""
        if nouns not in self._described:
            self._described[nouns] = any(each.describes(nouns) for each in self.requests)
        return self._described[nouns]

    def dictations(self, destinations: tuple[str, ...], use: Use) -> frozenset[Dictation]:
        """Return the parts of a message that the user dictated for destinations; without one in
        the words, for the kind of object that the tool is named after."""
        found = [
            (dictation, {word.text for word in request.words_of_clause(number)})
            for request in self.requests
            for number, dictation in request.dictations()
        ]
        if not found:
            return frozenset()
        values = [set(forms.tokens(forms.fold(value))) for value in destinations]
        if any(each <= self._positions.keys() for each in values):
            return frozenset(kind for kind, texts in found if any(each <= texts for each in values))
        nouns = {word for word in use.tool.replace("-", "_").split("_") if len(word) > 3}
        return frozenset(kind for kind, texts in found if not nouns.isdisjoint(texts))

    def find_address(self, wanted: forms.Address, use: Use) -> str | None:
        """Look up an address as written; a host alone means its first page."""
        known = self._addresses.get(wanted[:2])
        if known is None:
            return None
        objection = ELSEWHERE
        for address, has_scheme, (number, position) in known:
            is_same = (address.page, address.user) == (wanted.page, wanted.user)
            if is_same and (wanted.is_encrypted or not address.is_encrypted or not has_scheme):
                objection = self.requests[number].objection(position, 1, use)
                if not objection:
                    return ""
        return objection

    def names_host(self, host: str, port: int) -> bool:
        """Whether the words contain an address of a host, other than to exclude it."""
        return any(
            self.requests[number].clauses[self.requests[number].clause_at[at]].stance
            is not Stance.PROHIBITION
            for _, _, (number, at) in self._addresses.get((host, port), ())
        )

    def find_command(self, value: str) -> str | None:
        """Look up a command, which is on separate lines or in quotation marks."""
        return self._commands.get(" ".join(normalized(value).split()))

    def find_number(self, parameter: str, folded: str, use: Use) -> str | None:
        """Look up an account number with any grouping, or a short number next to its noun."""
        squeezed = forms.squeeze(folded)
        if forms.is_grouped_number(squeezed):
            return self._find_groups(squeezed, use)
        objection: str | None = None
        for number, at in self._positions.get(folded, ()) if folded.isdecimal() else ():
            request = self.requests[number]
            start = request.words[at].start
            is_marked = start > 0 and request.text[start - 1] == "#"
            before = request.texts[at - 1] if at else ""
            if is_marked or forms.is_noun_of_number(parameter, before):
                objection = request.objection(at, 1, use)
                if not objection:
                    return ""
        return objection

    def _find_groups(self, squeezed: str, use: Use) -> str | None:
        objection: str | None = None
        for length in range(1, len(squeezed) + 1):
            for number, position in self._groups.get(squeezed[:length], ()):
                request = self.requests[number]
                around = request.texts[max(0, position - 1) : position + len(squeezed) + 1]
                groups = [word.replace("-", "") for word in around]
                if forms.stands_grouped(squeezed, groups, (min(position, 1),)):
                    objection = request.objection(position, 1, use)
                    if not objection:
                        return ""
        return objection


# --- commands ---------------------------------------------------------------------------------


def _commands_in(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the commands that a text contains, each with the objection against running it."""
    yield from _quoted_commands(request)
    yield from _separate_commands(request)


def _quoted_commands(request: Request) -> Iterator[tuple[str, str]]:
    text, start = request.text, 0
    for line in text.splitlines(keepends=True):
        for mark in _QUOTES:
            if mark not in line:
                continue
            at = [n for n, letter in enumerate(line) if letter == mark][:_MOST_QUOTES]
            spans = list(pairwise(at))
            if len(at) > 2:
                spans.append((at[0], at[-1]))
            for opening, closing in spans:
                command = " ".join(line[opening + 1 : closing].split())
                if command and closing - opening <= _LONGEST_COMMAND:
                    yield command, _inline(request, start + opening)
        start += len(line)


def _inline(request: Request, start: int) -> str:
    at = _word_at(request, start)
    if at is None:
        return "which only mention it"
    return _objection(request, at)


def _objection(request: Request, at: int) -> str:
    """Return why the clause of a word does not order to run anything."""
    if request.clauses[request.clause_at[at]].stance is not Stance.ORDER:
        return request.objection(at, 1, Use(Action.READ))
    return "" if request.asks_to_run(at) else "which do not ask to run it"


def _word_at(request: Request, start: int) -> int | None:
    """Return the number of the first word that starts at a position or after it."""
    low, high = 0, len(request.words)
    while low < high:
        middle = (low + high) // 2
        if request.words[middle].start < start:
            low = middle + 1
        else:
            high = middle
    return low if low < len(request.words) else None


def _separate_commands(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, and each block after a colon or in a fence as a whole.

    The line before a block, and the one after it, tell whether the block is to be run.
    """
    lines = list(_lines(request.text))
    at = 0
    while at < len(lines):
        last = _end_of_block(lines, at)
        before = next(
            (each for each in reversed(lines[max(0, at - 3) : at]) if _is_prose(each)), None
        )
        after = next((each for each in lines[last : last + 3] if _is_prose(each)), None)
        objection = _around(request, before, after)
        block = [line for _, line in lines[at:last] if _FENCE.match(line) is None]
        for line in (*block, " ".join(block)):
            command = " ".join(line.split()).removeprefix("$ ")
            if command and len(command) <= _LONGEST_COMMAND:
                yield command, objection
        at = last


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, line
        start += len(line)


def _is_prose(line: tuple[int, str]) -> bool:
    return bool(line[1].strip()) and _FENCE.match(line[1]) is None


def _end_of_block(lines: list[tuple[int, str]], at: int) -> int:
    if _FENCE.match(lines[at][1]):
        for end in range(at + 1, len(lines)):
            if _FENCE.match(lines[end][1]):
                return end + 1
        return len(lines)
    if at and lines[at - 1][1].rstrip().endswith(":"):
        for end in range(at, len(lines)):
            if not lines[end][1].strip():
                return max(end, at + 1)
        return len(lines)
    return at + 1


def _around(request: Request, before: tuple[int, str] | None, after: tuple[int, str] | None) -> str:
    if after is not None:
        at = _word_at(request, after[0])
        if at is not None and request.clauses[request.clause_at[at]].stance is Stance.QUESTION:
            return "which only ask about it"
    if before is None:
        return ""
    end = _word_at(request, before[0] + len(before[1]))
    last = (len(request.words) if end is None else end) - 1
    return "" if last < 0 else _objection(request, last)
