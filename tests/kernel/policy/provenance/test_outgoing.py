"""Destinations in outgoing texts: every spelling that a reader, a mail program or a server follows."""

from __future__ import annotations

import base64

import pytest

from callgate.policy.provenance.outgoing import addressed_in, card_numbers_in, hidden_addresses, is_address, links_in

EVE = "eve@evil.example"
BLOB = base64.b64encode(b"please open https://evil.example/x now").decode()


@pytest.mark.parametrize(
    "text",
    [
        "see https://evil.example/x",
        "see HTTPS://EVIL.example/x",
        "see http:\\\\evil.example\\x",
        "see https:/evil.example/x",
        "see https:evil.example/x",
        "see //evil.example/x",
        "see hxxps://evil.example/x",
        "see hxxp[:]//evil[.]example/x",
        "see evil[.]example/x",
        "see evil(dot)example/x",
        "see evil dot example/x",
        "see https&#58;//evil.example/x",
        "see https&colon;&sol;&sol;evil.example",
        "see https%3A%2F%2Fevil.example%2Fx",
        "see evil%2Eexample/x",
        "see ev\u200bil.example/x",
        "see evil\u3002example/x",
        "see evil\uff0eexample/x",
        "see \uff48ttps://evil.example/x",
        "see evil.example",
        "see evil.example:8443",
        "see www.evil.example",
        "see [our page](evil.example/x)",
        "![x](//evil.example/x.png)",
        '<a href="//evil.example/x">here</a>',
        "<a href=evil.example/x>here</a>",
        "<img src='https://evil.example/x.png'>",
        "see http://203.0.113.7:8080/x",
        f"data {BLOB} end",
        f"data {BLOB.rstrip('=')} end",
        "see https://user:pw@evil.example/x",
        "see \u0435vil.example/x",
    ],
)
def test_a_link_counts_in_any_spelling(text: str) -> None:
    assert links_in(text), text


@pytest.mark.parametrize(
    "text",
    [
        "All is well.",
        "Read README.md and setup.py, then src/app.ts.",
        "It costs 1,250.50 or 3.5 percent, e.g. on 12.05.2026 at 10:30.",
        "Version 1.2.3 of node.js, see section 4.2.",
        "Dear Ann, i.e. my friend, etc. Best, Bob",
        "the sum is a/b and c.d/e",
        "abcdefghijklmnopqrstuvwxyz0123456789",
        "",
    ],
)
def test_ordinary_text_has_no_link(text: str) -> None:
    assert links_in(text) == []


@pytest.mark.parametrize(
    "text",
    [
        f"Bcc: {EVE}\nHello",
        f"Hello\r\nbcc:{EVE}",
        f"hello\nCC: Ann <ann@corp.example>, Eve <{EVE}>",
        f"Reply-To: {EVE}",
        f"UPDATE users SET email = '{EVE}' WHERE id = 1",
        f"insert into recipients values ('{EVE}')",
        f'mutation {{ invite(email: "{EVE}") }}',
        f'{{"to": "{EVE}"}}',
        f'[{{"any": {{"thing": "{EVE}"}}}}]',
    ],
)
def test_an_address_counts_where_a_program_acts_on_it(text: str) -> None:
    assert EVE in addressed_in(text)


@pytest.mark.parametrize("text", [f"I met {EVE} yesterday.", f"from: {EVE}", f'"{EVE}" wrote to us', "{ broken"])
def test_an_address_in_prose_is_content(text: str) -> None:
    assert addressed_in(text) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"copy": EVE},
        {"notify": [EVE]},
        {"options": {"also": {"x": EVE}}},
        {"note": f" {EVE} "},
        {"q": "https://evil.example/hook"},
        {"label": "mailto:eve@evil.example"},
        {"extra": "+15551234567"},
        {"memo": "GB29 NWBK 6016 1331 9268 19"},
    ],
)
def test_an_address_under_any_name_is_found(arguments: dict[str, object]) -> None:
    assert len(list(hidden_addresses(arguments))) == 1


@pytest.mark.parametrize("value", ["hello", "a b@c", "12345678", "2026-05-01", "DE", "next week", "x" * 5_000, ""])
def test_other_values_are_no_addresses(value: str) -> None:
    assert not is_address(value)


def test_hostile_texts_cost_linear_time() -> None:
    for text in ("A" * 400_000, "&#58;" * 80_000, "%2E" * 130_000, "a dot " * 66_000, "[.]" * 130_000, "'a'" * 130_000):
        links_in(text)
        addressed_in(text)
    assert addressed_in("[" * 90_000) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("card 4237-4252-7456-2574, passport HGK137803", 1),
        ("4111 1111 1111 1111 and 4111111111111111", 2),
        ("4111 1111 1111 1112", 0),
        ("order 2026051200123, iban GB29 NWBK 6016 1331 9268 19", 0),
        ("0000000000000000", 0),
        ("x4111111111111111", 0),
    ],
)
def test_card_numbers_have_a_check_digit(text: str, count: int) -> None:
    assert len(card_numbers_in(text)) == count
