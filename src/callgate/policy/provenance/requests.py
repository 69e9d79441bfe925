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
import unicodedata
from collections.abc import Sequence
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


class Stance(StrEnum):
    ORDER = "order"
    """Also a statement."""
    QUESTION = "question"
    PROHIBITION = "prohibition"


class Word(NamedTuple):
    text: str
    """Folded, as in `forms.tokens`."""
    raw: str
    start: int
    """Its position in the text."""
    end: int
    is_quoted: bool
    """It is inside quotation marks or backticks."""
    mark: str
    """The punctuation after it: one of `.?:;,`, or empty."""


class Clause(msgspec.Struct, frozen=True):
    stance: Stance
    actions: frozenset[Action]
    refers_back: bool
    """It has no object besides pronouns and nouns: "delete it", "pay the bill"."""


class Use(NamedTuple):
    """The use of a value in a call."""

    action: Action | None = None
    tool: str = ""


NO_USE = Use()
_RUNS = frozenset({Action.RUN, Action.MAKE, Action.CHANGE, Action.DESTROY})
_LONGEST_HOST = 256
_LONGEST_QUOTE = 4_096
_MOST_APOSTROPHES = 8
_LONGEST_SENTENCE = 200
"""Maximum words of a sentence; a longer one is divided, and its parts share their stance."""
_SMART = {ord(mark): '"' for mark in "“”„«»"} | {ord(mark): "'" for mark in "‘’"}
_BULLET = re.compile(r"\n[ \t]*(?:[-*•]|\d{1,3}[.)])[ \t]")
_ABBREVIATIONS = frozenset({"e.g", "i.e", "etc", "vs", "mr", "mrs", "ms", "dr", "st", "no", "nr"})
_FILLERS = frozenset(
    """please also to kindly you can could would will just then finally now i we and so next
    afterwards ok okay hi hey hello first""".split()  # noqa: SIM905
)
_JOINTS = frozenset({"and", "then", "or", "but", "also", "afterwards", "finally", "plus"})
_NEVER = frozenset(
    """never cannot avoid without stop cease refuse don dont doesn shouldn mustn won can couldn
    wouldn not except excluding instead rather neither nor unlike skip ignore""".split()  # noqa: SIM905
)
_WITH_T = frozenset({"don", "doesn", "shouldn", "mustn", "won", "can", "couldn", "wouldn", "ain"})
_STRONG_BEFORE_NOT = frozenset({"do", "must", "should", "may", "shall", "can", "will", "please"})
_LIFTS = frozenset({"forget", "hesitate", "only", "worry", "fail"})
_ASKING = frozenset(
    """what why who whose whom which is are does did was were how when where has have had do should
    am isn aren doesn wasn weren""".split()  # noqa: SIM905
)
_ASKING_ALONE = frozenset(
    {"what", "why", "who", "whose", "is", "are", "does", "did", "was", "were"}
)
_POLITE = frozenset({"can", "could", "would", "will", "please", "mind", "may"})
_WH = frozenset({"what", "why", "how", "which", "who", "if", "where", "when"})
_LEADS_TO_WH = frozenset(
    """tell explain show describe know check see find out understand verify wonder me us
    determine""".split()  # noqa: SIM905
)
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
_TOWARDS = frozenset({"to", "with", "in", "into", "cc"})
_ENDS = frozenset(
    """and or about that with in on at please to from by for the a my when if as but then""".split()  # noqa: SIM905
)
_AHEAD = 6
"""Number of later clauses that may refer back to a value."""
_DETERMINERS = frozenset(
    """the a an my your our his her their its this that these those all any every each last latest
    new unread recent first second next some no of from in which what s upcoming previous other
    received sent on for with by one two three""".split()  # noqa: SIM905
)


def normalized(text: str) -> str:
    """Return a text with composed accents and plain quotation marks."""
    nfc = text if text.isascii() else unicodedata.normalize("NFC", text)
    return nfc.translate(_SMART)


def words_of(text: str) -> list[Word]:
    """Return the words of a normalized text with the punctuation around them."""
    found: list[Word] = []
    matches = list(forms.TOKEN.finditer(text))
    closing = -1
    for at, match in enumerate(matches):
        raw, start = match.group(), match.start()
        following = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        gap = text[match.end() : following] + ("" if at + 1 < len(matches) else "\n")
        if start > closing:
            closing = _closing_quote(text, start)
        is_quoted = start < closing
        core = forms.bare(raw)
        start += raw.find(core)
        tail = raw.rpartition(core)[2]
        host, name = _glued(core)
        if host:
            found.append(_word(host, start, is_quoted, "" if is_quoted else "."))
            start, core = start + len(host) + 1, name
        is_inside = is_quoted and following < closing
        found.append(_word(core, start, is_quoted, "" if is_inside else _mark(core, tail, gap)))
    return found


