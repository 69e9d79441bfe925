"""JSON that can be read in one way only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.strict_json import MAX_BYTES, MAX_DEPTH, StrictJsonError, loads

CORPUS = json.loads((Path(__file__).parents[2] / "corpus" / "frames.json").read_text())
STRICTNESS = {"malformed", "encoding", "surrogate", "dupkey", "depth", "size"}
NUMBERS = {"f103", "f104", "f106", "f108"}
"""The cases of group `number` that are no JSON; the others are about the value of a field."""


def frame(case: dict[str, Any]) -> bytes:
    body = case["frame"]
    if "text" in body:
        return body["text"].encode()  # type: ignore[no-any-return]
    if "hex" in body:
        return bytes.fromhex(body["hex"])
    if "gen" in body:
        made = body["gen"]
        text = made["prefix"] + made["unit"] * made["count"] + made["suffix"]
    else:
        made = body["gen_keys"]
        members = ",".join(f'"k{n}":0' for n in range(made["count"]))
        text = made["prefix"] + members + made["suffix"]
    return text.encode()  # type: ignore[no-any-return]


REFUSED = [
    case
    for case in CORPUS["cases"]
    if case["class"] == "protocol_error" and (case["group"] in STRICTNESS or case["id"] in NUMBERS)
]
TAKEN = [case for case in CORPUS["cases"] if case["class"].startswith("ok")]


@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_a_hostile_frame_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(StrictJsonError) as refused:
        loads(frame(case))
    assert len(str(refused.value)) < 200
    assert str(refused.value).isascii() and str(refused.value).isprintable()


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case["id"])
def test_a_valid_frame_is_read_as_any_reader_reads_it(case: dict[str, Any]) -> None:
    data = frame(case)
    assert loads(data) == loads(data.decode()) == json.loads(data)


def test_the_corpus_still_asks_for_enough() -> None:
    assert (len(REFUSED) > 50, len(TAKEN) > 15) == (True, True)


def nested(depth: int, kind: str = "[]") -> bytes:
    opening = {"[]": b"[", "{}": b'{"a":'}[kind]
    inner = b"1" if kind == "{}" else b""
    return opening * depth + inner + kind[1].encode() * depth


@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b'{"a":1, "b":{"x":[{"k":1,"k":2}]}}', "duplicate_key"),
        (b'{"":1,"":2}', "duplicate_key"),
        (b'{"a":"\\u003a","a":"x"}', "duplicate_key"),
        (b'{"a":"\\u003A\\u003a","b":1,"b":2}', "duplicate_key"),
        (b'{"a":"::","a":""}', "duplicate_key"),
        (b'{"a":{"b":"c:d"},"a":1}', "duplicate_key"),
        (b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}', "duplicate_key"),
        (b'{"' + b"k" * 5000 + b'":1,"' + b"k" * 5000 + b'":2}', "duplicate_key"),
        (b"1e400", "number"),
        (b"-1e400", "number"),
        (b"[1E+999999999]", "number"),
        (b"9" * 401, "number"),
        (b"-" + b"9" * 401, "number"),
        (b"[" + b"9" * 5000 + b"]", "number"),
        (b'{"a":"' + b"9" * 500 + b'","b":' + b"9" * 401 + b"}", "number"),
        (b"NaN", "syntax"),
        (b"-Infinity", "syntax"),
        (nested(MAX_DEPTH + 1), "depth"),
        (nested(MAX_DEPTH + 1, "{}"), "depth"),
        (b"[" * 65 + b"1" + b"]" * 65, "depth"),
        (b"[" * 100_000, "depth"),
        (b'{"a":' * 100_000, "depth"),
        (b'{"a":"\xed\xa0\x80"}', "encoding"),
        (b'"\xc0\xaf"', "encoding"),
        (b'"' + "é".encode("latin-1") + b'"', "encoding"),
        ('"\ud800"', "encoding"),
        ("{}".encode("utf-16"), "syntax"),
        (b"\xef\xbb\xbf{}", "syntax"),
        (b'"\\ud800"', "syntax"),
        (b'{"\\udc00":1}', "syntax"),
        (b"", "syntax"),
        (b" ", "syntax"),
        (b"{}{}", "syntax"),
        (b"{}\x00", "syntax"),
        (b'"a\nb"', "syntax"),
        (b'"a\x1fb"', "syntax"),
        (b"\xc2\xa0{}", "syntax"),
        (b"[1,]", "syntax"),
        (b"01", "syntax"),
        (b" " * (MAX_BYTES - 1) + b"{}", "size"),
        (b"{" + b",".join(b'"%d":0' % n for n in range(10_001)) + b"}", "keys"),
        (b"[[{" + b",".join(b'"%d":[]' % n for n in range(10_001)) + b"}]]", "keys"),
    ],
    ids=lambda value: ascii(value[:24]) if isinstance(value, bytes | str) else None,
)
def test_what_can_be_read_in_two_ways_is_refused_with_its_reason(data: bytes | str, refusal: str) -> None:
    with pytest.raises(StrictJsonError) as refused:
        loads(data)
    assert refused.value.refusal == refusal
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "data",
    [
        nested(MAX_DEPTH),
        nested(MAX_DEPTH, "{}"),
        b"[" + nested(MAX_DEPTH - 1) + b",[],[]]",
        b'["' + b"9" * 401 + b'",' + b"9" * 400 + b"]",
        b"[{" + b",".join(b'"%d":0' % n for n in range(10_000)) + b'},{"a":0}]',
        b"[" + b"[]," * 5000 + b"[]]",
        b"9" * 400,
        b'"' + b"9" * 5000 + b'"',
        b"0." + b"1" * 5000,
        b"1e-400",
        b'{"a":"\\u003a","b":":"}',
        b'{"a":"\\\\u003a","b":":"}',
        b'{"a":":{[","b":"\\":"}',
        b'{"a":{"k":1},"b":{"k":2}}',
        b'\t{ "a" : [ 1 , 2.50 , true ] , "b" : null }\r\n',
        '{"ü":"\\u00fc","x":"日本"}'.encode(),
        b'"\\ud83d\\ude00"',
        b'"\x7f\\u0000"',
        b"{" + b",".join(b'"%d":0' % n for n in range(10_000)) + b"}",
        b"[" + b",".join(b'{"a":0}' for _ in range(20_000)) + b"]",
    ],
    ids=lambda data: ascii(data[:24]),
)
def test_what_only_looks_suspicious_is_read(data: bytes) -> None:
    assert loads(data) == json.loads(data)


def test_a_refusal_names_the_repeated_key_escaped_and_cut() -> None:
    with pytest.raises(StrictJsonError, match=r"'b\\n'"):
        loads(b'{"a":1,"b\\n":2,"b\\n":3}')


def test_limits_can_be_tightened() -> None:
    with pytest.raises(StrictJsonError):
        loads(b"[[[]]]", max_depth=2)
    with pytest.raises(StrictJsonError):
        loads(b"[1,2]", max_bytes=4)
    assert loads(b"[[1]]", max_depth=2, max_bytes=5) == [[1]]


TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(JSON, st.booleans(), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_every_document_is_read_however_it_was_written(
    value: Any, escape: bool, separators: tuple[str, str] | None
) -> None:
    assert loads(json.dumps(value, ensure_ascii=escape, separators=separators)) == value


COLONS = st.text(st.sampled_from(':"\\{[u03aA '), max_size=6)


def spelt(text: str, escapes: list[bool]) -> str:
    """A JSON string in which some characters are escaped, as a peer may do at will."""
    parts = [
        f"\\u{ord(char):04x}" if escape or char in '"\\' else char for char, escape in zip(text, escapes, strict=True)
    ]
    return '"' + "".join(parts) + '"'


@pytest.mark.spec("T38")
@given(st.data())
def test_a_repeated_key_is_found_among_any_texts_and_escapes(data: st.DataObject) -> None:
    def draw_spelling(text: str) -> str:
        escapes = st.lists(st.booleans(), min_size=len(text), max_size=len(text))
        return spelt(text, data.draw(escapes))

    keys = data.draw(st.lists(COLONS, min_size=1, max_size=4))
    members = [f"{draw_spelling(key)}:{draw_spelling(data.draw(COLONS))}" for key in keys]
    document = "{" + ",".join(members) + "}"
    if len(set(keys)) == len(keys):
        assert loads(document) == json.loads(document)
    else:
        with pytest.raises(StrictJsonError) as refused:
            loads(document)
        assert refused.value.refusal == "duplicate_key"


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 500_000 + b"[]]",
        b"[" + b"1," * 500_001 + b"1]",
        b"[" + b'{"a":1},' * 260_000 + b"1]",
        b"[" + b'"",' * 500_001 + b'""]',
        b'["\\\\","\\"",' + b"1," * 500_000 + b"1]",
    ],
)
def test_a_document_of_very_many_values_is_refused_before_it_is_read(data: bytes) -> None:
    with pytest.raises(StrictJsonError) as caught:
        loads(data)
    assert caught.value.refusal == "size"


@pytest.mark.parametrize("text", ["[{,", '"[', "\\[,", '\\"{,'])
def test_a_long_text_may_look_like_many_values(text: str) -> None:
    value = [text * 400_000]
    assert loads(msgspec.json.encode(value)) == value
