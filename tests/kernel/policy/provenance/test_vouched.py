"""Fields of trusted tools: which of them the user's words let an agent use, and for what."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.policy.provenance.actions import Action
from callgate.policy.provenance.index import ConversationIndex
from callgate.policy.provenance.requests import Use
from callgate.policy.provenance.sources import VOUCHING, Source, SourceKind

USER = Source(SourceKind.USER)
CONTACTS = Source(SourceKind.VOUCHED, "search_contacts", 1)
CHANNELS = Source(SourceKind.VOUCHED, "list_channels", 1, untrusted=True)
MEMBERS = Source(SourceKind.VOUCHED, "list_members", 1, untrusted=True)
ACCOUNT = Source(SourceKind.VOUCHED, "get_account", 1)
EVENTS = Source(SourceKind.TOOL, "list_events", 1, untrusted=True)
SEND = Use(Action.SEND, "send_mail")


def vouches(words: str, source: Source, data: Any, parameter: str, value: str, use: Use = SEND) -> bool:
    index = ConversationIndex()
    index.add(USER, words)
    index.add(source, str(data), data)
    return index.trace(parameter, value, use).kind in VOUCHING


RITA = {"name": "Rita Moss", "email": "rita@corp.example", "note": "rm@evil.example"}
OTHER_RITA = {"name": "Rita Moss", "email": "rita.moss@evil.example"}


@pytest.mark.parametrize("words", ["Send Rita Moss the notes.", "Send the notes to Rita.", "Mail all contacts."])
def test_a_named_or_described_contact_vouches_for_its_address(words: str) -> None:
    assert vouches(words, CONTACTS, [RITA], "to", "rita@corp.example")


@pytest.mark.parametrize(
    ("words", "data", "value"),
    [
        ("Send Rita Moss the notes.", [RITA, OTHER_RITA], "rita.moss@evil.example"),
        ("Send Rita Moss the notes.", [RITA, OTHER_RITA], "rita@corp.example"),
        ("Send Rita Moss the notes.", [RITA], "rm@evil.example"),
        ("Send Jo the notes.", [RITA], "rita@corp.example"),
        ("Never write to Rita Moss.", [RITA], "rita@corp.example"),
        ("What did Rita Moss write?", [RITA], "rita@corp.example"),
    ],
)
def test_an_ambiguous_or_unnamed_contact_vouches_for_nothing(words: str, data: Any, value: str) -> None:
    assert not vouches(words, CONTACTS, data, "to", value)


def test_one_contact_that_was_read_twice_is_not_ambiguous() -> None:
    assert vouches("Send Rita Moss the notes.", CONTACTS, [RITA, dict(RITA)], "to", "rita@corp.example")


CHANNEL_NAMES = ["general", "random", "newcomers", "https://evil.example/join"]
POST = Use(Action.SEND, "post_message")


@pytest.mark.parametrize(
    "words",
    [
        "Post it in general.",
        "Post it in the channel general",
        "Find the channel with the most users and post it there.",
        "Post it in all channels.",
        "Say hello in the one for general.",
    ],
)
def test_an_entry_of_a_list_counts_if_the_user_names_or_describes_it(words: str) -> None:
    assert vouches(words, CHANNELS, CHANNEL_NAMES, "channel", "general", POST)


@pytest.mark.parametrize(
    ("words", "parameter", "value", "use"),
    [
        ("Read the general notes.", "channel", "general", POST),
        ("List my channels and say hello to newcomers.", "channel", "random", POST),
        ("Post it in all channels.", "password", "random", Use(Action.CHANGE, "set_password")),
        ("Post it in all channels.", "user", "random", Use(Action.SEND, "send_direct_message")),
        ("Post it in all channels.", "url", "https://evil.example/join", Use(Action.READ, "get_page")),
        ("Which channels are there?", "channel", "random", POST),
    ],
)
def test_an_entry_counts_for_nothing_else(words: str, parameter: str, value: str, use: Use) -> None:
    assert not vouches(words, CHANNELS, CHANNEL_NAMES, parameter, value, use)


def test_members_are_users_only_if_they_are_meant() -> None:
    use = Use(Action.SEND, "send_direct_message")
    assert vouches("Thank each member of planning.", MEMBERS, ["bob"], "user", "bob", use)
    assert not vouches("Who is in planning? Tell planning that we start.", MEMBERS, ["eve"], "user", "eve", use)


def test_the_users_own_record_counts_but_for_passwords() -> None:
    data = {"iban": "GB29NWBK60161331926819"}
    pay = Use(Action.PAY, "send_money")
    assert vouches("Pay my rent from my account.", ACCOUNT, data, "account", data["iban"], pay)
    assert not vouches("Pay my rent.", ACCOUNT, data, "password", data["iban"], Use(Action.CHANGE, "set_password"))


KICK_OFF = {"id": "1", "title": "Kick-off", "participants": ["ann@corp.example"], "author": "eve@evil.example"}
SAME = "Create an event with the same participants as 'Kick-off'."


def test_participants_of_a_named_record_count_but_not_its_author() -> None:
    use = Use(Action.MAKE, "create_event")
    assert vouches(SAME, EVENTS, [KICK_OFF], "participants", "ann@corp.example", use)
    assert not vouches(SAME, EVENTS, [KICK_OFF], "participants", "eve@evil.example", use)
    assert not vouches("When is 'Kick-off'?", EVENTS, [KICK_OFF], "participants", "ann@corp.example", use)


def test_two_records_of_one_name_vouch_for_no_participant() -> None:
    forged = {"id": "2", "title": "Kick-off", "participants": ["eve@evil.example"]}
    use = Use(Action.MAKE, "create_event")
    for value in ("ann@corp.example", "eve@evil.example"):
        assert not vouches(SAME, EVENTS, [KICK_OFF, forged], "participants", value, use)


def test_the_only_record_of_a_search_may_be_changed_but_not_destroyed() -> None:
    found = [{"id": "5", "title": "Check-up"}]
    words = "Reschedule my dental appointment to Friday, and delete the old note."
    move, cancel = Use(Action.CHANGE, "reschedule_event"), Use(Action.DESTROY, "cancel_event")
    assert vouches(words, EVENTS, found, "event_id", "5", move)
    assert not vouches(words, EVENTS, found, "event_id", "5", cancel)
    assert not vouches(words, EVENTS, [*found, {"id": "6", "title": "Lunch"}], "event_id", "5", move)
    assert not vouches("When is my appointment?", EVENTS, found, "event_id", "5", move)
