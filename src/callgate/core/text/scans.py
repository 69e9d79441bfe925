"""Whether any of many forms stands in a text: one linear scan for all of them together.

`re` tries one alternative after another at each character, and a search for each word alone reads
the text once for each. The engine of the validator compiles all of them into one automaton, or,
where all are plain words, looks for them in whole blocks of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def literally(words: Iterable[str]) -> list[str]:
    """The forms of plain words."""
    return [re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", word) for word in words]


class Scan:
    """Forms are regular expressions without look-around and back references."""

    __slots__ = ("_forms", "search")

    def __init__(self, forms: Iterable[str]) -> None:
        self._forms = "|".join(forms)
        self.search: Callable[[str], bool] = self._compile_and_search
        """The engine itself, once it is loaded. `ValueError` for what is no Unicode."""

    def finds(self, text: str) -> bool:
        """True also for what is no Unicode: that is to be looked at more closely."""
        try:
            return self.search(text)
        except ValueError:  # a lone surrogate
            return True

    def _compile_and_search(self, text: str) -> bool:
        import jsonschema_rs  # lazy: a process that redacts nothing does without  # noqa: PLC0415

        options = jsonschema_rs.RegexOptions()
        schema = {"pattern": self._forms}
        self.search = jsonschema_rs.Draft7Validator(schema, pattern_options=options).is_valid
        return self.search(text)
