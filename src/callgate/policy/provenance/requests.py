"""Uses that the user's sentences give to values: an action, ordered or only mentioned. Pure.

    text -> words -> clauses (stance, actions) -> Request.objection(position, use)

    "Summarize notes.txt and delete old.txt"    two clauses: {read} notes.txt, {destroy} old.txt
    "What does `curl ... | sh` do?"             a question: nothing is ordered
    "Never run `git push --force`"              a prohibition
    "Mail the report of eve@x.example to Bob"   Eve is no recipient: her address follows "of"

The grammar is a heuristic for English. It errs towards an approval: text in a question or a
prohibition vouches for nothing. The time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec

from callgate.policy.provenance import forms
from callgate.policy.provenance.actions import (
    NEEDS_A_WORD,
    Action,
    actions_of,
    is_money,
    is_noun,
    passive_actions_of,
)
from callgate.policy.provenance.stances import (
    FILLERS,
    JOINTS,
    Stance,
    stances_of,
    verb_after,
)
from callgate.policy.provenance.words import Word, normalized, words_of


class Clause(msgspec.Struct, frozen=True):
    stance: Stance
    actions: frozenset[Action]
    refers_back: bool
    """It has no object besides pronouns and nouns: "delete it", "pay the bill"."""


class Dictation(StrEnum):
    """The part of a message whose text a quotation gives."""

    TITLE = "title"
    TEXT = "text"


class Use(NamedTuple):
    """The use of a value in a call."""

    action: Action | None = None
    tool: str = ""


NO_USE = Use()
ORDINARY_WORD = "where it is an ordinary word"
_RUNS = frozenset({Action.RUN, Action.MAKE, Action.CHANGE, Action.DESTROY})
_LONGEST_SENTENCE = 200
"""Maximum words of a sentence; a longer one is divided, and its parts share their stance."""
_PRONOUNS = frozenset(
    """it them this that these those him her his they both there their its one ones same""".split()  # noqa: SIM905
)
_SOURCES = frozenset({"from", "by", "about", "regarding", "concerning", "of", "like"})
"""Prepositions whose object is not the recipient of anything."""
_BACK = frozenset(
    """reply respond answer return refund back reimburse replying responding""".split()  # noqa: SIM905
)
_DELEGATED = frozenset({"actions", "tasks", "instructions", "todos", "to-dos", "steps"})
"""Words with which the user orders the tasks of another text."""
_OBJECTS = frozenset(
    """file document event appointment meeting bill invoice note mail email message page record
    ticket issue transaction payment order account channel user folder list item booking
    reservation subscription result draft post entry task repository branch""".split()  # noqa: SIM905
)
"""Nouns that, after "the", refer to an object that was named before."""
_WRITES = frozenset({Action.SEND, Action.MAKE, Action.CHANGE, Action.SHARE, Action.PAY})
_TITLE_NOUNS = frozenset({"subject", "title", "titled", "called", "named", "name"})
_TEXT_NOUNS = frozenset(
    """text message status note notes body content payload description comment caption saying say
    question reply answer words following state""".split()  # noqa: SIM905
)
"""Nouns in front of a quotation that is a text to send."""
_MESSAGES = frozenset({"message", "mail", "email", "note", "post", "entry"})
_TOWARDS = frozenset({"to", "with", "in", "into", "cc"})
_PREPOSITIONS = _TOWARDS | {"for"}
_QUANTIFIERS = frozenset({"all", "every", "each", "both", "necessary", "relevant"})
_WHICH = frozenset(
    """with where who which that starting ending whose having containing not""".split()  # noqa: SIM905
)
"""Words after a noun that begin a description: "the channel with the most members"."""
_EVERYBODY = frozenset({"everyone", "everybody"})
_PEOPLE = frozenset({"user", "member", "contact"})
_ENDS = frozenset(
    """and or about that with in on at please to from by for the a my when if as but then""".split()  # noqa: SIM905
)
_SENTENCE = 3
"""Minimum plain words of a quoted text, in contrast to a name."""
_AHEAD = 6
"""Number of later clauses that may refer back to a value."""
_DETERMINERS = frozenset(
    """the a an my your our his her their its this that these those all any every each last latest
    new unread recent first second next some no of from in which what s upcoming previous other
    received sent on for with by one two three""".split()  # noqa: SIM905
)


class Request:
    """One text of the user, with a clause for each word."""

    __slots__ = ("_bounds", "clause_at", "clauses", "text", "texts", "words")

    def __init__(self, text: str) -> None:
        self.text = normalized(text)
        self.words = words_of(self.text)
        self.texts = [word.text for word in self.words]
        """The folded words."""
        self.clauses: list[Clause] = []
        self.clause_at: list[int] = [0] * len(self.words)
        """For each word, the number of its clause."""
        self._bounds: list[tuple[int, int]] = []
        start, stance = 0, None
        for end, word in enumerate(self.words, 1):
            is_end = word.mark in (".", "?") or end == len(self.words)
            if is_end or end - start >= _LONGEST_SENTENCE:
                self._read_sentence(start, end, stance)
                stance = None if is_end else self.clauses[-1].stance
                start = end

    def _read_sentence(self, start: int, end: int, carried: Stance | None) -> None:
        words = self.words[start:end]
        stances = stances_of(words)
        if carried not in (None, Stance.ORDER):
            stances = [carried if each is Stance.ORDER else each for each in stances]
        bounds = [0, *_clause_starts(words, stances), len(words)]
        for first, last in pairwise(bounds):
            if first == last:
                continue
            actions = _actions_in(words[first:last])
            if not actions and self.clauses and stances[first] is not Stance.QUESTION:
                actions = self.clauses[-1].actions
            self.clause_at[start + first : start + last] = [len(self.clauses)] * (last - first)
            self._bounds.append((start + first, start + last))
            self.clauses.append(Clause(stances[first], actions, _refers_back(words[first:last])))

    # Queries.

    def objection(self, at: int, length: int, use: Use, parameter: str = "") -> str:
        """Return why these words do not vouch for a use; an empty text if they do.

        The words are those from position `at`. The text completes "... your words, <why>".
        """
        number = self.clause_at[at]
        clause = self.clauses[number]
        if clause.stance is Stance.PROHIBITION:
            return "which exclude it"
        if clause.stance is Stance.QUESTION:
            return "which only ask about it"
        if clause.stance is Stance.QUOTATION:
            return "which only quote it"
        if clause.stance is Stance.REPORT and not self._orders_later(use.action, number):
            return "which only report it"
        if use.action is not Action.READ and self._is_dictated(at):
            return "which have it in a text"
        if use.action is not Action.READ and self._is_source(at):
            return "which name it as the source of something"
        if not self._asks_for(use.action, number):
            if use.action is None:  # a tool whose name and effects show no action
                return "which only ask to read it"
            return f"which do not ask to {use.action.wanted}"
        if parameter and not self._has_role(at, length, parameter):
            return ORDINARY_WORD
        return ""

    def asks_to_run(self, at: int) -> bool:
        """Whether the clause of a word asks to run something."""
        return not _RUNS.isdisjoint(self.clauses[self.clause_at[at]].actions)

    def words_of_clause(self, number: int) -> Sequence[Word]:
        first, last = self._bounds[number]
        return self.words[first:last]

    def dictations(self) -> Iterator[tuple[int, Dictation]]:
        """Yield the clauses that order a quoted text, with the part that it is for."""
        for at, word in enumerate(self.words):
            number = self.clause_at[at]
            clause = self.clauses[number]
            is_start = word.is_quoted and not (at and self.words[at - 1].is_quoted)
            is_order = clause.stance is Stance.ORDER and not _WRITES.isdisjoint(clause.actions)
            if not is_start or not is_order:
                continue
            if any(mark in word.raw for mark in "@/{") or "{" in self._quotation(at):
                continue
            before = self.texts[max(self._bounds[number][0], at - 2) : at]
            if not _TITLE_NOUNS.isdisjoint(before):
                yield number, Dictation.TITLE
            elif before and before[-1] in _OBJECTS - _MESSAGES:
                if Action.MAKE in clause.actions:
                    yield number, Dictation.TITLE
            elif not _TEXT_NOUNS.isdisjoint(before) or (
                before and Action.SEND in actions_of(before[-1])
            ):
                yield number, Dictation.TEXT

    def _quotation(self, at: int) -> str:
        """Return the text from a word to the end of its line."""
        return self.text[self.words[at].start :].partition("\n")[0]

    def orders(self, action: Action | None) -> bool:
        """Whether any clause asks for an action."""
        return any(
            clause.stance is Stance.ORDER and _covers(clause.actions, action)
            for clause in self.clauses
        )

    def _asks_for(self, action: Action | None, number: int) -> bool:
        return _covers(self.clauses[number].actions, action) or self._orders_later(action, number)

    def _orders_later(self, action: Action | None, number: int) -> bool:
        """Whether a later clause asks for an action and refers back: "send them the summary"."""
        return any(
            clause.stance is Stance.ORDER and clause.refers_back and _covers(clause.actions, action)
            for clause in self.clauses[number + 1 : number + 1 + _AHEAD]
        )

    def _is_dictated(self, at: int) -> bool:
        """Whether an address is inside a quoted sentence, and so part of a text."""
        word = self.words[at]
        if not word.is_quoted or not forms.is_plain_value(word.text):
            return False
        first = last = at
        while first > 0 and self.words[first - 1].is_quoted:
            first -= 1
        while last + 1 < len(self.words) and self.words[last + 1].is_quoted:
            last += 1
        others = [each for each in self.words[first : last + 1] if _is_plain(each.raw)]
        return len(others) >= _SENTENCE

    def _is_source(self, at: int) -> bool:
        """Whether an address follows "from", "by" or the like, so that nothing goes to it."""
        first, last = self._bounds[self.clause_at[at]]
        before = self.texts[max(first, at - 2) : at]
        if not before or "@" not in self.texts[at]:
            return False
        is_source = before[-1] in _SOURCES or (before[-1] == "the" and before[0] in _SOURCES)
        segment = self.texts[first:last]
        return is_source and _BACK.isdisjoint(segment) and _DELEGATED.isdisjoint(segment)

    def _has_role(self, at: int, length: int, parameter: str) -> bool:
        """Whether the words can be a value of the parameter: a plain word of a sentence is none,
        unless it is quoted, capitalized, or next to the parameter's noun."""
        words = self.words[at : at + length]
        if len(self.words) <= length + 1 or any(not _is_plain(word.raw) for word in words):
            return True
        if words[0].is_quoted or self.text[words[0].start - 1 : words[0].start] in ("#", "@"):
            return True
        starts = at == 0 or self.words[at - 1].mark in (".", "?", ":")
        capitals = words[1:] if starts and actions_of(words[0].text) else words
        if any(word.raw[:1].isupper() for word in capitals):
            return True
        if self._is_object(at, length):
            return True
        nouns = _nouns(parameter)
        around = (*self.texts[max(0, at - 2) : at], *self.texts[at + length : at + length + 1])
        return not nouns.isdisjoint(around)

    def is_object_of_order(self, at: int, length: int, use: Use) -> bool:
        """Whether an order has the words alone after a preposition, "for" included."""
        return not self.objection(at, length, use) and self._is_object(at, length, _PREPOSITIONS)

    def describes(self, nouns: frozenset[str]) -> bool:
        """Whether an order describes entries of a kind instead of naming them."""
        for at, word in enumerate(self.texts):
            if self.clauses[self.clause_at[at]].stance is not Stance.ORDER:
                continue
            if word in _EVERYBODY and not nouns.isdisjoint(_PEOPLE):
                return True
            if self.words[at].is_quoted or word.rstrip("s") not in nouns:
                continue
            before = self.texts[max(0, at - 2) : at]
            after = "" if self.words[at].mark else "".join(self.texts[at + 1 : at + 2])
            if after in _WHICH or not _QUANTIFIERS.isdisjoint(before):
                return True
        return False

    def _is_object(self, at: int, length: int, prepositions: frozenset[str] = _TOWARDS) -> bool:
        """Whether the words alone follow a preposition: "to ann", "in general and ..."."""
        if not at or self.texts[at - 1] not in prepositions or self.words[at - 1].mark:
            return False
        following = self.texts[at + length : at + length + 1]
        return bool(self.words[at + length - 1].mark) or not following or following[0] in _ENDS


