"""The options of an utterance, and its text without what an engine would obey.

The options are those of espeak-ng, which `voice` understands too. All of it
comes from a model: nothing of what it writes reaches a command line but a language tag.
"""

from __future__ import annotations

import re
import unicodedata

from callgate.packs.speech import Spoken

LONGEST_TEXT = 5_000
"""Characters of one utterance that are heard."""
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
"""What a word makes of the rate (times) and of the pitch (more); "-ly" may follow it."""
_BY_WORD = {word: style for words, style in _STYLES.items() for word in words}
_UNHEARD = frozenset({"Cc", "Co", "Cn", "Cs"})


def plain(utterance: str) -> str:
    """The text as an engine may read it: all of it words.

    espeak-ng takes a control character for the start of a command, and `[[` for that of
    phonemes. Characters that nobody can hear become spaces; line breaks stay, as pauses.
    """
    cut = utterance[:LONGEST_TEXT]
    cleaned = "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNHEARD else " " for char in cut
    )
    return re.sub(r"\[(?=\[)", "[ ", cleaned).strip()


def voice_options(spoken: Spoken, *, language: str | None = None) -> tuple[str, ...]:
    """The options for an utterance, in its own language or in another; what is not known of
    it sounds as usual."""
    tongue = language or _language(spoken.locale) or "en"
    variant = _VARIANTS.get(spoken.voice or "")
    rate, pitch = _sound(spoken.style or "")
    voice = tongue if variant is None else f"{tongue}+{variant}"
    return ("-v", voice, "-s", str(rate), "-p", str(pitch))


def _language(locale: str | None) -> str | None:
    """`de-at` for de_AT.UTF-8."""
    found = _LANGUAGE.fullmatch((locale or "").strip().lower().replace("_", "-"))
    return None if found is None else found[1] + found[2]


def _sound(style: str) -> tuple[int, int]:
    rate, pitch = float(_RATE), _PITCH
    for word in dict.fromkeys(re.findall(r"[a-z]+", style[:200].lower())):
        times, more = _BY_WORD.get(word) or _BY_WORD.get(word.removesuffix("ly"), (1.0, 0))
        rate, pitch = rate * times, pitch + more
    return round(min(max(rate, _SLOWEST), _FASTEST)), min(max(pitch, 0), _HIGHEST)
