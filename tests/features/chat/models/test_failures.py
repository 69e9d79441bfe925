"""How long a server wants to wait, and what is hidden of what it says."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from callgate.core.http import retry_after
from callgate.features.chat.models.prompts import is_strict, wire_id, wire_name
from callgate.features.chat.models.replies import ServerFailure, read_body
from callgate.redaction.texts import Masked

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "Sat, 31 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Saturday, 31-Jan-26 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 31 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sat, 99 Jan 99999 12:00:30 GMT"}, None),
    ],
)
def test_a_wait_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "m", "type": "t", "code": 7}}', ServerFailure("m", "t 7")),
        (b'{"type": "error", "error": {"type": "t", "message": "m"}}', ServerFailure("m", "t")),
        (b'{"error": "m"}', ServerFailure("m")),
        (b'{"message": "m"}', ServerFailure("m")),
        (b'{"detail": "m"}', ServerFailure("m")),
        (b"plain", ServerFailure("plain")),
        (b" <html>no</html>", ServerFailure("")),
        (b"", ServerFailure("")),
        (b"null", ServerFailure("null")),
        (b"\xff", ServerFailure("\ufffd")),
        (b'{"error": {"message": ["m"]}}', ServerFailure('{"error": {"message": ["m"]}}')),
    ],
)
def test_what_a_server_says_is_found(body: bytes, said: ServerFailure) -> None:
    assert read_body(body) == said


@pytest.mark.spec("T43")
def test_a_short_word_is_no_secret_and_a_secret_is_one_in_any_spelling() -> None:
    masked = Masked(["abc", "Secret/Value=1"])
    assert masked("abc is fine") == "abc is fine"
    for spelt in ("Secret/Value=1", "secret/value=1", "Secret\\/Value=1", "Secret%2FValue%3D1", "U2VjcmV0L1ZhbHVlPTE"):
        assert masked(f"<{spelt}>") == "<[hidden]>"
    assert masked("cut at Secret/V") == "cut at [hidden]"


def test_ids_and_names_are_what_every_provider_takes() -> None:
    assert (wire_id("call_1"), wire_name("read_file")) == ("call_1", "read_file")
    strange = ["", "a b", "functions.x:0", "x" * 41, "ä", "\ud800", "a\n"]
    replaced = [wire_id(each) for each in strange]
    assert len(set(replaced)) == len(strange)
    assert all(each.isascii() and 0 < len(each) <= 40 and each.replace("_", "").isalnum() for each in replaced)
    assert [wire_name(each) for each in ("", "a b", "x" * 70, "ä.b")] == ["unknown", "a_b", "x" * 64, "__b"]


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "string"}, True),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"anyOf": [{"type": "object", "properties": {}}]}, False),
        (
            {
                "type": "object",
                "properties": {"properties": {"type": "string"}},
                "required": ["properties"],
                "additionalProperties": False,
            },
            True,
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, False),
    ],
)
def test_a_schema_is_strict_if_every_object_in_it_is_closed(schema: dict[str, object], strict: bool) -> None:
    assert is_strict(schema) is strict
