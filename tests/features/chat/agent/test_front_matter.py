"""The top of a SKILL.md: what is understood, and that everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.sources.skill_files import MOST_CHARS, MOST_LINES, FrontMatterError, parse_document

KEYS = ("name", "description", "delegate")


def fields(head: str) -> dict[str, str]:
    return parse_document(f"---\n{head}\n---\nbody", KEYS).fields


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("description: Plain words", "Plain words"),
        ("description:    spaces around   ", "spaces around"),
        ("description: a colon: inside, and C#", "a colon: inside, and C#"),
        ("description: text # a comment", "text"),
        ("description: '# no comment'", "# no comment"),
        ("description: 'it''s'  # really", "it's"),
        (r'description: "say \"hi\" \\ \x41\u00e4\n\t."', 'say "hi" \\ Aä\n\t.'),
        ("description: goes on\n  in the next\n  line", "goes on in the next line"),
        ("description:\n  begins below", "begins below"),
        ("description: >\n  folded\n  lines\n\n  and a paragraph", "folded lines\nand a paragraph"),
        ("description: >-\n    folded\n    deep", "folded deep"),
        ("description: |\n  kept\n    deeper\n  apart\n", "kept\n  deeper\napart"),
        ("# a comment\n\ndescription: x\n# another", "x"),
        ("metadata:\n  any: [thing]\n  - !!python/object x\ndescription: x", "x"),
        ("allowed-tools: [a, *b, &c d]\ntags:\n- one\n- two\ndescription: x", "x"),
        ("description: true", "true"),
        ("description: no", "no"),
        ("description: 2026-01-02", "2026-01-02"),
        ("description: 0x1F # hex", "0x1F"),
        ("description: ~", "~"),
        ("description: '1e3'", "1e3"),
        ("description: |\n  on", "on"),
        ('description: "\\U0001F600 \\e"', "😀 \x1b"),
        ("description: >\n  a list\n    - one\n    - two\n  ends", "a list\n  - one\n  - two\nends"),
        ("description: >+ # kept\n\n  x\n\n", "x"),
        ('description: "a: b" # c: d', "a: b"),
    ],
)
def test_what_is_understood(written: str, read: str) -> None:
    assert fields(written) == {"description": read}


@pytest.mark.parametrize(
    "head",
    [
        "description: [a, b]",
        "description: {a: b}",
        "description: &anchor x",
        "description: *alias",
        "description: !!str x",
        "description: `x`",
        "description: @x",
        "description: %x",
        'description: "open',
        "description: 'open",
        'description: "a" b',
        r'description: "\q"',
        r'description: "\ud800"',
        'description: "two\n  lines"',
        "description: >2\n  x",
        "description: |\n  deep\n not so deep",
        "description: |\n\tx",
        "description:\n- a",
        "description:\n  - a",
        "description: a\n\tb",
        "description: x\ndescription: y",
        "description: 'x'\ndescription: 'x'",
        "description: 'x'\x85delegate: true",
        'description: "x"\u2028delegate: true',
        "description: 'x', 'y'",
        'description: "x": y',
        "description: >\n  x\n y: z",
        "description: |\n  x\n--- |\n  y\n  z\x00",
        'description: "\\ud83d\\ude00"',
        "description : x",
        "description:x",
        "description",
        "- description: x",
        "  description: x",
        "<<: *all\ndescription: x",
        "? description",
        "...",
        "key with space: x\ndescription: x",
        "description: x\n\x00: y",
        "{description: x}",
    ],
)
def test_what_is_not_understood_is_refused(head: str) -> None:
    with pytest.raises(FrontMatterError):
        fields(head)


@pytest.mark.parametrize("text", ["", "no", "----\na: b\n---\n", "---\na: b\n", " ---\n---\n", "\n---\n---"])
def test_without_both_its_lines_there_is_none(text: str) -> None:
    with pytest.raises(FrontMatterError):
        parse_document(text, KEYS)


def test_the_body_begins_below_and_keeps_its_own_rules() -> None:
    text = "\ufeff---\r\ndescription: x\r\n--- \r\n\r\n# Title\r\n\r\n---\r\nname: y\r\n\r\n"
    assert parse_document(text, KEYS) == ({"description": "x"}, frozenset(), "# Title\n\n---\nname: y")


@pytest.mark.parametrize(
    "head",
    [
        "a: b\n" * (MOST_LINES + 1),
        f"description: {'x' * MOST_CHARS}",
        f"a: {'&a ' * MOST_CHARS}",
    ],
)
def test_bombs_are_refused_unread(head: str) -> None:
    with pytest.raises(FrontMatterError):
        fields(head)


@given(st.text(alphabet="ab:-#'\"\\>|&*[]{} \t\n\r\x00é\u2028", max_size=60))
def test_nothing_breaks_the_reader(head: str) -> None:
    try:
        read = parse_document(f"---\n{head}\n---\nbody", KEYS)
    except FrontMatterError:
        return
    assert set(read.fields) <= set(KEYS)


@pytest.mark.parametrize("char", [" ", "#", "'", '"', "\\", ": ", " #", "''", "- "])
def test_a_long_row_of_anything_is_read_at_once(char: str) -> None:
    for quote in ("", "'", '"'):
        try:
            fields(f"description: {quote}{char * (MOST_CHARS // len(char) - 20)}x")
        except FrontMatterError:
            pass


def test_aliases_are_never_followed() -> None:
    laughs = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))
    assert fields(f"{laughs}description: 'x'") == {"description": "x"}
    for value in ("*i", "[*i]", "&j x", '&j "x"', "!!python/name:os.system x"):
        with pytest.raises(FrontMatterError):
            fields(f"{laughs}description: {value}")