def _sends(before: Sequence[str]) -> bool:
    return bool(before) and Action.SEND in actions_of(before[-1])


def _covers(actions: frozenset[Action], action: Action | None) -> bool:
    """Whether a clause with these actions asks for `action`."""
    if action is Action.READ:
        return True
    if action in NEEDS_A_WORD or action is Action.RUN:
        return action in actions
    return not actions or actions != {Action.READ}


def _is_plain(raw: str) -> bool:
    return raw.replace("-", "").isalpha()


def _nouns(parameter: str) -> frozenset[str]:
    words = {word.rstrip("s") for word in re.split(r"[_.\W]+", forms.fold(parameter))}
    found = {word for word in words if len(word) > 2}
    for family in _SYNONYMS:
        if found & family:
            found |= family
    return frozenset(found | {f"{word}s" for word in found} | {"named", "called", "titled"})


_SYNONYMS = (
    frozenset({"channel", "room", "chat", "group"}),
    frozenset({"user", "username", "member", "person", "recipient", "colleague", "friend"}),
    frozenset({"password", "passphrase", "secret", "pin"}),
    frozenset({"account", "wallet", "iban", "payee"}),
    frozenset({"city", "town", "place", "location"}),
    frozenset({"repo", "repository", "project"}),
)


# --- clauses ----------------------------------------------------------------------------------


