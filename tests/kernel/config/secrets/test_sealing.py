"""Sealing: what is sealed comes back as it was, under its name and with its key, or not at all."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from callgate.config.sealing import PREFIX, SealingKey, SecretsError, is_sealed, key_id_of, seal, unseal

KEY = SealingKey("correct horse battery staple, and then some")
OTHER = SealingKey("0123456789abcdef0123456789abcdef")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
key_texts = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["Cs", "Z", "C"]), min_size=32
)


@given(name=texts, text=texts)
def test_what_is_sealed_comes_back(name: str, text: str) -> None:
    sealed = seal(name, text, KEY)
    assert is_sealed(sealed) and sealed.isascii() and "\n" not in sealed
    assert unseal(name, sealed, [OTHER, KEY]) == unseal(name, sealed + "\n", [KEY]) == text
    assert key_id_of(name, sealed) == KEY.id


def test_the_same_text_is_never_sealed_the_same_way() -> None:
    assert len({seal("n", "t", KEY) for _ in range(100)}) == 100


def test_a_text_in_the_place_of_another_is_refused() -> None:
    with pytest.raises(SecretsError, match="encrypted under another name"):
        unseal("google.json", seal("keys.json", "{}", KEY), [KEY])


@given(st.data())
def test_no_character_can_be_another(data: st.DataObject) -> None:
    sealed = seal("n", "the secret", KEY)
    at = data.draw(st.integers(len(PREFIX), len(sealed) - 1))
    alphabet = st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:= ")
    other = data.draw(alphabet)
    assume(other != sealed[at])
    with pytest.raises(SecretsError):
        unseal("n", sealed[:at] + other + sealed[at + 1 :], [KEY])


def test_no_length_but_the_whole_is_taken() -> None:
    sealed = seal("n", "the secret", KEY)
    for length in range(len(PREFIX), len(sealed)):
        with pytest.raises(SecretsError):
            unseal("n", sealed[:length], [KEY])
    for more in ("A", "AAAA", ":", "=", " "):
        with pytest.raises(SecretsError):
            unseal("n", sealed + more, [KEY])


@given(texts)
def test_anything_else_behind_the_prefix_is_an_error_and_never_a_crash(text: str) -> None:
    with pytest.raises(SecretsError):
        unseal("n", PREFIX + text, [KEY])


def test_the_id_of_the_key_cannot_be_exchanged_to_choose_another_key() -> None:
    sealed = seal("n", "the secret", KEY).replace(KEY.id, OTHER.id)
    with pytest.raises(SecretsError):
        unseal("n", sealed, [KEY, OTHER])


def test_a_wrong_key_is_named_beside_the_right_one_and_no_key_names_the_setting() -> None:
    with pytest.raises(SecretsError, match=rf"key {KEY.id}.*has {OTHER.id}"):
        unseal("n", seal("n", "t", KEY), [OTHER])
    with pytest.raises(SecretsError, match="key_env"):
        unseal("n", seal("n", "t", KEY), [])


def test_a_newer_format_is_told_from_damage() -> None:
    with pytest.raises(SecretsError, match="newer"):
        unseal("n", f"{PREFIX}2:whatever", [KEY])


@pytest.mark.parametrize("text", ["", " ", "short", "x" * 31, "ab" * 40, " " * 50 + "short" + "\n" * 50])
def test_a_key_that_can_be_guessed_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        SealingKey(text)
    assert not text.strip() or text.strip() not in str(caught.value)


@given(key_texts)
def test_a_key_never_shows_itself(text: str) -> None:
    assume(len(set(text)) >= 8)
    key = SealingKey(f" {text}\n")
    assert key.id == SealingKey(text).id
    shown = f"{key!r} {key} {[key]} {key.id}"
    try:
        unseal("n", seal("n", "t", key)[:-3] + "AAA", [key])
    except SecretsError:
        shown += traceback.format_exc()
    assert text not in shown and key.reveal().hex() not in shown
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(key)


def test_the_format_is_the_one_that_was_written_before() -> None:
    """A change of it needs a new version."""
    sealed = "callgate-secret:1:dd441829e85b75eb:AoFRSpUKgc-XJhU9:D1BCRmxk7WMDHArxylaR7S2oKP1tZJycbJzkJNzRjjO-"
    assert unseal("keys.json", sealed, [SealingKey("0123456789abcdef0123456789abcdef")]) == '{"openai":"sk-1"}'
