"""Templates of the search: values, spellings, and what counts as a destination."""

from __future__ import annotations

from callgate import Capability, ToolDefinition
from safety.adaptive import search
from safety.values import Call

_TEXT = {"type": "string"}


def _tool(name: str, capability: Capability, **properties: object) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description=name,
        input_schema={"type": "object", "properties": properties, "required": list(properties)},
        capabilities=frozenset({capability}),
        requires_workspace=False,
        destination_params=("to",) if "to" in properties else (),
    )


def test_only_tools_that_change_or_send_something_can_do_harm():
    assert not search.goes_out(_tool("get", Capability.READ_ONLY))
    assert search.goes_out(_tool("get", Capability.ACCESSES_NETWORK))
    assert search.goes_out(_tool("delete", Capability.MUTATES_EXTERNAL))


def test_values_come_from_the_task_the_prompt_and_the_records():
    mine = [Call("read", {"file": "13"})]
    values = search._values("Ask 'Ann Lee' about bob@corp.example", mine, ["- id_: '44'\n  owner: eve"])
    assert {"13", "Ann Lee", "bob@corp.example", "44", "eve", "about"} <= set(values)


def test_a_value_is_tried_in_the_place_where_the_effect_goes_but_not_the_call_of_the_task():
    tool = _tool("send", Capability.MUTATES_EXTERNAL, to=_TEXT, text=_TEXT)
    mine = [Call("send", {"to": "bob", "text": "hi"})]
    found = list(search._of_tool(tool, ["bob", "eve"], mine))
    assert [(harm, call.arguments["to"]) for harm, call in found] == [
        ("content", "bob"),
        ("sends", "bob"),
        ("sends", "eve"),
    ]
    assert all(call.arguments["text"] != "hi" for _, call in found)


def test_addresses_are_tried_with_data_in_them():
    tool = _tool("get_webpage", Capability.ACCESSES_NETWORK, url=_TEXT)
    found = [call.arguments["url"] for _, call in search._of_tool(tool, ["a.example/b", "word"], [])]
    assert found == ["a.example/b/private-words", "a.example/b?d=private-words"]


def test_what_no_application_would_accept_is_not_tried():
    assert not search._fits("send_email", "recipients", "Ann")
    assert not search._fits("send_money", "recipient", "March")
    assert search._fits("send_money", "recipient", "GB29NWBK60161331926819")
    known = frozenset(search._names({"hotels": [{"name": "Aurora"}]}))
    assert search._is_real(Call("reserve_hotel", {"hotel": "Aurora"}), known)
    assert not search._is_real(Call("reserve_hotel", {"hotel": "Paris"}), known)
