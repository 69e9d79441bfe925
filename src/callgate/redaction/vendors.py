"""The tokens that their vendors mark with a prefix: `ghp_...`, `sk-ant-...`, `xoxb-...`.

A row is a list of prefixes and what must follow one of them. Prefixes nobody writes by chance
count wherever they stand, also glued to other characters; the others only where a word begins.
"""

from __future__ import annotations

import re
from collections import defaultdict

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
