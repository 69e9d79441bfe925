"""Actions that a sentence asks for and that a tool performs: pay, destroy, share, send. Pure.

    "Delete old.txt"  -> {destroy}        tool `delete_file`      -> destroy
    "Send 50 to Ann"  -> {send, pay}      tool `send_money`       -> pay

English words only. A sentence whose verbs are unknown asks for no action that needs a word for it
(`NEEDS_A_WORD`), so such a call needs approval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any


class Action(StrEnum):
    READ = "read"
    SEND = "send"
    MAKE = "make"
    CHANGE = "change"
    SHARE = "share"
    PAY = "pay"
    DESTROY = "destroy"
    RUN = "run"

    @property
    def wanted(self) -> str:
        """The action as the end of "your words do not ask to ..."."""
        return _WANTED[self]


_WANTED = {
    Action.READ: "read it",
    Action.SEND: "send anything there",
    Action.MAKE: "create anything there",
    Action.CHANGE: "change it",
    Action.SHARE: "give access",
    Action.PAY: "pay",
    Action.DESTROY: "delete or cancel it",
    Action.RUN: "run it",
}
NEEDS_A_WORD = frozenset({Action.CHANGE, Action.SHARE, Action.PAY, Action.DESTROY})
"""Actions that a sentence must name; naming the object alone does not endorse them."""

_VERBS: dict[Action, str] = {
    Action.READ: """read summarize summarise find search list show check look get fetch open view
        explain describe review analyse analyze browse visit count see tell know retrieve compare
        extract translate understand identify determine inspect examine verify learn quote recall
        remember calculate sum download print""",
    Action.SEND: """send mail email e-mail message write reply respond answer forward tell inform
        notify ask invite post share contact remind ping text cc bcc let announce publish submit
        report thank congratulate upload introduce recommend draft dm call push deliver return
        sign log""",
    Action.MAKE: """create make schedule book reserve add plan arrange organize organise register
        generate save store set open start file build""",
    Action.CHANGE: """change update edit modify set rename reschedule move replace correct adjust
        extend postpone shift increase decrease raise reduce lower switch convert append add write
        fill fix mark assign reassign label put insert merge close reopen archive complete star
        pin restore resolve configure turn enable disable""",
    Action.SHARE: """share grant invite add give allow permit authorize authorise publish include
        let make open join collaborate transfer""",
    Action.PAY: """pay transfer wire buy purchase order refund donate reimburse settle invest
        withdraw deposit subscribe tip book reserve renew checkout repay""",
    Action.DESTROY: """delete remove cancel erase drop purge wipe clear discard trash destroy revoke
        uninstall unsubscribe terminate kick ban empty prune reset clean close archive leave block
        decline""",
    Action.RUN: """run execute rerun try use start call launch invoke type perform test build
        install deploy do apply compile""",
}
_NOUNS = frozenset(
    """mail mails email emails e-mail e-mails message messages post posts report reports answer
    answers reply replies text texts order orders transfer transfers share shares list lists book
    books update updates change changes review reviews file files test tests build builds label
    labels mark set sets call calls plan plans log logs store check checks deposit deposits refund
    refunds charge tip drop draft drafts order open close clear start count look show use run runs
    find search block star pin empty complete sign fix fixes join invite invites schedule schedules
    purchase purchases raise ban return reset contact contacts edit edits document documents
    place turn quote push pull request requests release releases add-on""".split()  # noqa: SIM905
)
"""Words that are also nouns, or adjectives: they ask for an action only in the place of a verb."""
_MONEY = frozenset(
    """money usd eur gbp chf euro euros dollar dollars pound pounds payment payments rent amount
    donation tip bill fee invoice difference
    remainder balance cost price total owe owes spent""".split()  # noqa: SIM905
)


def _participles(verb: str) -> tuple[str, str]:
    """Return the forms in -ing and -ed of a regular verb."""
    if verb.endswith("y") and verb[-2:-1] not in "aeou":
        return f"{verb}ing", f"{verb[:-1]}ied"
    stem = verb[:-1] if verb.endswith("e") else verb
    if len(verb) <= 8 and re.fullmatch(r"[a-z]*[^aeiou][aeiou][bdgklmnprt]", verb):
        stem += verb[-1] if not verb.endswith(_UNDOUBLED) else ""
    return f"{stem}ing", f"{stem}ed"


_UNDOUBLED = ("en", "er", "it", "on", "or", "in", "et", "el", "al", "ew", "ow", "ad", "od")


def _words() -> tuple[dict[str, frozenset[Action]], dict[str, frozenset[Action]]]:
    orders: dict[str, set[Action]] = {}
    passive: dict[str, set[Action]] = {"sent": {Action.SEND}, "paid": {Action.PAY}}
    for action, verbs in _VERBS.items():
        for verb in verbs.split():
            doing, done = _participles(verb)
            orders.setdefault(verb, set()).add(action)
            orders.setdefault(doing, set()).add(action)
            passive.setdefault(done, set()).add(action)
    return (
        {word: frozenset(actions) for word, actions in orders.items()},
        {word: frozenset(actions) for word, actions in passive.items()},
    )


_ACTIONS, _PASSIVE = _words()
_NONE: frozenset[Action] = frozenset()


def actions_of(word: str) -> frozenset[Action]:
    """Return the actions that a folded word can ask for: "delete", "deleting"."""
    return _ACTIONS.get(word, _NONE)


def passive_actions_of(word: str) -> frozenset[Action]:
    """Return the actions of a participle, which asks for one only after "be": "be deleted"."""
    return _PASSIVE.get(word, _NONE)


def is_noun(word: str) -> bool:
    """Whether a word that can ask for an action may also be a noun."""
    return word in _NOUNS


def is_money(word: str) -> bool:
    """Whether a word next to "send" or "make" means a payment."""
    return word in _MONEY


# --- the action of a call ---------------------------------------------------------------------

_TOOL_WORDS: tuple[tuple[Action, frozenset[str]], ...] = (
    (
        Action.DESTROY,
        frozenset(
            """delete remove cancel erase drop purge wipe clear trash destroy revoke terminate kick
            ban reset unsubscribe uninstall truncate""".split()  # noqa: SIM905
        ),
    ),
    (
        Action.PAY,
        frozenset(
            """pay payment money transfer transaction buy purchase checkout refund donate wire
            book reserve booking reservation""".split()  # noqa: SIM905
        ),
    ),
    (
        Action.SHARE,
        frozenset("share grant invite permission permissions collaborator access".split()),  # noqa: SIM905
    ),
    (
        Action.CHANGE,
        frozenset(
            """update change edit set modify rename reschedule move append replace patch assign
            merge close archive""".split()  # noqa: SIM905
        ),
    ),
    (
        Action.SEND,
        frozenset("send post reply forward mail email message notify publish tweet".split()),  # noqa: SIM905
    ),
    (Action.MAKE, frozenset("create add make book reserve schedule upload".split())),  # noqa: SIM905
)
_ADMITTING = frozenset({"add", "create", "make", "register", "new"})
_MEMBERS = frozenset({"user", "users", "member", "members", "participant", "participants", "guest"})
_CARRIED = frozenset({"body", "headers", "data", "json", "params", "query", "cookies", "form"})
"""Parameters of a request that carry data with any method."""
_METHODS = {
    "get": Action.READ,
    "head": Action.READ,
    "delete": Action.DESTROY,
    "put": Action.CHANGE,
    "patch": Action.CHANGE,
}


def action_of_call(
    tool: str, arguments: Mapping[str, Any], *, reads: bool, destroys: bool
) -> Action | None:
    """Return the action of a call; None if the name of its tool does not show one.

    `reads`: the tool only reads. `destroys`: the definition declares it; the name may not.
    """
    if reads:
        return Action.READ
    method = arguments.get("method")
    if isinstance(method, str) and (by_method := _METHODS.get(method.lower())) is not None:
        carries = by_method is Action.READ and any(
            name.lower() in _CARRIED and value for name, value in arguments.items()
        )
        return Action.SEND if carries else by_method
    return Action.DESTROY if destroys else _by_name(tool)


@lru_cache(maxsize=4096)
def _by_name(tool: str) -> Action | None:
    name = re.split(r"/|__|\.", tool)[-1]
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = frozenset(spaced.lower().replace("-", "_").split("_"))
    if words & _ADMITTING and words & _MEMBERS:
        return Action.SHARE
    return next((action for action, named in _TOOL_WORDS if words & named), None)


@lru_cache(maxsize=4096)
def is_additive(tool: str) -> bool:
    """Whether a change of this kind leaves the former content in place."""
    return tool.lower().partition("_")[0] in _ADDITIVE


_ADDITIVE = frozenset({"append", "reschedule", "move", "rename", "label", "mark", "assign"})


@lru_cache(maxsize=4096)
def is_publication(tool: str) -> bool:
    """Whether anybody may read the content that a tool sends out."""
    return not _PUBLIC.isdisjoint(re.split(r"[^a-z]+", tool.lower()))


_PUBLIC = frozenset({"publish", "tweet", "broadcast", "gist", "pastebin", "blog"})
