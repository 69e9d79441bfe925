"""Secrets that give themselves away by their shape, wherever they stand.

Beside the tokens of vendors these are key blocks, passwords in URLs, addresses of webhooks,
and long texts in which all classes of characters are well mixed: made by a machine, and
seldom to be read by people.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from callgate.redaction.names import identifies
from callgate.redaction.values import MASK, is_dense, looks_random, stands_in
from callgate.redaction.vendors import TOKENS

MOST = 8_000
"""Candidates of one kind that are looked at; nobody writes more, so beyond all is masked."""
Spans = list[tuple[int, int]]
"""What to mask: from (included), to (excluded)."""


def each_match(pattern: re.Pattern[str], text: str, spans: Spans) -> Iterator[re.Match[str]]:
    """The matches of a pattern, as many as anybody writes; beyond, all is masked."""
    for number, match in enumerate(pattern.finditer(text)):
        if number == MOST:
            spans.append((match.start(), len(text)))
            return
        yield match


_AN = "[A-Za-z0-9]"
_W = "[A-Za-z0-9_-]"
_HEX = "[0-9a-fA-F]"


def find_tokens(text: str, spans: Spans) -> None:
    runs = [run.span() for run in _RUN.finditer(text)]
    if len(runs) > 1_000:
        runs = [(0, len(text))]
    for start, stop in runs:
        spans.extend(match.span() for match in TOKENS.finditer(text, start, stop))
    if "eyJ" in text:
        for match in _JWT.finditer(text):
            beginning = match.group().find("eyJ")
            if beginning >= 0:
                spans.append((match.start() + beginning, match.end()))
    for mark, form in _MARKED:
        if mark in text:
            spans.extend(match.span() for match in form.finditer(text))


_RUN = re.compile(r"[A-Za-z0-9_.$/=+~-]{16,}")
"""No token is shorter, and few texts have such runs."""
# Three or five parts of base64, of which the first begins with `{"`. It is looked for from the
# beginning of a word, because what precedes it may be glued to it (`\\neyJ`, `%20eyJ`).
_JWT = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{11,}\.[A-Za-z0-9_=-]{8,}(?:\.[A-Za-z0-9_=-]*){0,3}"
)
# No prefix to go by, but a mark inside that little else has.
_MARKED = [
    ("Q~", re.compile(r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{30,36}")),  # Azure
    (".atlasv1.", re.compile(rf"{_AN}{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{30,}}")),  # Terraform
    (":AA", re.compile(rf"(?<![0-9A-Za-z])[0-9]{{6,12}}:AA{_W}{{30,}}")),  # Telegram
    ("-us", re.compile(rf"(?<!{_AN}){_HEX}{{32}}-us[0-9]{{1,2}}(?!{_AN})")),  # Mailchimp
]


# URLs.

_USERINFO = re.compile(r"""://([^\s/?#@:"'`<>\\]{0,256})(?::([^\s/"'`<>\\]{1,256}))?@""")
_GO_DSN = re.compile(r"""[\w-]{1,64}:([^\s@:/"'`]{1,128})@(?:tcp|unix)\(""")
_WEBHOOK = re.compile(
    r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([\w/-]{8,})"
    r"|discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/[0-9]+/([\w-]{16,})"
    r"|webhook\.office\.com/webhookb2/([\w@/-]{16,})"
    r"|hooks\.zapier\.com/hooks/catch/([\w/-]{6,})"
    r"|chat\.googleapis\.com/v1/spaces/[\w-]+/messages\?(\S+)"
    r"|api\.telegram\.org/bot([\w:-]{16,})"
    r"|(?:ingest\.sentry\.io|hook\.[a-z0-9.]*make\.com|maker\.ifttt\.com/use)/([\w-]{16,})"
)


def find_in_urls(text: str, spans: Spans) -> None:
    if "@" in text:
        for number, match in enumerate(_USERINFO.finditer(text)):
            if number == MOST:
                spans.append((match.start(), len(text)))
                break
            user, password = match.group(1), match.group(2)
            if password is not None:
                if not stands_in(password, quoted=True):
                    spans.append(match.span(2))
                if looks_random(user):
                    spans.append(match.span(1))
            elif len(user) >= 16 and looks_random(user):
                spans.append(match.span(1))
        if "(" in text:
            spans.extend(match.span(1) for match in _GO_DSN.finditer(text))
    for match in _WEBHOOK.finditer(text) if "hook" in text or "api" in text else ():
        group = match.lastindex
        if group and MASK not in match.group(group):
            spans.append(match.span(group))


# Private keys in PEM and its relatives.

_MARKER = re.compile(r"-----(BEGIN|END) ([A-Z0-9 ]{0,60})-----")
_BODY = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/= \t\r\n\\>|"
_AFTER_BODY = re.compile(r"[^A-Za-z0-9+/=\s\\>|:,.#*-]")
_PUTTY = re.compile(r"Private-Lines: *[0-9]+")
_LONGEST_KEY = 65_536


