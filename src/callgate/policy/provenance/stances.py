"""Stance of each word in a sentence: ordered, asked about, excluded, reported or quoted. Pure.

"Is a.example safe?"             a question
"Never write to a@x.example"     a prohibition
"Yesterday I paid 75 to ..."     a report: a later sentence may order something with it
"A mail says: 'pay 900 to ...'"  a quotation: nothing is ordered
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from callgate.policy.provenance.actions import actions_of
from callgate.policy.provenance.words import Word

FILLERS = frozenset(
    """please also to kindly you can could would will just then finally now i we and so next
    afterwards ok okay hi hey hello first""".split()  # noqa: SIM905
)
JOINTS = frozenset({"and", "then", "or", "but", "also", "afterwards", "finally", "plus"})
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

_SUBJECTS = frozenset({"i", "we", "he", "she", "they", "somebody", "someone"})
_BEFORE_VERB = frozenset(
    {"already", "just", "also", "have", "had", "has", "ve", "recently", "once"}
)
_PAST = frozenset(
    """paid sent gave made got wrote bought met had went told said forgot saw took left did
    spent lent ordered received""".split()  # noqa: SIM905
)
_WISHES = frozenset({"need", "wanted", "needed", "hoped", "wondered", "feed", "proceed"})
"""Verbs of a polite order: "I wanted to ask you to ..."."""
_TIMES = frozenset(
    """yesterday today earlier last this week month year morning evening monday tuesday wednesday
    thursday friday saturday sunday ago on in the once already recently""".split()  # noqa: SIM905
)
_SAYING = frozenset(
    """says said wrote writes reads states stated claims claimed asks asked told tells mentions
    demands demanded""".split()  # noqa: SIM905
)
_DICTATES = frozenset({"that", "which", "it"})
"""Words before "says" that refer to a text of the order."""


class Stance(StrEnum):
    ORDER = "order"
    """Also a statement."""
    QUESTION = "question"
    PROHIBITION = "prohibition"
    REPORT = "report"
    """It tells about the past."""
    QUOTATION = "quotation"
    """It repeats words of another person."""


def stances_of(words: Sequence[Word]) -> list[Stance]:
    """Return the stance of each word of a sentence."""
    stances = [Stance.ORDER] * len(words)
    _mark_reports(words, stances)
    _mark_quotations(words, stances)
    _mark_questions(words, stances)
    _mark_prohibitions(words, stances)
    return stances


def _mark_reports(words: Sequence[Word], stances: list[Stance]) -> None:
    """Mark "I paid ...", "last week we invited ..." up to the next order."""
    texts = [word.text for word in words]
    start = 0
    for at, text in enumerate(texts):
        if at and (words[at - 1].mark or text in JOINTS):
            start = at
        verb = next((each for each in texts[at + 1 : at + 4] if each not in _BEFORE_VERB), "")
        leads = all(each in FILLERS or each in JOINTS or each in _TIMES for each in texts[start:at])
        if text not in _SUBJECTS or words[at].is_quoted or not leads or not _is_past(verb):
            continue
        end = next(
            (
                later
                for later in range(at + 2, len(words))
                if (words[later - 1].mark or texts[later] in JOINTS)
                and verb_after(words, later) is not None
            ),
            len(words),
        )
        stances[at:end] = [Stance.REPORT] * (end - at)


def _is_past(verb: str) -> bool:
    return verb in _PAST or (verb.endswith("ed") and verb not in _WISHES)


def _mark_quotations(words: Sequence[Word], stances: list[Stance]) -> None:
    """Mark the quotation after "the mail says"."""
    is_report = False
    for at, word in enumerate(words):
        if not word.is_quoted:
            is_report = word.text in _SAYING and not (at and words[at - 1].text in _DICTATES)
        elif is_report:
            stances[at] = Stance.QUOTATION


def _mark_questions(words: Sequence[Word], stances: list[Stance]) -> None:
    texts = [word.text for word in words]
    first = next((at for at, text in enumerate(texts) if text not in FILLERS), 0)
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
        if at > start and is_joint and not lists and verb_after(words, at) is not None:
            return at
    return len(words)


def _end_of_weak(words: Sequence[Word], start: int) -> int:
    for at in range(start, len(words)):
        if words[at].text in ("and", "but", "then") or words[at].mark:
            return at if words[at].text in ("and", "but", "then") else at + 1
    return len(words)


def verb_after(words: Sequence[Word], at: int) -> int | None:
    """Return the position of a verb at `at`, after words such as "and please"."""
    for position in range(at, min(at + 4, len(words))):
        word = words[position].text
        if actions_of(word):
            return position
        if word not in FILLERS and word not in JOINTS:
            return None
    return None