def _clause_starts(words: Sequence[Word], stances: Sequence[Stance]) -> list[int]:
    starts = []
    for at in range(1, len(words)):
        joins = words[at - 1].mark in (",", ";", ":") or words[at].text in JOINTS
        if stances[at] is not stances[at - 1] or (joins and verb_after(words, at) is not None):
            starts.append(at)
    return starts


def _actions_in(words: Sequence[Word]) -> frozenset[Action]:
    found: set[Action] = set()
    for at, word in enumerate(words):
        actions = frozenset() if word.is_quoted else actions_of(word.text)
        if at and words[at - 1].text in ("be", "get", "gets", "got"):
            actions |= passive_actions_of(word.text)
        if not actions or (at and words[at - 1].text in _DETERMINERS):
            continue
        if not is_noun(word.text) or _may_be_verb(words, at):
            is_for_user = words[at + 1 : at + 2] and words[at + 1].text in ("me", "us")
            found |= actions - {Action.SEND} | {Action.READ} if is_for_user else actions
    if found & {Action.SEND, Action.MAKE} and _has_money(words):
        found.add(Action.PAY)
    return frozenset(found)


def _has_money(words: Sequence[Word]) -> bool:
    return any(
        is_money(word.text) or word.raw[:1] in "$€£" or word.text.replace(".", "", 1).isdecimal()
        for word in words
    )


def _may_be_verb(words: Sequence[Word], at: int) -> bool:
    """Whether this is the place of a verb: the start of a clause, or after "to", "and", "you"."""
    if at == 0 or words[at - 1].mark:
        return True
    before = words[at - 1].text
    return before in FILLERS or before in JOINTS or before in ("you", "must", "should", "ll")


def _refers_back(words: Sequence[Word]) -> bool:
    for at, word in enumerate(words):
        if word.text in _PRONOUNS:
            return True
        if word.text in _OBJECTS and at and words[at - 1].text in ("the", "that", "this"):
            following = words[at + 1 : at + 2]
            return not following or not (following[0].is_quoted or _is_value(following[0]))
    return not any(word.is_quoted or _is_value(word) for word in words[1:])


def _is_value(word: Word) -> bool:
    """Whether a word names an object: an address, a path, a number, a name."""
    return (
        any(mark in word.text for mark in "@/.")
        or any(map(str.isdigit, word.text))
        or (word.raw[:1].isupper() and word.raw != "I")
    )
