"""The text of events, as a store keeps it: many are encoded at once, and each as it would be alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.ops import Append
from callgate.storage.encoding import decode_event, encode, encode_events, encode_ops
from tests.function_calls import count_function_calls

texts = st.text(st.characters() | st.sampled_from("\n\r\x85\u2028\ud800"), max_size=8)
payloads = st.dictionaries(texts, texts | st.integers(-(2**60), 2**60) | st.lists(texts), max_size=3)


def event(payload: Any) -> Event:
    return Event(id=ulid(), timestamp=1.5, session_id="s", type="tool.called", actor="agent", payload=payload)


@given(st.lists(payloads, max_size=5))
def test_events_encoded_together_are_what_each_is_alone(found: list[Any]) -> None:
    events = [event(payload) for payload in found]
    assert encode_events(events) == [encode(each) for each in events]


def test_json_of_a_callers_own_with_lines_in_it_stays_one_event() -> None:
    events = [event({"raw": msgspec.Raw(b'{"a":\n1}')}), event({"n": 1})]
    assert [decode_event(text).payload for text in encode_events(events)] == [{"raw": {"a": 1}}, {"n": 1}]


def test_an_event_that_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError):
        encode_events([event({"n": 1}), event({"n": object()})])


def test_many_events_are_encoded_in_few_function_calls() -> None:
    op = Append(session="s", events=tuple(event({"n": n}) for n in range(100)))
    assert count_function_calls(lambda: encode_ops([op])) <= 20
