"""One scan for many forms, and how few of them a text without secrets takes."""

from __future__ import annotations

import pytest

from callgate.core.patterns import Scan, literally
from callgate.redaction.suspicion import suspicious
from callgate.redaction.texts import redact

PLAIN = "The quick brown fox jumps over the lazy dog, and nobody minds.\n" * 32
WORDS = [
    "pass",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "bearer",
    "cookie",
    "pw",
    "psk",
    "otp",
    "://u:x@",
    "identified by",
    "\x1b",
    "contrase",
    "kennwort",
    "clave",
    "mdp",
    "senha",
    "cvv",
    "cvc",
    "private-lines",
    " /p:",
    "net use",
    " login ",
    "oathtool",
    "rabbitmqctl",
    "bw unlock",
    "mc alias",
    "rclone ",
    "<<<",
    " pin ",
    "pincode",
    "security code",
    "2fa-code",
    "echo x | vault",
    "| kinit",
    "mysql -px",
    "curl -u a:b",
    "\u200b",
    "\u0130",
    "\uff50",
    "a1" * 8,
]


@pytest.mark.parametrize("word", WORDS)
def test_each_word_that_a_secret_may_stand_beside_is_found_wherever_it_stands(word: str) -> None:
    assert not suspicious(PLAIN)
    for text in (word, PLAIN + word, word + PLAIN, PLAIN + word.upper() + PLAIN):
        assert suspicious(text)


def test_a_plain_text_is_passed_after_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    finds = Scan.finds

    def counted(scan: Scan, text: str) -> bool:
        scans.append(scan)
        return finds(scan, text)

    monkeypatch.setattr(Scan, "finds", counted)
    assert redact(PLAIN) is PLAIN
    assert len(scans) == 1


def test_words_are_found_literally_and_forms_as_regular_expressions() -> None:
    scan = Scan([*literally(["a.b", "<<<", "(x)", "c|d"]), "e{3}"])
    for text in ("a.b", "1 <<< 2", "(x)", "c|d", "eee", "\nz a.b"):
        assert scan.finds(text)
    for text in ("", "acb", "<<", "x", "c", "d", "ee"):
        assert not scan.finds(text)


def test_what_is_no_unicode_is_to_be_looked_at_more_closely() -> None:
    assert Scan(["a"]).finds("\ud800")
