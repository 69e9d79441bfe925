"""Names and their values in text: `PASSWORD=x`, `"apiKey": "x"`, `auth.token: x`, `?sig=x`.

The text may be in any language, quoted and escaped any number of times: JSON in JSON, a shell
command in JSON, a query string, YAML, a log. Nothing is parsed: a name that `names` recognizes is
followed by a separator and a value. The value ends at a quote that is escaped as often as the
quote that opened it (`"`, `\\"`, `%22`, `&quot;`). Every step is bounded, so the time is linear.
"""

from __future__ import annotations

import re
from functools import lru_cache

from callgate.redaction.names import MASK, Weight, looks_random, stands_in, weigh
from callgate.redaction.shapes import MOST, Spans

QUOTE = r"""(?:\\{0,15}["'`]|%2[27]|&quot;|&\#3[49];|&apos;|\\{1,7}u002[27]|\\{1,7}x2[27])"""
"""A pattern for the opening quote, in lower case."""
THREE = '"""', "'''"

_SAME = {quote: re.compile(rf"(?<!\\)\\*{quote}|[\r\n]") for quote in "\"'`"}


def closing(text: str, start: int, quote: str) -> int:
    """Return the end of a quotation that began before `start`, at most the end of the line."""
    if quote in THREE or quote[-1] not in _SAME:
        found = _spelled_out(quote).search(text, start)
        return found.start() if found is not None else len(text)
    depth = len(quote) - 1
    for found in _SAME[quote[-1]].finditer(text, start):
        escapes = len(found.group()) - 1
        # Escaped less than the opening one, it ends even more than this quotation.
        if escapes <= depth or (escapes - depth) % (2 * (depth + 1)) == 0:
            return found.start()
    return len(text)


@lru_cache(maxsize=64)
def _spelled_out(quote: str) -> re.Pattern[str]:
    end = "" if quote in THREE else r"|[\r\n]"
    return re.compile(re.escape(quote) + end, re.IGNORECASE)


STEM = (
    "(?:pass|pw|psk|secret|token|key|auth|cred|cookie|otp|sig|sess|jwt|bearer|hmac"
    "|pin|cvv|cvc|code|kennwort|contrase|senha|clave|mdp)"
)
"""Every name that `weigh` gives weight contains one of these, in lower case."""
NAME = rf"(?P<name>{STEM}[\w.-]{{0,40}})"
_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

_ANNOTATION = (
    r":[ \t]*(?:str|string|bytes|secretstr|&str|opt(?:ion|ional)[\[<]\w{1,16}[\]>])"
    r"(?:[ \t]*\|[ \t]*none)?[ \t]*=(?!=)"
)
_ASSIGNED = re.compile(
    rf"{NAME}(?P<quote>{QUOTE})?[\])]?[ \t]*"
    rf"(?P<separator>{_ANNOTATION}|=>|[:?+]?=(?![=~>])|:(?![:/=])|[：＝]|%3[ad]"
    r"|\\{1,7}u003[ad]|&\#(?:58|61);)"
)
_OPENING = re.compile(
    rf"""\s{{0,40}}(?:(?:secretstr|secretbytes|string|bytes|str)\()?(?:rb|br|[bruf@$])?
    (?P<quote>\"\"\"|'''|{QUOTE})
    |[ \t]*(?P<open>[\[{{]|[|>][+-]?[0-9]?[ \t]*\r?\n)?""",
    re.VERBOSE,
)
_SCHEME = re.compile(
    r"(?:bearer|basic|token|apikey|api-key|key|jwt|bot|ssws|splunk|geniekey|negotiate|ntlm)[ \t]+"
    r"|(?P<many>digest|hawk|oauth|signature|aws4-[\w-]{4,20})[ \t]+",
    re.IGNORECASE,
)
"""Text before the secret in an authorization: one word, or a list of pairs."""

# Values that nothing encloses.
_PLAIN = r"""[^\s"'`<>&;,)}\]|\\]"""


