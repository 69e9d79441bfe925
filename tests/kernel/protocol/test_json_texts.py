"""`json_texts` reads and writes JSON as the standard library does, without importing it."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from ast import literal_eval
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


_ALONE = """
import sys
from ast import literal_eval
from callgate.protocol import json_texts

texts = literal_eval(sys.stdin.read())
assert "json" not in sys.modules
read = []
for text in texts:
    try:
        read.append(["value", repr(json_texts.loads(text))])
    except (ValueError, RecursionError):
        read.append(["refused"])
print(ascii(read))
"""


def test_malformed_json_is_refused_without_the_json_package() -> None:
    """The C scanner of Python 3.11 loses its exception where `json.decoder` is not loaded."""
    texts = _damaged_texts()
    child = [sys.executable, "-c", _ALONE]
    ended = subprocess.run(child, input=ascii(texts), capture_output=True, text=True, timeout=120)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
    assert literal_eval(ended.stdout) == [_read_by_json(text) for text in texts]


def _read_by_json(text: str) -> list[str]:
    try:
        return ["value", repr(json.loads(text, parse_constant=_refuse))]
    except (ValueError, RecursionError):
        return ["refused"]


def _refuse(name: str) -> None:
    raise ValueError(name)


def _damaged_texts() -> list[str]:
    """Valid documents, and the same with characters deleted, replaced, repeated or cut off."""
    chance = random.Random(12)  # noqa: S311
    whole = ['{"a": [1, -2.5e3, "x\\u00e9\\n"], "b": {"c": null, "d": true}}', '["", {}, [], 0]', '"a"']
    texts = [*whole, "{broken", "[1,", '{"a"', '"\\', '"\\u12', "[1 2]", "{1: 2}", "9" * 5000, "\ud800"]
    for _ in range(3000):
        text = chance.choice(whole)
        for _ in range(chance.randint(1, 3)):
            at, length = chance.randrange(len(text) + 1), chance.randint(0, 2)
            inserted = chance.choice(["", '"', "{", "]", ",", ":", "\\", "e", "\0", "\u20ac", "\udc80"])
            text = text[:at] + inserted + text[at + length :]
        texts.append(text)
    return texts
