"""Whether a value is a secret by its looks, or only stands where one would be.

`looks_random` says that a text is random as keys and tokens are; `stands_in` that a text
is a placeholder, a variable, a type or a word of prose, so that masking it would hide nothing.
"""

from __future__ import annotations

import re

MASK = "[REDACTED]"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLE = 512
_SEPARATORS = b"_-+/=.~%:"
_CLASSES = bytes(
    ord("0")
    if 48 <= code <= 57
    else ord("A")
    if 65 <= code <= 90
    else ord("a")
    if 97 <= code <= 122
    else ord(".")
    for code in range(256)
)
_CHANGES = (b"aA", b"Aa", b"a0", b"0a", b"A0", b"0A")
_HUMPS = re.compile(r"(?:[a-z]{2,}(?![a-z])|[A-Z]{2,}(?![A-Z])|[A-Z](?=[a-z])|[-_.])+")
"""Each run is read in one way only: in several ways, a long one would take for ever."""
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_NO_SECRET = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # UUID
    r"|\d{4}-\d\d-\d\d.*"  # date
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # address
    r"|\w+://.*|(?:~|\.{1,2})/.*|[A-Za-z]:\\.*",  # place
    re.DOTALL,
)


def looks_random(text: str) -> bool:
    """Random enough to be a key: many short runs of unlike characters, as in `x9Qe2kT0vB7m`."""
    if len(text) < 12 or " " in text:
        return False
    sample = text[:_SAMPLE]
    classes = sample.encode("utf-8", "replace").translate(_CLASSES, _SEPARATORS)
    mixed = sum(map(classes.count, _CHANGES))
    letters = len(classes) - classes.count(b".")
    if letters < 12 or letters < 0.7 * len(sample) or mixed < 0.2 * letters:
        return False
    if b"0" not in classes:
        return letters >= 16 and mixed >= 0.35 * letters and not _HUMPS.fullmatch(sample)
    if sample[0] == "/" and mixed < 0.4 * letters:
        return False
    return not _NO_SECRET.fullmatch(sample) and MASK not in sample


def is_dense(text: str) -> bool:
    """Stricter, for a text that nothing else makes suspect: all three classes, well mixed."""
    sample = text[:_SAMPLE]
    classes = sample.encode("utf-8", "replace").translate(_CLASSES, _SEPARATORS)
    digits, upper, lower = map(classes.count, (b"0", b"A", b"a"))
    letters = digits + upper + lower
    if letters < 24 or letters < 0.85 * len(sample) or not digits or upper < 3 or lower < 3:
        return False
    mixed = sum(map(classes.count, _CHANGES))
    if mixed < 0.34 * letters or _HEX.fullmatch(sample):
        return False
    words = classes.count(b"Aa") + classes.count(b"0a") + classes.startswith(b"a")
    return mixed >= 0.52 * letters or lower < 2.7 * words  # CamelCase has words in it


_WORDS = words(
    "none null nil true false yes no on off undefined unset empty missing invalid expired valid ok"
    " required optional string str text bytes int integer number bool boolean object array any"
    " type secretstr changed hidden masked redacted removed omitted filtered present set not is"
    " was are must should has have may can cannot could will for the a an from in and or of to"
    " with your this that it its at by be been incorrect wrong failed denied provided needed"
    " accepted updated reset successfully too only field value policy here see unknown default"
    " inherit include omit same-origin self password secret token key name header query path"
    " cookie body basic bearer digest enabled disabled auto manual always never n/a na tbd todo"
    " example placeholder changeme change_me change-me await async new function return import"
    " lambda x xx n y foo bar baz"
)
"""What people and programs write where a secret would stand."""
_HOLES = ("${", "$(", "#{", "{", "<", MASK)
"""How templates, shells and people begin what is to be filled in."""
_HOLE = re.compile(
    r"\$\w+|\$env:\w+|%\w+%|@\w+@|\[[A-Za-z_ -]*\]?"  # variables, [optional]
    r"|[*•.·…_#-]+|[xX]{3,}|[*•]{3,}.{0,8}"  # already masked
    r"|\d{1,3}|-?\d+\.\d+"
)
_ADVICE = re.compile(
    r"(?:your|insert|enter|replace|change|example|placeholder|dummy|redacted|masked|hidden)"
    r"[a-z_ .-]*",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"[0-9]")
_NAMES_A_SECRET = re.compile("pass|secret|token|key|pwd|auth|cred", re.IGNORECASE)
_REFERENCE = re.compile(r"[&*]?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:!|\Z|[\[(].*)", re.DOTALL)
"""A member, a call or an index, as code writes it."""


def stands_in(value: str, *, quoted: bool) -> bool:
    """Whether a value names, hides or replaces a secret instead of being one."""
    if not value or value.isspace() or value.startswith(_HOLES) or value.lower() in _WORDS:
        return True
    if _HOLE.fullmatch(value) or _ADVICE.fullmatch(value):
        return True
    head = value.partition("(")[0]
    if _DIGIT.search(head):
        return False
    if head.isidentifier() and _NAMES_A_SECRET.search(head):
        return not quoted or value.isupper()
    return not quoted and not value.isidentifier() and _REFERENCE.fullmatch(value) is not None
