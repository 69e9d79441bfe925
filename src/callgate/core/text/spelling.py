"""What somebody may have meant who wrote a word that there is not."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The word that is most like it; None where none is like it at all."""
    import difflib  # lazy: only once something is misspelt  # noqa: PLC0415

    found = difflib.get_close_matches(word, list(known), n=1)
    return found[0] if found else None
