"""Amounts, dates, access rights and texts that the user stated: other ones need approval. Pure.

    "Pay 120 to ..."                        amount 120; no other one
    "Share it so that she can read it"      permission: read, not write or owner
    "Book it from 3 to 5 June"              arrival and departure on these days
    "Mail 'all good' to Ann"                the text, and no other one

A kind of value without a statement is left to the agent, like the amount of "refund the payment".
Access rights and repetition need a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from callgate.policy.provenance import forms
from callgate.policy.provenance.actions import NEEDS_A_WORD, Action
from callgate.policy.provenance.requests import Dictation, Request, Use
from callgate.policy.provenance.stances import Stance
from callgate.policy.provenance.users_words import UserWords

OTHER_TEXT = "which dictate another text"
_OTHER_VALUE = "which state another value"
_NO_RIGHT = "which do not ask for this access"
_NO_REPEAT = "which do not ask to repeat it"

_AMOUNTS = frozenset({"amount", "price", "total", "sum", "value"})
_COUNTS = frozenset({"rooms", "quantity", "count", "nights", "seats", "tickets", "copies"})
_RIGHTS = frozenset(
    """permission permissions role roles access access_level visibility rights
    privilege""".split()  # noqa: SIM905
)
_REPEATS = frozenset({"every", "recurring", "repeat", "interval", "frequency", "recurrence"})
_STARTS = frozenset(
    """start date day arrival departure check_in check_out start_time start_date start_day end_day
    end_date new_start_time due due_date""".split()  # noqa: SIM905
)
_TITLES = frozenset({"title", "subject", "name", "headline"})
_LEVELS: tuple[frozenset[str], ...] = (
    frozenset("r read reader view viewer see look open access give share".split()),  # noqa: SIM905
    frozenset({"comment", "commenter", "commentator"}),
    frozenset("w rw write writer edit editor modify change contribute update".split()),  # noqa: SIM905
)
_REPEATING = frozenset(
    """every each daily weekly monthly yearly recurring repeat repeatedly standing scheduled
    regularly""".split()  # noqa: SIM905
)
_COMPUTED = frozenset(
    """difference percent share half twice double remainder rest total plus additional fee
    interest""".split()  # noqa: SIM905
)
"""Words with which the user leaves an amount to a calculation."""
_MONTHS = """january february march april may june july august september october november
    december""".split()  # noqa: SIM905
_MONTH = re.compile(r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\Z")
_ISO = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}|\d{1,2} ?[ap]m\b", re.I)
_DAY = re.compile(r"\d{1,2}(?:st|nd|rd|th)?\Z")
_WEEKDAYS = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday tomorrow today".split()  # noqa: SIM905
)
_NUMBERS = re.compile(r"\d+")
_YEAR = 1_900
_MOST_TEXT = 20_000


def objections(
    users: UserWords, arguments: Mapping[str, Any], use: Use, destinations: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield parameter, value and objection of each argument that the user's words contradict."""
    requests = [each for each in users.requests if _is_ordered(each, use.action)]
    for name, value in arguments.items():
        short = _snake(name)
        if isinstance(value, bool | int | float | str) and (
            objection := _of_option(requests, users, short, value, use)
        ):
            yield name, str(value), objection
    yield from _of_texts(users, arguments, use, tuple(destinations))


def _of_option(
    requests: list[Request], users: UserWords, name: str, value: float | str, use: Use
) -> str:
    if name in _REPEATS:
        return _of_repetition(users, value)
    if name in _RIGHTS:
        return _of_right(users, str(value))
    if isinstance(value, bool):
        return ""
    if use.action is Action.PAY and (name in _AMOUNTS or name in _COUNTS):
        return _of_number(requests, name, value)
    if name in _STARTS and isinstance(value, str):
        return _of_date(requests, value)
    return ""


def _of_number(requests: list[Request], name: str, value: float | str) -> str:
    wanted = forms.number(forms.fold(str(value)).replace(",", ""))
    if name in _COUNTS:
        user_words = {word.text for each in requests for word in each.words}
        return "" if wanted in ("0", "1") or wanted in user_words else _OTHER_VALUE
    stated: set[str] = set()
    for request in requests:
        for number, clause in enumerate(request.clauses):
            if clause.stance is not Stance.ORDER or Action.PAY not in clause.actions:
                continue
            words = request.words_of_clause(number)
            texts = {word.text for word in words}
            if not texts.isdisjoint(_COMPUTED) or any("%" in word.raw for word in words):
                return ""
            free = (word.text for word in words if not word.is_quoted)
            stated |= {text.lstrip("$€£") for text in free if _is_amount(text)}
    return _OTHER_VALUE if stated and wanted not in stated else ""


