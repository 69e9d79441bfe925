"""`json_texts` reads and writes JSON as the standard library does, without importing it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol import json_texts

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_json_is_written_and_read_as_the_standard_library_does(value: Any, ascii: bool) -> None:
    assert json_texts.dumps(value, ascii=ascii) == json.dumps(value, ensure_ascii=ascii)
    compact = json.dumps(value, separators=(",", ":"))
    assert json_texts.dumps(value, compact=True) == compact
    finite = not isinstance(value, float) or math.isfinite(value)
    if finite and "Infinity" not in compact:
        assert json_texts.loads(f" {compact}\r\n") == json.loads(compact)


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{}{}", "nul", "NaN", "-Infinity", "'a'", '{"a":1,}', '"\x01"', "[" * 100_000]
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        json_texts.loads(text)