def _run(plain: str, rare: str, flags: int = 0) -> re.Pattern[str]:
    """One or more of two kinds, in the one order that leaves nothing to try again."""
    return re.compile(f"{plain}+(?:{rare}{plain}*)*|(?:{rare}{plain}*)+", flags)


_BARE = _run(_PLAIN, r"""\\(?![nrtu"'\\])""")
_ENCODED = _run(r"""[^\s"'`&%]""", "%(?!2[267c]|0[ad]|7d|3b)", re.IGNORECASE)
_WORD = re.compile(r"""[^\s"'`]+""")
_LINE = re.compile(r"[^\r\n]*")
_BLANK = re.compile(r"[ \t]*(?:![\w!]{1,16}[ \t]+)?")  # and a YAML tag
_PROSE = re.compile(r"[a-z]{1,32},?[ \t]{1,4}[A-Za-z']{1,32}(?![\w.-]{0,32}[ \t]?[:=])")
_COMPLAINTS = ("unexpected ", "expected ", "invalid ", "illegal ", "unknown ", "missing ", "bad ")
_LINE_HEAD = re.compile(r"[ \t>+|-]*(?:(?i:export|set|declare -x|env|arg)[ \t]+|\$env:)?")

# Values that contain several secrets: lists, objects, indented blocks.
_FLAT = re.compile(r"[^\[\]{}]{0,4096}")
_ITEM = re.compile(rf"{QUOTE}?([^\s\"'`,\\]+)")
_PAIR = re.compile(rf"[:=][ \t]*{QUOTE}?([^\s\"'`,\\]+)")
_INDENTED = re.compile(r"(?:[ \t]+[^\r\n]*(?:\r?\n|\Z))+")
_LONGEST_BLOCK = 8_192
_JUDGED = 128
"""Maximum examined length of a value; all of it is masked."""


def find_assignments(text: str, low: str, spans: Spans) -> None:
    """`low` is `text` in lower case, with the same length."""
    _Search(text, low, spans).run()


def whole_name(text: str, match: re.Match[str]) -> tuple[str, int]:
    """Return the name around a stem, and its position."""
    stem, end = match.span("name")
    before = text[max(0, stem - 64) : stem]
    start = stem - len(before) + len(before.rstrip(_NAME_CHARACTERS))
    return text[start:end].strip(".-"), start


def is_secret(value: str, weight: Weight, *, quoted: bool) -> bool:
    value = value[:_JUDGED]
    if scheme := _SCHEME.match(value):
        value = value[scheme.end() :]
    if weight is Weight.HINT and not looks_random(value):
        return False
    return not stands_in(value, quoted=quoted)


def take_quoted(text: str, start: int, quote: str, weight: Weight, spans: Spans) -> int:
    """Mask a quotation if it is a secret; return the position to continue from."""
    stop = closing(text, start, quote)
    if is_secret(text[start : min(stop, start + _JUDGED)], weight, quoted=True):
        spans.append((start, stop))
        return stop
    return start


def take(
    text: str, span: tuple[int, int], weight: Weight, spans: Spans, *, quoted: bool = True
) -> None:
    """Mask the text at a position if it is a secret."""
    if weight and is_secret(text[slice(*span)].strip(), weight, quoted=quoted):
        spans.append(span)