def find_key_blocks(text: str, spans: Spans) -> Spans:
    """Private keys go to `spans`; what comes back are public blocks, random and no secret."""
    public: Spans = []
    markers = [*_MARKER.finditer(text)]
    for index, marker in enumerate(markers):
        found = public if "PRIVATE KEY" not in marker.group(2) else spans
        before = markers[index - 1] if index else None
        after = markers[index + 1] if index + 1 < len(markers) else None
        if marker.group(1) == "BEGIN":
            limit = after.start() if after is not None else len(text)
            complete = after is not None and after.group(1) == "END"
            _add_body(text, marker.end(), limit if complete else None, limit, found)
        elif before is None or before.group(1) == "END":
            # The end of a key whose beginning was cut off, as `tail` shows it.
            floor = max(before.end() if before is not None else 0, marker.start() - _LONGEST_KEY)
            start = floor + len(text[floor : marker.start()].rstrip(_BODY))
            _add_body(text, start, marker.start(), marker.start(), found)
    position = 0
    while (putty := _PUTTY.search(text, position)) is not None:
        position = _add_body(text, putty.end(), None, len(text), spans)
    return public


def _add_body(text: str, start: int, stop: int | None, limit: int, found: Spans) -> int:
    least = 1
    if stop is None:  # no end in sight: whatever still looks like a key's body
        least = 8
        limit = min(limit, start + _LONGEST_KEY)
        after = _AFTER_BODY.search(text, start, limit)
        stop = after.start() if after is not None else limit
    if len(text[start:stop].strip(" \r\n\t\\nr.…")) >= least and MASK not in text[start:stop]:
        found.append((start, stop))
    return stop


# Anything long and random.

_LONG = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_PUBLIC_BEGINNING = re.compile(r"AAAA[A-Z][0-9A-Za-z]N|(?i:sha(?:1|256|384|512)[-_])")
_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"


def find_random(text: str, spans: Spans, public: Spans) -> None:
    """Long mixed texts, other than checksums, identities, public keys and embedded data."""
    before = len(spans)
    for match in _LONG.finditer(text):
        start, stop = match.span()
        if len(spans) - before > MOST:
            spans.append((start, len(text)))
            return
        if _PUBLIC_BEGINNING.match(text, start):
            continue
        block = bisect_right(public, (start, len(text))) - 1
        if block >= 0 and stop <= public[block][1]:
            continue
        for first, last in _random_parts(match.group(), start):
            if not _is_known(text, first):
                spans.append((first, last))


_HEX_KEY = re.compile(
    r"(?<![0-9A-Za-z_./-])(?=[0-9]{0,31}[A-Fa-f])(?=[A-Fa-f]{0,31}[0-9])"
    r"(?:[0-9a-f]{32}|[0-9A-F]{32})(?![0-9A-Za-z_/-]|\.[A-Za-z0-9]|[ \t]{1,2}\*?[\w./-]+(?:\n|\Z))"
)
"""A key of 128 bits, alone: no part of a path, no checksum before the name of its file. Longer
ones are names of commits and checksums far more often, and count only behind a telling name."""
_CHECKSUM = re.compile(
    r"md5|md4|etag|uuid|guid|trace|span|hash|checksum|digest|\bid\b", re.IGNORECASE
)


def find_hex_keys(text: str, spans: Spans) -> None:
    for match in each_match(_HEX_KEY, text, spans):
        start = match.start()
        line = text[max(0, start - 48) : start].rpartition("\n")[2]
        if not _CHECKSUM.search(line):
            spans.append(match.span())


def _is_known(text: str, start: int) -> bool:
    """Whether what stands before says that this is an identity, a checksum or data."""
    before = text[max(0, start - 48) : start]
    if before.endswith(("base64,", "/d/", "/folders/")):
        return True
    head = before.rstrip(" \t\"'`:=\\")
    if head == before:
        return False
    name = head[len(head.rstrip(_NAME_CHARACTERS)) :]
    return len(name) <= 24 and identifies(name) and not looks_random(name)


def _random_parts(run: str, start: int) -> Spans:
    if "/" not in run:
        return [(start, start + len(run))] if _is_random(run) else []
    segments = run.split("/")
    sample = run[:512].split("/")
    if not any(_WORDY.fullmatch(part) for part in sample) and is_dense("".join(sample)):
        return [(start, start + len(run))]  # base64
    return _random_segments(segments, start)


def _random_segments(segments: list[str], start: int) -> Spans:
    """In a path or a URL, and the pieces of base64 beside one that has slashes in it."""
    found: Spans = []
    chain: int | None = None
    random = False
    for part in [*segments, "end"]:
        if part.islower() or part.isdigit():
            if chain is not None and random:
                found.append((chain, start - 1))
            chain, random = None, False
        else:
            chain = start if chain is None else chain
            random = random or (len(part) >= 32 and _is_random(part))
        start += len(part) + 1
    return found


def _is_random(part: str) -> bool:
    """`call_x` and the like are identities: what counts is what follows."""
    label = _LABEL.match(part)
    rest = part[label.end() :] if label is not None else part
    return len(rest) >= 32 and is_dense(rest)


_LABEL = re.compile(r"(?:[a-z]{2,12}[_-]){1,2}")
_WORDY = re.compile(r"[a-z][a-z._-]{3,}")
