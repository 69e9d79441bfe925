"""Redaction of data: what a telling name holds is masked, and the rest keeps its shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.redaction.data import redact_value
from callgate.redaction.names import MASK

SECRET = "ghp_" + "1degvI558ZTr18jAxdq4LfHj9SIA8LdfeJwB"
FILE_ID = "1BxiMVs0XRA5nFMdKvBdBZj" + "gmUUqptlbs74OgvE2upms"


@dataclasses.dataclass
class Login:
    user: str
    password: str


class Stubborn:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.spec("T43")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "changeme", "user": "bob"}, {"password": MASK, "user": "bob"}),
        ({"api_key": ""}, {"api_key": ""}),
        ({"secret": None, "token": False}, {"secret": None, "token": False}),
        ({"pin_token": 123456, "max_tokens": 4096}, {"pin_token": MASK, "max_tokens": 4096}),
        ({"secrets": ["a", "b"], "tokens": ["to", "be"]}, {"secrets": [MASK] * 2, "tokens": ["to", "be"]}),
        ({"password": {"type": "string"}}, {"password": {"type": "string"}}),
        ({"secret": {"any": "x9Qe2kT0vB7mQ2x9"}}, {"secret": {"any": MASK}}),
        ({"key": "value", "auth": "x9Qe2kT0vB7mQ2x9"}, {"key": "value", "auth": MASK}),
        ({"Cookie": "sid=1"}, {"Cookie": MASK}),
        (
            [{"name": "API_KEY", "value": "abc"}, {"name": "LANG", "value": "abc"}],
            [{"name": "API_KEY", "value": MASK}, {"name": "LANG", "value": "abc"}],
        ),
        (["x", "--password", "a", "-v", "b"], ["x", "--password", MASK, "-v", "b"]),
        (["curl", "-u", "bob:pw", "https://x"], ["curl", "-u", f"bob:{MASK}", "https://x"]),
        (["--token=abc", "--secret", "--x"], [f"--token={MASK}", "--secret", "--x"]),
        (("a", {"b"}, b"abc"), ["a", ["b"], "[3 bytes]"]),
        ({"note": f"see {SECRET}"}, {"note": f"see {MASK}"}),
        ({"config": '{"password": "abc"}'}, {"config": f'{{"password": "{MASK}"}}'}),
        ({SECRET: 1, 5: 2, None: 3}, {MASK: 1, "5": 2, "None": 3}),
        ({"fileId": FILE_ID, "text": FILE_ID}, {"fileId": FILE_ID, "text": MASK}),
        (float("nan"), None),
        (float("-inf"), None),
        ("\ud800", "\\ud800"),
        (Login("bob", "pw"), {"user": "bob", "password": MASK}),
        (msgspec.Raw(b'{"password":"pw"}'), {"password": MASK}),
        (Stubborn(), "<Stubborn>"),
        (object(), "<object>"),
    ],
    ids=[*range(25)],
)
def test_a_telling_name_masks_what_it_holds(value: Any, shown: Any) -> None:
    assert redact_value(value) == shown
    assert redact_value(shown) == shown


def test_the_original_is_left_alone() -> None:
    value = {"password": "pw", "list": ["--token", "x"]}
    redact_value(value)
    assert value == {"password": "pw", "list": ["--token", "x"]}


def test_data_that_contains_itself_ends_somewhere() -> None:
    value: dict[str, Any] = {}
    value["again"] = value
    msgspec.json.encode(redact_value(value))


@pytest.mark.spec("T40")
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=20,
    )
)
def test_any_data_becomes_json_and_stays_as_it_is(value: Any) -> None:
    shown = redact_value(value)
    msgspec.json.encode(shown)
    assert redact_value(shown) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["unzip", "-P", "hunter2", "a.zip"],
        ["/usr/bin/7z", "x", "-phunter2", "a.7z"],
        ["sudo", "mysql", "-phunter2"],
        ["oathtool", "--totp", "-b", "hunter2x"],
        ["net", "user", "bob", "hunter2"],
        ["vault", "login", "hunter2"],
        ["curl", "-b", "sid=hunter2", "https://x"],
        ["openssl", "enc", "-k", "hunter2"],
    ],
)
def test_a_password_in_a_list_of_words_is_masked(words: list[str]) -> None:
    shown = redact_value({"argv": words})
    assert "hunter2" not in str(shown)
    assert shown["argv"][0] == words[0]


@pytest.mark.parametrize(
    "words",
    [
        ["mysql", "-uroot", "-p%s", "shop"],
        ["sudo", "mysqldump", "-p%s", "shop", "orders"],
        ["7z", "x", "-p%s", "a.7z", "out"],
        ["unzip", "-P%s", "a.zip", "notes.txt"],
        ["ldapsearch", "-w%s", "filter"],
    ],
)
@pytest.mark.parametrize("secret", ["hunter2", "secret1", "mytoken", "secret"])
def test_the_words_behind_an_attached_password_stay_in_a_list(words: list[str], secret: str) -> None:
    masked = secret if secret == "secret" else "[REDACTED]"  # a word for one is none
    shown = redact_value([word.replace("%s", secret) for word in words])
    assert shown == [word.replace("%s", masked) for word in words]


def test_the_word_behind_an_attached_user_and_password_stays() -> None:
    assert redact_value(["curl", "-ualice:password", "page"]) == ["curl", "-ualice:password", "page"]