def _glued(word: str) -> tuple[str, str]:
    """Divide a host at the end of a sentence without a blank after it: `www.corp.example.They`."""
    host, _, name = word.rpartition(".")
    is_sentence = name[:1].isupper() and name.isalpha() and len(word) <= _LONGEST_HOST
    if is_sentence and host.islower() and "." in host and forms.is_host(host):
        return host, name
    return "", word


def _closing_quote(text: str, start: int) -> int:
    """Return the end of the quotation that opens in front of a word; -1 if none opens there."""
    mark = text[start - 1 : start]
    is_open = mark in ("'", '"', "`") and not text[start - 2 : start - 1].isalnum()
    if start == 0 or not is_open:
        return -1
    at = start
    for _ in range(_MOST_APOSTROPHES):
        at = text.find(mark, at, start + _LONGEST_QUOTE)
        if at < 0:
            return -1
        if not text[at + 1 : at + 2].isalnum():
            return at
        at += 1
    return -1


def _word(core: str, start: int, is_quoted: bool, mark: str) -> Word:
    folded = forms.fold(core)
    if folded[-1:].isdigit():
        folded = forms.number(folded)
    return Word(folded, core, start, start + len(core), is_quoted, mark)


def _mark(core: str, tail: str, gap: str) -> str:
    if not core.strip("?!.:"):
        core, tail = "", core  # punctuation after a quotation
    if "\n\n" in gap or "\n\r\n" in gap or _BULLET.search(gap) is not None:
        return "?" if "?" in tail + gap else "."
    punctuation = (tail + gap).strip("\"'`)] \t\n*_")
    if core and (not gap or not gap[0].isspace()):
        punctuation = gap.strip("\"'`)] \t\n") if gap[:1] in "\"'`)],;" else ""
        punctuation = (tail if gap[:1] in "\"'`)" else "") + punctuation
    for mark in "?!.;:,":
        if mark in punctuation:
            if mark == "." and core.lower() in _ABBREVIATIONS:
                return ""
            return "." if mark == "!" else mark
    return ""


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
        stances = _stances(words)
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
        if use.action is not Action.READ and self._is_source(at):
            return "which name it as the source of something"
        if not self._asks_for(use.action, number):
            if use.action is None:  # a tool whose name and effects show no action
                return "which only ask to read it"
            return f"which do not ask to {use.action.wanted}"
        if parameter and not self._has_role(at, length, parameter):
            return "where it is an ordinary word"
        return ""

    def asks_to_run(self, at: int) -> bool:
        """Whether the clause of a word asks to run something."""
        return not _RUNS.isdisjoint(self.clauses[self.clause_at[at]].actions)

    def orders(self, action: Action | None) -> bool:
        """Whether any clause asks for an action."""
        return any(
            clause.stance is Stance.ORDER and _covers(clause.actions, action)
            for clause in self.clauses
        )

    def _asks_for(self, action: Action | None, number: int) -> bool:
        if _covers(self.clauses[number].actions, action):
            return True
        for clause in self.clauses[number + 1 : number + 1 + _AHEAD]:
            is_order = clause.stance is Stance.ORDER and clause.refers_back
            if is_order and _covers(clause.actions, action):
                return True
        return False

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

    def _is_object(self, at: int, length: int) -> bool:
        """Whether the words alone follow a preposition: "to ann", "in general and ..."."""
        if not at or self.texts[at - 1] not in _TOWARDS or self.words[at - 1].mark:
            return False
        following = self.texts[at + length : at + length + 1]
        return bool(self.words[at + length - 1].mark) or not following or following[0] in _ENDS


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


# --- stances ----------------------------------------------------------------------------------


def _stances(words: Sequence[Word]) -> list[Stance]:
    """Return the stance of each word of a sentence."""
    stances = [Stance.ORDER] * len(words)
    _mark_questions(words, stances)
    _mark_prohibitions(words, stances)
    return stances


