"""The one scan by which most texts are known to hold no secret: it never says so wrongly."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.core.schemas import canonical_json
from callgate.redaction.data import ArgumentSummary, summarize
from callgate.redaction.suspicion import is_likely, may_hold_secret, suspicious
from callgate.redaction.texts import redact, thoroughly
from tests.function_calls import count_function_calls
from tests.kernel.redaction.test_redaction import FRAGMENTS, HOSTILE

CORPUS = json.loads((Path(__file__).parents[2] / "corpus/redaction.json").read_text())
SECRETS = ["".join(case["text"]) for case in CORPUS["secrets"]]
TRICKY = ["\u0130", "\u0307", "\u212a", "\u017f", "\u00df", "\uff4b", "\u200b", "\u00ad", "\ud800", "\x7f"]
"""Characters that change in lower case, are not seen, or are no characters."""
HIDDEN = [
    text.replace("k", "\u212a").replace("i", tricky) for text in SECRETS for tricky in ("\u0130", "i\u200b", "\u0131")
]

pieces = st.one_of(
    st.sampled_from([*FRAGMENTS, *TRICKY, *string.punctuation, *string.ascii_letters]),
    st.text(st.characters(), max_size=4),
)
texts = st.lists(pieces, max_size=24).map("".join)


def assert_agrees(text: str) -> None:
    assert suspicious(text) == is_likely(text)
    if not is_likely(text):
        assert thoroughly(text) == text
    if not may_hold_secret(text):
        assert not is_likely(text)


@pytest.mark.parametrize("case", ["lower", "upper", "swapcase", "title"])
def test_every_known_secret_passes_the_scan_in_any_case(case: str) -> None:
    for text in [*SECRETS, *HIDDEN, *(make()[:1_000] for make in HOSTILE.values())]:
        assert_agrees(text)
        assert_agrees(getattr(text, case)())
    assert all(map(may_hold_secret, SECRETS))


@pytest.mark.parametrize(
    "text",
    [
        "--user alice:hunter2 curl",
        "mysql \\\n-phunter2",
        "mysql\t-phunter2",
        "ldapsearch -whunter2",
        "sqlplus scott/hunter2",
        "kubectl create --from-literal=a=hunter2",
        "sig=x9Qe2kT0vB7m",
        "signatureValue: x9Qe2kT0vB7m",
        "hmac=x9Qe2kT0vB7m",
        "PHPSESSID=x9Qe2kT0vB7m",
        "userPin=4711",
        "pinValue=4711",
        "access.code=4711",
        "https://hooks.zapier.com/hooks/catch/123456/abcdef",
        "Private-Lines: 1\nAAAABBBBCCCC",
        "echo hunter2 | reader --stdin",
        "docker exec my-mysql -phunter2",
        "db.internal:5432:app:bob:Ab3dE6gH9iJk",
    ],
)
def test_a_short_secret_is_hidden_where_only_its_place_tells(text: str) -> None:
    assert thoroughly(text) != text
    assert redact(text) == thoroughly(text)


@pytest.mark.parametrize(
    "command",
    [["vault", "login", "hunter2"], ["sqlplus", "scott/hunter2"], ["/usr/bin/bw", "unlock", "hunter2"]],
)
def test_a_secret_is_hidden_in_a_command_that_is_a_list_of_words(command: list[str]) -> None:
    arguments = {"command": command}
    assert "hunter2" not in ArgumentSummary({"type": "object"}).of(arguments, canonical_json(arguments))


@settings(max_examples=1_000, derandomize=True)
@given(texts)
def test_what_the_scan_passes_over_holds_nothing_that_a_closer_look_would_find(text: str) -> None:
    for each in (text, text.upper(), text.casefold()):
        assert_agrees(each)


@settings(derandomize=True)
@given(st.dictionaries(st.text(max_size=6) | st.sampled_from(FRAGMENTS), texts, max_size=3))
def test_arguments_that_the_scan_passes_over_are_what_redaction_leaves_of_them(arguments: dict[str, Any]) -> None:
    try:
        canonical = canonical_json(arguments)
    except UnicodeEncodeError:
        return
    shown = ArgumentSummary({"type": "object"}).of(arguments, canonical)
    if not may_hold_secret(canonical.decode()) and max(map(len, arguments.values()), default=0) < 240:
        assert json.loads(shown) == json.loads(summarize(arguments))


def test_a_summary_of_plain_arguments_takes_few_function_calls() -> None:
    arguments = {"title": "Enamelled kitchen lamp, model 5", "colours": ["white", "sea green"]}
    canonical = canonical_json(arguments)
    summary = ArgumentSummary({"type": "object"})
    assert summary.of(arguments, canonical) == canonical.decode()
    assert count_function_calls(lambda: summary.of(arguments, canonical)) <= 8