class _Search:
    """One pass over one text. Each `_take` returns the position to continue from."""

    __slots__ = ("low", "nested_until", "spans", "text")

    def __init__(self, text: str, low: str, spans: Spans) -> None:
        self.text = text
        self.low = low
        self.spans = spans
        self.nested_until = 0

    def run(self) -> None:
        text, low = self.text, self.low
        position = seen = 0
        while (match := _ASSIGNED.search(low, position)) is not None:
            seen += 1
            if seen > MOST:
                self.spans.append((match.start(), len(text)))
                return
            name, start = whole_name(text, match)
            weight = weigh(name)
            position = self._take(match, name, start, weight) if weight else match.end()

    def _take(self, match: re.Match[str], name: str, start: int, weight: Weight) -> int:
        opening = _OPENING.match(self.low, match.end())
        assert opening is not None
        quote, opened = opening.group("quote", "open")
        if quote is not None and (match.group("quote") or "\n" not in opening.group()):
            return take_quoted(self.text, opening.end(), quote, weight, self.spans)
        if opened is None:
            return self._take_bare(match, name, start, weight)
        if opened == "[":
            return self._take_list(opening.end(), weight)
        if opened == "{":
            return self._take_pairs(_FLAT, opening.end())
        return self._take_block(opening.end(), weight)

    def _take_list(self, start: int, weight: Weight) -> int:
        text = self.text
        if text.startswith(MASK, start - 1):
            return start + len(MASK) - 1
        flat = _FLAT.match(text, start)
        assert flat is not None
        for item in _ITEM.finditer(text, start, flat.end()):
            if is_secret(item.group(1), weight, quoted=item.start() != item.start(1)):
                self.spans.append(item.span(1))
        return start

    def _take_pairs(self, extent: re.Pattern[str], start: int) -> int:
        """Mask the values of pairs below a telling name that look like secrets."""
        region = extent.match(self.text, start, start + _LONGEST_BLOCK)
        if region is not None and region.end() > self.nested_until:
            self.nested_until = region.end()
            for pair in _PAIR.finditer(self.text, start, region.end()):
                if is_secret(pair.group(1), Weight.HINT, quoted=True):
                    self.spans.append(pair.span(1))
        return start

    def _take_block(self, start: int, weight: Weight) -> int:
        """Mask the indented lines below a YAML `name: >-` if they are a secret."""
        block = _INDENTED.match(self.text, start, start + _LONGEST_BLOCK)
        if block is None:
            return start
        value = block.group()
        first = start + len(value) - len(value.lstrip())
        last = start + len(value.rstrip())
        if not is_secret(self.text[first:last], weight, quoted=True):
            return start
        self.spans.append((first, last))
        return last

    def _take_bare(self, match: re.Match[str], name: str, start: int, weight: Weight) -> int:
        text = self.text
        blank = _BLANK.match(text, match.end())
        assert blank is not None
        value_start = blank.end()
        if "auth" in name.lower() and (scheme := _SCHEME.match(text, value_start)):
            weight = Weight.SECRET
            value_start = scheme.end()
            if scheme.group("many"):
                return self._take_rest(_LINE, value_start)
        value = _BARE.match(text, value_start, value_start + _JUDGED)
        if value is None:
            if text[value_start : value_start + 1] in "\r\n":
                self._take_pairs(_INDENTED, value_start + 1)
            return match.end()
        if ":" in match.group("separator") and self._is_prose(start, value_start):
            return match.end()
        if not is_secret(value.group(), weight, quoted=False):
            return match.end()
        return self._take_rest(self._extent(match.group("separator"), name, start), value_start)

    def _take_rest(self, extent: re.Pattern[str], start: int) -> int:
        value = extent.match(self.text, start)
        if value is None or not value.group().strip() or value.group().startswith(MASK):
            return start
        self.spans.append(value.span())
        return value.end()

    def _is_prose(self, start: int, value_start: int) -> bool:
        if self.text.startswith("://", max(0, start - 3)):
            return True  # a user in a URL
        before = self.low[max(0, start - 12) : start]
        return before.endswith(_COMPLAINTS) or bool(_PROSE.match(self.text, value_start))

    def _extent(self, separator: str, name: str, start: int) -> re.Pattern[str]:
        """Return a pattern for the extent of an unquoted value, by the kind of line."""
        if separator[0] in "%\\&":
            return _ENCODED
        if "phrase" in name.lower():
            return _LINE
        if separator == ":" or (separator == "=" and name.isupper()):
            line = self.text.rfind("\n", max(0, start - 80), start) + 1
            if (line or start < 80) and _LINE_HEAD.fullmatch(self.text, line, start):
                return _WORD  # alone on its line: it may contain what ends others
        return _BARE