def _is_amount(text: str) -> bool:
    plain = text.lstrip("$€£")
    return len(plain) < 8 and plain.replace(".", "", 1).isdecimal()


def _of_right(users: UserWords, value: str) -> str:
    wanted = forms.fold(value).strip()
    user_words = {word.text for request in users.requests for word in request.words}
    level = next((at for at, words in enumerate(_LEVELS) if wanted in words), len(_LEVELS))
    if level == 0 or wanted in user_words:
        return ""
    if level < len(_LEVELS) and any(not user_words.isdisjoint(words) for words in _LEVELS[level:]):
        return ""
    return _NO_RIGHT


def _of_repetition(users: UserWords, value: float | str) -> str:
    if value in (False, "", 0, "none", "never", "no", "once", "false"):
        return ""
    user_words = {word.text for request in users.requests for word in request.words}
    return "" if not user_words.isdisjoint(_REPEATING) else _NO_REPEAT


def _of_date(requests: list[Request], value: str) -> str:
    """Compare the numbers of a date with the dates in the orders."""
    stated, has_clock = set[int](), False
    for request in requests:
        dates = _dates_in(request)
        stated |= dates
        has_clock = (
            has_clock or bool(dates and _CLOCK.search(request.text)) or "at" in request.texts
        )
    if not stated:
        return ""
    wanted = value if has_clock else _CLOCK.sub("", value)
    numbers = {int(each) for each in _NUMBERS.findall(wanted)[:12] if len(each) <= 4}
    month = next((n for n, each in enumerate(_MONTHS, 1) if each in forms.fold(value)), 0)
    missing = {each for each in numbers - {0, month} if each < _YEAR} - stated
    afternoon = {each - 12 for each in missing}
    return _OTHER_VALUE if missing and not afternoon <= stated else ""


def _dates_in(request: Request) -> set[int]:
    """Return the numbers of days, months and hours in a text; none if it has no date."""
    texts = request.texts
    days = [
        at
        for at, word in enumerate(texts)
        if _MONTH.match(word) and any(_DAY.match(each) for each in _around(texts, at))
    ]
    has_clock = _CLOCK.search(request.text) is not None
    is_weekday = any(word in _WEEKDAYS for word in texts)
    if not (days or has_clock or is_weekday or _ISO.search(request.text)):
        return set()
    numbers = {int(each) for each in _NUMBERS.findall(request.text) if len(each) <= 4}
    return numbers | {_month(texts[at]) for at in days} if numbers else set()


def _around(texts: list[str], at: int) -> list[str]:
    return [*texts[max(0, at - 2) : at], *texts[at + 1 : at + 2]]


def _month(word: str) -> int:
    return next((n for n, each in enumerate(_MONTHS, 1) if each.startswith(word[:3])), 0)


# --- texts ------------------------------------------------------------------------------------


def _of_texts(
    users: UserWords, arguments: Mapping[str, Any], use: Use, destinations: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    kinds = users.dictations(destinations, use)
    if not kinds:
        return
    user_words = {word.text for request in users.requests for word in request.words}
    for name, value in arguments.items():
        kind = Dictation.TITLE if _snake(name) in _TITLES else Dictation.TEXT
        if kind not in kinds or not is_text_name(name):
            continue
        for text in _strings(value):
            if text not in destinations and not _is_covered(text, user_words):
                yield name, text, OTHER_TEXT


def _is_covered(text: str, user_words: set[str]) -> bool:
    """Whether the user wrote all words of a text that mean anything."""
    words = forms.tokens(forms.fold(text[:_MOST_TEXT]))
    return all(
        word in user_words or not (forms.is_evidence([word]) or _has_digit(word)) for word in words
    )


def _has_digit(word: str) -> bool:
    return any(map(str.isdecimal, word))


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    for _ in range(256):
        if not stack:
            return
        match stack.pop():
            case str() as text:
                yield text
            case Mapping() as entries:
                stack += [*entries.values(), *map(str, entries)]
            case list() | tuple() as items:
                stack += items
            case int() | float() as number:
                yield str(number)


@lru_cache(maxsize=4096)
def is_text_name(name: str) -> bool:
    """Whether a parameter takes a text for readers."""
    return _snake(name) in _TEXTS or _snake(name) in _TITLES


_TEXTS = frozenset(
    """body text content contents message description comment comments note notes summary caption
    html markdown data payload fields input""".split()  # noqa: SIM905
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")


def _is_ordered(request: Request, action: Action | None) -> bool:
    if action in NEEDS_A_WORD:
        return request.orders(action)
    return any(
        clause.stance is Stance.ORDER and clause.actions != {Action.READ}
        for clause in request.clauses
    )