def _mark_questions(words: Sequence[Word], stances: list[Stance]) -> None:
    texts = [word.text for word in words]
    first = next((at for at, text in enumerate(texts) if text not in _FILLERS), 0)
    polite = next((at for at, text in enumerate(texts) if _is_polite(texts, at)), None)
    is_asking = texts[first] in _ASKING
    if words[-1].mark == "?":
        end = len(words) if polite is None else polite
        starts_with_verb = bool(actions_of(texts[first])) and not is_asking
        if is_asking or (polite is None and not starts_with_verb):
            stances[:end] = [Stance.QUESTION] * end
    elif texts[first] in _ASKING_ALONE and polite is None:
        stances[:] = [Stance.QUESTION] * len(words)
    for at, text in enumerate(texts):
        is_embedded = text == "whether" or (
            text in _WH and not _LEADS_TO_WH.isdisjoint(texts[max(0, at - 2) : at])
        )
        if is_embedded and stances[at] is Stance.ORDER:
            end = _end_of_scope(words, at + 1, joints=("then", "and"))
            stances[at:end] = [Stance.QUESTION] * (end - at)


def _is_polite(texts: Sequence[str], at: int) -> bool:
    """Whether "can you", "please" or the like starts here."""
    if texts[at] == "please":
        return True
    return texts[at] in _POLITE and texts[at + 1 : at + 2] in (["you"], ["we"], ["u"])


def _mark_prohibitions(words: Sequence[Word], stances: list[Stance]) -> None:
    texts = ["" if word.is_quoted else word.text for word in words]
    for at, text in enumerate(texts):
        if text not in _NEVER or not _LIFTS.isdisjoint(texts[at + 1 : at + 4]):
            continue
        is_t = texts[at + 1 : at + 2] == ["t"]
        if text in _WITH_T and text not in ("dont",) and not is_t:
            continue
        if text in ("instead", "rather") and texts[at + 1 : at + 2] not in (["of"], ["than"]):
            continue
        is_weak = text == "not" and (at == 0 or texts[at - 1] not in _STRONG_BEFORE_NOT)
        end = _end_of_weak(words, at + 1) if is_weak else _end_of_scope(words, at + 1)
        stances[at:end] = [Stance.PROHIBITION] * (end - at)


def _end_of_scope(words: Sequence[Word], start: int, joints: tuple[str, ...] = ("then",)) -> int:
    """Return where a negation or an embedded question ends: at "but", or at a new order."""
    texts = [word.text for word in words]
    lists = not {"or", "nor"}.isdisjoint(texts[start:])
    for at in range(start, len(words)):
        if texts[at] in ("but", "instead", "however"):
            return at
        if words[at - 1].mark == ";":
            return at
        is_joint = words[at - 1].mark == "," or texts[at] in joints
        if at > start and is_joint and not lists and _verb_after(words, at) is not None:
            return at
    return len(words)


def _end_of_weak(words: Sequence[Word], start: int) -> int:
    for at in range(start, len(words)):
        if words[at].text in ("and", "but", "then") or words[at].mark:
            return at if words[at].text in ("and", "but", "then") else at + 1
    return len(words)


# --- clauses ----------------------------------------------------------------------------------


def _clause_starts(words: Sequence[Word], stances: Sequence[Stance]) -> list[int]:
    starts = []
    for at in range(1, len(words)):
        joins = words[at - 1].mark in (",", ";", ":") or words[at].text in _JOINTS
        if stances[at] is not stances[at - 1] or (joins and _verb_after(words, at) is not None):
            starts.append(at)
    return starts


def _verb_after(words: Sequence[Word], at: int) -> int | None:
    """Return the position of a verb at `at`, after words such as "and please"."""
    for position in range(at, min(at + 4, len(words))):
        word = words[position].text
        if actions_of(word):
            return position
        if word not in _FILLERS and word not in _JOINTS:
            return None
    return None


def _actions_in(words: Sequence[Word]) -> frozenset[Action]:
    found: set[Action] = set()
    for at, word in enumerate(words):
        actions = frozenset() if word.is_quoted else actions_of(word.text)
        if at and words[at - 1].text in ("be", "get", "gets", "got"):
            actions |= passive_actions_of(word.text)
        if not actions or (at and words[at - 1].text in _DETERMINERS):
            continue
        if not is_noun(word.text) or _may_be_verb(words, at):
            found |= actions
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
    return before in _FILLERS or before in _JOINTS or before in ("you", "must", "should", "ll")


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
