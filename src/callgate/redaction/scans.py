"""Whether any of many forms stands in a text: one linear scan for all of them together.

`re` tries one alternative after another at each character, and a search for each word alone reads
the text once for each. The engine of the validator compiles all of them into one automaton.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


def literally(words: Iterable[str]) -> list[str]:
    """The forms of plain words."""
    return [re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", word) for word in words]


class Scan:
    """Forms are regular expressions without look-around and back references."""

    __slots__ = ("_forms", "_native")

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = "|".join(forms)
        self._native: Any = None

    def finds(self, text: str) -> bool:
        """True also for what is no Unicode: that is to be looked at more closely."""
        try:
            return bool((self._native or self._compiled())(text))
        except ValueError:  # a lone surrogate
            return True

    def _compiled(self) -> Any:
        import jsonschema_rs  # lazy: a process that redacts nothing does without  # noqa: PLC0415

        options = jsonschema_rs.RegexOptions()
        schema = {"pattern": self._forms}
        self._native = jsonschema_rs.Draft7Validator(schema, pattern_options=options).is_valid
        return self._native
