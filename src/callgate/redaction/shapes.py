"""Secrets that are recognized by their shape alone, at any place in a text.

The table of vendors lists prefixes (`ghp_...`, `sk-ant-...`, `xoxb-...`) and the characters that
must follow. An unmistakable prefix counts also inside a word, any other only at its beginning. The
other shapes are key blocks, passwords in URLs, addresses of webhooks, and long texts that mix all
classes of characters as generated secrets do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from callgate.redaction.names import MASK, identifies, is_dense, looks_random, stands_in

_W = "[A-Za-z0-9_-]"
_AN = "[A-Za-z0-9]"
_HEX = "[0-9a-fA-F]"
_B64 = "[A-Za-z0-9_+/=-]"
_DOTTED = "[A-Za-z0-9_.-]"
_DIGIT_SOON = "(?=[A-Za-z_-]{0,24}[0-9])"
_UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_END = rf"(?!{_AN})"

_ANYWHERE = [
    ("AKIA ASIA ABIA ACCA AGPA AIDA AIPA ANPA ANVA AROA ASCA APKA", r"[A-Z0-9]{16,}"),
    ("AIza", rf"{_W}{{30,}}"),
    ("AGE-SECRET-KEY-", r"[A-Z0-9]{20,}"),
    ("ATATT3x ATCTT3x", r"[A-Za-z0-9_=.-]{20,}"),
    ("ATBB", rf"{_AN}{{28,}}"),
    ("AKCp", rf"{_AN}{{60,}}"),
    ("AKID", rf"{_AN}{{32,}}"),
    ("AQVN", rf"{_W}{{35,}}"),
    ("CFPAT- CCIPAT_ CCIPRJ_", rf"{_W}{{30,}}"),
    ("CLOJARS_", rf"{_AN}{{40,}}"),
    ("EAAA EAAC EAAD EAAG EAAE", rf"{_W}{{50,}}"),
    ("EZAK EZTK", rf"{_AN}{{50,}}"),
    ("FLWSECK- FLWSECK_", rf"{_W}{{20,}}"),
    ("FlyV1%20 fm1_ fm2_ fm1r_ fm1a_", rf"{_B64}{{40,}}"),
    ("GOCSPX-", rf"{_W}{{20,}}"),
    ("GR1348941", rf"{_W}{{16,}}"),
    ("HRKU- PMAK- nvapi- tgp_v1_ tfp_", rf"{_W}{{30,}}"),
    ("LTAI", rf"{_AN}{{16,}}"),
    ("NRAK- NRAL- NRII- NRRA- NRJS- NRSP- NRAA- NRBR-", rf"{_W}{{16,}}"),
    ("SG.", rf"{_W}{{16,}}\.{_W}{{16,}}"),
    ("bkua_", rf"{_AN}{{30,}}"),
    ("cfut_ cfat_ sb_secret_ sbs_", rf"{_W}{{20,}}"),
    ("cmVmdGtu", rf"{_AN}{{40,}}"),
    ("dckr_pat_ dckr_oat_", rf"{_W}{{16,}}"),
    ("dop_v1_ doo_v1_ dor_v1_", rf"{_HEX}{{32,}}"),
    ("dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", rf"{_DOTTED}{{20,}}"),
    ("dt0c01. dt0s01. dt0s02. dt0s08.", r"[A-Z0-9]{20,}\.[A-Z0-9]{32,}"),
    ("duffel_test_ duffel_live_", rf"{_W}{{30,}}"),
    ("figd_ figo_ figu_", rf"{_W}{{16,}}"),
    ("fio-u-", rf"{_W}{{40,}}"),
    ("ghp_ gho_ ghu_ ghs_ ghr_", rf"{_AN}{{16,}}"),
    ("github_pat_", r"[A-Za-z0-9_]{20,}"),
    (
        "glpat- gldt- glrt- glrtr- glcbt- glptt- glft- glsoat- glagent- glimt- gloas- glwt-"
        " glffct-",
        rf"{_DOTTED}{{16,}}",
    ),
    ("glsa_ glc_", rf"{_B64}{{20,}}"),
    ("hvs. hvb. hvr.", rf"{_W}{{20,}}"),
    ("lin_api_ lin_oauth_ lin_wh_", rf"{_AN}{{20,}}"),
    ("lsv2_pt_ lsv2_sk_", rf"{_W}{{20,}}"),
    ("npm_ ntn_", rf"{_AN}{{30,}}"),
    ("ops_eyJ", rf"{_W}{{40,}}"),
    ("pplx-", rf"{_AN}{{20,}}"),
    ("pscale_tkn_ pscale_pw_ pscale_oauth_", rf"{_DOTTED}{{20,}}"),
    ("pypi-", rf"{_W}{{40,}}"),
    ("rdme_", rf"{_AN}{{40,}}"),
    ("rubygems_", rf"{_HEX}{{32,}}"),
    ("sbp_", rf"{_AN}{{32,}}"),
    ("secret_", rf"{_AN}{{30,}}"),
    ("sha256~", rf"{_W}{{40,}}"),
    ("shippo_live_ shippo_test_", rf"{_HEX}{{30,}}"),
    ("shpat_ shpca_ shppa_ shpss_ shpua_ shpka_", rf"{_HEX}{{24,}}"),
    (
        "sk-ant- sk-proj- sk-svcacct- sk-admin- sk-None- sk-or- sk-lf- sk-kimi-",
        rf"{_W}{{16,}}",
    ),
    ("sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ ek_live_ ek_test_", rf"{_AN}{{10,}}"),
    ("sntrys_ sntryu_", rf"{_B64}{{30,}}"),
    ("sq0atp- sq0csp- sq0idp- sq0at- sq0cs-", rf"{_W}{{16,}}"),
    ("tskey-", rf"{_W}{{16,}}"),
    ("whsec_", rf"{_B64}{{16,}}"),
    ("xapp- xwfp-", rf"{_W}{{16,}}"),
    ("xkeysib- xsmtpsib-", rf"{_W}{{32,}}"),
    (
        "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxp- xoxe.xoxb-",
        rf"(?=[A-Za-z-]{{0,16}}[0-9]){_W}{{10,}}",
    ),
    ("ya29.", rf"{_DOTTED}{{20,}}"),
    ("zpka_", r"[A-Za-z0-9_]{20,}"),
    ("v1.0-", rf"{_HEX}{{24}}-{_HEX}{{32,}}"),
    (
        "$1$ $2$ $2a$ $2b$ $2x$ $2y$ $5$ $6$ $7$ $y$ $gy$ $apr1$ $argon2i$ $argon2d$ $argon2id$"
        " $scrypt$ $pbkdf2$ $pbkdf2-sha256$ $pbkdf2-sha512$",
        r"[./A-Za-z0-9$=,+-]{20,}",
    ),
]

_AT_WORD_START = [
    ("AC SK", rf"{_HEX}{{32}}{_END}"),
    ("API-", r"[A-Z0-9]{24,}"),
    ("1//0", rf"{_W}{{20,}}"),
    ("cio", rf"{_DIGIT_SOON}{_AN}{{32}}{_END}"),
    ("dapi dkea", rf"{_HEX}{{32}}(?:-[0-9])?{_END}"),
    ("e2b_ fc-", rf"{_HEX}{{30,}}"),
    ("fo1_ pa-", rf"{_DIGIT_SOON}{_W}{{30,}}"),
    ("csk- fw_ jina_ r8_ rnd_ vcp_ vck_ vci_ vca_ vcr_ vcc_ xai-", rf"{_DIGIT_SOON}{_W}{{20,}}"),
    ("hf_ gsk_ api_org_", rf"{_AN}{{20,}}"),
    ("key- pubkey-", rf"{_HEX}{{32}}{_END}"),
    ("ico- nfp_ pnu_", rf"{_AN}{{30,}}"),
    ("M N O", rf"{_AN}{{22,27}}\.{_W}{{6}}\.{_W}{{27,}}"),
    ("mfa. sgp_", rf"{_W}{{40,}}"),
    ("pat", rf"{_AN}{{14}}\.{_HEX}{{40,}}"),
    ("pat-na1- pat-na2- pat-eu1- pat-ap1-", rf"{_W}{{30,}}"),
    ("pul-", rf"{_HEX}{{32,}}"),
    ("s.", rf"(?=[A-Za-z]{{0,20}}[0-9]){_AN}{{24}}{_END}"),
    ("sk- tvly-", rf"{_DIGIT_SOON}{_W}{{16,}}"),
    ("sk.eyJ", rf"{_DOTTED}{{20,}}"),
    ("sess- sl.", rf"{_DIGIT_SOON}{_W}{{30,}}"),
    ("sdk- api- mob- access-sandbox- access-development- access-production-", _UUID),
    ("t1.", r"[A-Za-z0-9_=-]{40,}\.[A-Za-z0-9_=-]{40,}"),
]


def _compile() -> re.Pattern[str]:
    """One alternation, grouped by first character: `re` then skips most of a text at once."""
    anywhere: dict[str, list[str]] = defaultdict(list)
    at_word_start: dict[str, list[str]] = defaultdict(list)
    for table, groups in ((_ANYWHERE, anywhere), (_AT_WORD_START, at_word_start)):
        for prefixes, body in table:
            by_first: dict[str, list[str]] = defaultdict(list)
            for prefix in prefixes.split():
                by_first[prefix[0]].append(re.escape(prefix[1:]))
            for first, rests in by_first.items():
                groups[first].append(f"(?:{'|'.join(rests)}){body}")
    branches = []
    for first in sorted(anywhere.keys() | at_word_start.keys()):
        bodies = anywhere[first]
        if first in at_word_start:
            bodies.append(rf"(?<!{_AN}{re.escape(first)})(?:{'|'.join(at_word_start[first])})")
        branches.append(f"{re.escape(first)}(?:{'|'.join(bodies)})")
    return re.compile("|".join(branches))


TOKENS = _compile()


MOST = 8_000
"""Maximum number of candidates of one kind; beyond it everything is masked."""
Spans = list[tuple[int, int]]
"""Spans to mask: from (included), to (excluded)."""


def each_match(pattern: re.Pattern[str], text: str, spans: Spans) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, up to a limit; beyond it everything is masked."""
    for number, match in enumerate(pattern.finditer(text)):
        if number == MOST:
            spans.append((match.start(), len(text)))
            return
        yield match


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
"""Every token is at least this long, and few texts have such runs."""
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
    """Add private keys to `spans`; return public blocks, which are random but not secret."""
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
    if stop is None:  # no end found: mask everything that looks like a key's body
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
    """Find long mixed texts, except for checksums, identities, public keys and embedded data."""
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
"""A lone key of 128 bits: not part of a path, not a checksum before a file name. Longer ones are
usually commits and checksums, and count only after a telling name.
"""
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
    """Return whether the text before marks an identity, a checksum or data."""
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
    """Find random segments of a path or URL, and base64 with slashes next to them."""
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
    """Texts like `call_x` are identities: only the following text counts."""
    label = _LABEL.match(part)
    remainder = part[label.end() :] if label is not None else part
    return len(remainder) >= 32 and is_dense(remainder)


_LABEL = re.compile(r"(?:[a-z]{2,12}[_-]){1,2}")
_WORDY = re.compile(r"[a-z][a-z._-]{3,}")
