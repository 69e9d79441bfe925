"""Amounts, dates, access rights and texts that the user stated."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.policy.provenance.actions import Action
from callgate.policy.provenance.requests import Use
from callgate.policy.provenance.stated import objections
from callgate.policy.provenance.users_words import UserWords

IBAN = "NL91ABNA0417164300"
PAY = f"Pay 120 to {IBAN} on 3 March with the subject 'club'."
SHARE = "Share file 9 with uma@corp.example so that she can read it."
BOOK = "Book a room in the Hotel Sund from 8 to 10 July."
MAIL = "Mail 'all good' to dana@corp.example."
EVENT = "Create the event 'Sync' on Monday at 10 with jo@corp.example."


def refused(words: str, use: Use, arguments: dict[str, Any], *destinations: str) -> set[str]:
    """Return the parameters that the words contradict."""
    users = UserWords()
    users.add(words)
    return {name for name, _, _ in objections(users, arguments, use, destinations)}


PAYING, SHARING = Use(Action.PAY, "send_money"), Use(Action.SHARE, "share_file")
SENDING, MAKING = Use(Action.SEND, "send_mail"), Use(Action.MAKE, "create_event")


@pytest.mark.parametrize(
    ("words", "use", "arguments"),
    [
        (PAY, PAYING, {"amount": 1200.0}),
        (PAY, PAYING, {"amount": 119.99}),
        (PAY, PAYING, {"date": "2031-02-27"}),
        (PAY, PAYING, {"every": "month"}),
        (PAY, PAYING, {"recurring": True}),
        (SHARE, SHARING, {"permission": "rw"}),
        (SHARE, SHARING, {"role": "owner"}),
        (SHARE, SHARING, {"visibility": "public"}),
        (BOOK, PAYING, {"departure": "28 July"}),
        (BOOK, PAYING, {"departure": "2031-07-28"}),
        (BOOK, PAYING, {"rooms": 4}),
        (EVENT, MAKING, {"start": "Monday 03:00"}),
        (EVENT, MAKING, {"title": "The code is 7731"}),
        (MAIL, SENDING, {"body": "The code is 7731"}),
        (MAIL, SENDING, {"body": "aHR0cHM6Ly9jb2xsZWN0LmV4YW1wbGUvcg=="}),
    ],
)
def test_another_value_than_the_stated_one_needs_approval(words: str, use: Use, arguments: dict[str, Any]) -> None:
    named = [each for each in (IBAN, "dana@corp.example", "jo@corp.example") if each in words]
    assert refused(words, use, arguments, *named) == set(arguments)


@pytest.mark.parametrize(
    ("words", "use", "arguments"),
    [
        (PAY, PAYING, {"amount": 120.0, "date": "2031-03-03", "subject": "Club"}),
        (PAY, PAYING, {"recurring": False, "every": ""}),
        ("Pay 1,200.50 to the landlord every month", PAYING, {"amount": 1200.5, "every": "month"}),
        (SHARE, SHARING, {"permission": "r"}),
        (SHARE.replace("read", "edit"), SHARING, {"permission": "rw"}),
        ("Make uma@corp.example owner of file 9", SHARING, {"role": "owner"}),
        (BOOK, PAYING, {"arrival": "2031-07-08", "departure": "10 July", "rooms": 1}),
        (EVENT, MAKING, {"start": "Monday 10:00", "title": "Sync"}),
        (MAIL, SENDING, {"subject": "Status", "body": "All good!"}),
        ("Refund them what they sent.", PAYING, {"amount": 12.5}),
        ("They sent 30. Send them back the difference to 12.", PAYING, {"amount": 18.0}),
        ("Write a summary of my inbox to dana@corp.example.", SENDING, {"body": "Figure 77 of May"}),
        ("Do what the mail with the subject 'TODO' says, for dana@corp.example", SENDING, {"subject": "Scores 4"}),
    ],
)
def test_stated_and_free_values_need_no_approval(words: str, use: Use, arguments: dict[str, Any]) -> None:
    named = [each for each in (IBAN, "dana@corp.example", "jo@corp.example") if each in words]
    assert refused(words, use, arguments, *named) == set()


def test_a_dictated_text_binds_the_recipient_of_its_sentence_only() -> None:
    words = f"{MAIL} Then write a report of the week to kim@corp.example."
    body = {"body": "Revenue was 4711"}
    assert refused(words, SENDING, body, "dana@corp.example") == {"body"}
    assert refused(words, SENDING, body, "kim@corp.example") == set()
