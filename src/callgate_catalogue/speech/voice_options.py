"""Options of an utterance, and its text without engine commands.

The options equal the options of espeak-ng, which `voice` understands too. A model writes all input:
only its language tag reaches a command line.
"""

from __future__ import annotations

import re
import unicodedata

from callgate.packs.speech import Spoken

LONGEST_TEXT = 5_000
"""Maximum spoken characters of one utterance."""
_RATE, _PITCH = 175, 50
_SLOWEST, _FASTEST, _HIGHEST = 80, 400, 99
_LANGUAGE = re.compile(r"([a-z]{2,3})((?:-[a-z0-9]{2,8}){0,3})(?:[.@].*)?", re.DOTALL)
_VARIANTS = {
    "Kore": "f2",
    "Aoede": "f3",
    "Leda": "f4",
    "Zephyr": "f5",
    "Puck": "m1",
    "Charon": "m3",
    "Fenrir": "m7",
    "Orus": "m8",
}
_STYLES = {
    ("slow", "clear", "careful", "patient"): (0.75, 0),
    ("calm", "gentle", "gently", "soft", "relaxed", "soothing", "warm"): (0.9, -5),
    ("serious", "firm", "formal", "grave", "solemn"): (0.9, -12),
    ("sad", "tired", "sombre", "somber"): (0.8, -18),
    ("deep", "low"): (1.0, -25),
    ("high", "bright"): (1.0, 20),
    ("fast", "quick", "brisk", "hurried", "urgent"): (1.35, 5),
    ("happy", "happily", "cheerful", "upbeat", "playful", "friend"): (1.1, 12),
    ("excited", "enthusiastic", "energetic"): (1.2, 20),
}
"""Effect of a style word on rate (factor) and pitch (offset); "-ly" may follow it."""
_BY_WORD = {word: style for words, style in _STYLES.items() for word in words}
_UNHEARD = frozenset({"Cc", "Co", "Cn", "Cs"})


def plain(utterance: str) -> str:
    """Return the text without engine commands.

    In espeak-ng a control character starts a command, and `[[` starts phonemes. Inaudible
    characters become spaces; line breaks stay, as pauses.
    """
    cut = utterance[:LONGEST_TEXT]
    cleaned = "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNHEARD else " " for char in cut
    )
    return re.sub(r"\[(?=\[)", "[ ", cleaned).strip()


def voice_options(spoken: Spoken, *, language: str | None = None) -> tuple[str, ...]:
    """Return the options for an utterance, in its own language or in another.

    Unknown values keep the defaults.
    """
    tongue = language or _language(spoken.locale) or "en"
    variant = _VARIANTS.get(spoken.voice or "")
    rate, pitch = _sound(spoken.style or "")
    voice = tongue if variant is None else f"{tongue}+{variant}"
    return ("-v", voice, "-s", str(rate), "-p", str(pitch))


def _language(locale: str | None) -> str | None:
    """Return a language tag: `de-at` for de_AT.UTF-8."""
    found = _LANGUAGE.fullmatch((locale or "").strip().lower().replace("_", "-"))
    return None if found is None else found[1] + found[2]


def _sound(style: str) -> tuple[int, int]:
    rate, pitch = float(_RATE), _PITCH
    for word in dict.fromkeys(re.findall(r"[a-z]+", style[:200].lower())):
        times, more = _BY_WORD.get(word) or _BY_WORD.get(word.removesuffix("ly"), (1.0, 0))
        rate, pitch = rate * times, pitch + more
    return round(min(max(rate, _SLOWEST), _FASTEST)), min(max(pitch, 0), _HIGHEST)
