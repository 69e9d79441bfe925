"""The Agent Client Protocol as values: what is read, what is refused by name, what is written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.protocol.acp import client_requests, requests, updates
from callgate.protocol.acp.initialize import ClientCapabilities, Initialize, agreed, read_params, read_result
from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError


def written(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def refused(method: str, params: Any) -> str:
    with pytest.raises(RpcError) as failed:
        read_params(requests.METHODS[method].params, params)
    assert failed.value.code == INVALID_PARAMS
    return failed.value.message


def test_meta_is_never_an_argument() -> None:
    read = read_params(
        requests.NewSession,
        {"cwd": "/tmp", "mcpServers": [], "_meta": {"cwd": "/etc", "mcpServers": 1}, "meta": {"cwd": "/etc"}},
    )
    assert read == requests.NewSession(cwd="/tmp", mcp_servers=[], meta={"cwd": "/etc", "mcpServers": 1})
    assert "cwd" in refused("session/new", {"mcpServers": [], "_meta": {"cwd": "/etc"}})


@pytest.mark.parametrize("meta", [None, 5, "text", [1], {"a": {"b": 1}}])
def test_whatever_is_in_meta_is_no_reason_to_refuse(meta: Any) -> None:
    assert read_params(requests.Cancel, {"sessionId": "a", "_meta": meta}).meta == meta


def test_unknown_fields_are_passed_over_at_every_depth() -> None:
    block = {"type": "text", "text": "hi", "annotations": {"priority": 1}, "new": 1}
    read = read_params(requests.Prompt, {"sessionId": "a", "prompt": [block], "later": {"x": 1}})
    assert read == requests.Prompt(session_id="a", prompt=[updates.Text(text="hi")])


@pytest.mark.parametrize(
    ("method", "params", "place"),
    [
        ("session/new", {"cwd": 5, "mcpServers": []}, "cwd:"),
        ("session/new", {"cwd": "/", "mcpServers": {}}, "mcpServers:"),
        ("session/new", {"cwd": "/", "mcpServers": [{"name": 1}]}, "mcpServers[0].name:"),
        ("session/new", {"cwd": "/", "mcpServers": [{"name": "a", "args": [], "env": []}]}, "mcpServers[0]:"),
        (
            "session/new",
            {"cwd": "/", "mcpServers": [{"name": "a", "command": "x", "args": "-x"}]},
            "mcpServers[0].args:",
        ),
        ("session/new", {"cwd": "/", "mcpServers": [{"name": "a", "type": "http"}]}, "mcpServers[0]:"),
        ("session/new", {"cwd": "/", "mcpServers": [], "additionalDirectories": [1]}, "additionalDirectories[0]:"),
        ("session/new", ["/", []], "params:"),
        ("session/new", None, "params:"),
        ("session/prompt", {"sessionId": "a", "prompt": "hi"}, "prompt:"),
        ("session/prompt", {"sessionId": "a", "prompt": [{"type": "video"}]}, "prompt[0].type:"),
        ("session/prompt", {"sessionId": "a", "prompt": [{"text": "hi"}]}, "prompt[0]:"),
        ("session/prompt", {"sessionId": "a", "prompt": [{"type": "text"}]}, "prompt[0]:"),
        (
            "session/prompt",
            {"sessionId": "a", "prompt": [{"type": "resource", "resource": {"uri": "u"}}]},
            "prompt[0].resource:",
        ),
        ("session/set_mode", {"sessionId": "a", "modeId": None}, "modeId:"),
        ("session/set_config_option", {"sessionId": "a", "configId": "b", "value": True}, "params:"),
        ("session/set_config_option", {"sessionId": "a", "configId": "b", "value": "x", "type": "boolean"}, "params:"),
        ("session/set_config_option", {"sessionId": "a", "configId": "b", "value": 1}, "value:"),
        ("session/list", {"cursor": 5}, "cursor:"),
        ("initialize", {"protocolVersion": "1"}, "protocolVersion:"),
        ("initialize", {"protocolVersion": True}, "protocolVersion:"),
        ("initialize", {"clientCapabilities": {"fs": 5}}, "params:"),
    ],
)
def test_a_wrong_type_is_refused_by_the_place_where_it_stands(method: str, params: Any, place: str) -> None:
    assert f" {place} " in refused(method, params)


def test_a_refusal_repeats_little_and_nothing_that_acts() -> None:
    said = refused("session/prompt", {"sessionId": "a", "prompt": [{"type": "\x1b[2J" * 2_000}]})
    assert said.isprintable()
    assert len(said) < 300


@pytest.mark.spec("S2-03")
def test_the_highest_common_version_is_agreed_and_zero_is_refused() -> None:
    assert [agreed(version) for version in (1, 2, 65_535)] == [1, 1, 1]
    for version in (0, -1, 65_536):
        assert "protocolVersion" in refused("initialize", {"protocolVersion": version})


def test_every_kind_of_prompt_content_is_read() -> None:
    read = read_params(
        requests.Prompt,
        {
            "sessionId": "a",
            "prompt": [
                {"type": "text", "text": "a"},
                {"type": "image", "data": "aa==", "mimeType": "image/png"},
                {"type": "audio", "data": "aa==", "mimeType": "audio/wav"},
                {"type": "resource_link", "name": "n", "uri": "file:///a", "size": 3, "title": None},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "t", "mimeType": "text/plain"}},
                {"type": "resource", "resource": {"uri": "file:///b", "blob": "aa=="}},
            ],
        },
    )
    assert read.prompt == [
        updates.Text(text="a"),
        updates.Image(data="aa==", mime_type="image/png"),
        updates.Audio(data="aa==", mime_type="audio/wav"),
        updates.ResourceLink(name="n", uri="file:///a", size=3),
        updates.Resource(resource=updates.Contents(uri="file:///a", text="t", mime_type="text/plain")),
        updates.Resource(resource=updates.Contents(uri="file:///b", blob="aa==")),
    ]


def test_servers_of_a_client_are_programs_or_addresses() -> None:
    read = read_params(
        requests.NewSession,
        {
            "cwd": "/",
            "mcpServers": [
                {"name": "a", "command": "/bin/a", "args": ["-x"], "env": [{"name": "K", "value": "v"}]},
                {"type": "http", "name": "b", "url": "https://b", "headers": [{"name": "H", "value": "v"}]},
            ],
        },
    )
    assert read.mcp_servers == [
        requests.McpServer(name="a", command="/bin/a", args=["-x"], env=[requests.EnvVariable(name="K", value="v")]),
        requests.McpServer(name="b", type="http", url="https://b", headers=[requests.HttpHeader(name="H", value="v")]),
    ]


def test_null_is_no_server_and_no_argument() -> None:
    """Some clients write an empty list so."""
    assert read_params(requests.NewSession, {"cwd": "/", "mcpServers": None}).mcp_servers is None
    program = {"name": "a", "command": "/bin/a", "args": None, "env": None}
    address = {"type": "http", "name": "b", "url": "https://b", "headers": None}
    read = read_params(requests.LoadSession, {"sessionId": "s", "cwd": "/", "mcpServers": [program, address]})
    assert read.mcp_servers == [
        requests.McpServer(name="a", command="/bin/a"),
        requests.McpServer(name="b", type="http", url="https://b"),
    ]


def test_the_type_of_a_chosen_value_counts_only_where_it_says_boolean() -> None:
    said = {"sessionId": "s", "configId": "mode", "value": "read", "type": "select"}
    assert read_params(requests.SetConfigOption, said).value == "read"


def test_what_is_optional_in_a_block_and_does_not_fit_is_left_out() -> None:
    link = {
        "type": "resource_link",
        "name": "n",
        "uri": "u",
        "title": [],
        "description": 1,
        "mimeType": {},
        "size": 1.5,
    }
    resource = {"type": "resource", "resource": {"uri": "u", "text": "t", "mimeType": 5}}
    read = read_params(requests.Prompt, {"sessionId": "s", "prompt": [link, resource]})
    assert read.prompt == [
        updates.ResourceLink(name="n", uri="u"),
        updates.Resource(resource=updates.Contents(uri="u", text="t")),
    ]


@pytest.mark.parametrize("info", ["x", [], {}, {"name": "n"}, {"name": 1, "version": "2"}])
def test_a_client_that_says_oddly_who_it_is_has_no_name(info: Any) -> None:
    said = {"protocolVersion": 1, "clientCapabilities": {"terminal": True}, "clientInfo": info}
    expected = Initialize(protocol_version=1, client_capabilities=ClientCapabilities(terminal=True))
    assert read_params(Initialize, said) == expected


ABILITIES = (
    "reads_files",
    "writes_files",
    "has_terminals",
    "signs_in_at_a_terminal",
    "shows_notices",
    "shows_compaction",
    "shows_forms",
    "shows_output",
)


@pytest.mark.parametrize(
    ("said", "able"),
    [
        ({}, []),
        ({"fs": None, "session": None, "auth": None, "elicitation": None, "terminal": None}, []),
        ({"fs": {}, "elicitation": {}, "session": {"configOptions": {}}, "auth": {}}, []),
        ({"fs": {"readTextFile": True, "writeTextFile": False}}, ["reads_files"]),
        ({"fs": {"writeTextFile": True}, "terminal": True}, ["writes_files", "has_terminals"]),
        ({"auth": {"terminal": True}}, ["signs_in_at_a_terminal"]),
        ({"session": {"notices": {}, "compaction": {}}}, ["shows_notices", "shows_compaction"]),
        ({"session": {"configOptions": {"boolean": {}}}}, []),
        ({"elicitation": {"form": {}, "url": {}}}, ["shows_forms"]),
        ({"_meta": {"terminal_output": True}}, ["shows_output"]),
        ({"_meta": {"terminal_output": 1}}, []),
        ("all", []),
        ({"fs": True, "terminal": True}, ["has_terminals"]),
        ({"fs": {"readTextFile": "yes", "writeTextFile": True}, "terminal": {}}, ["writes_files"]),
        ({"session": {"notices": True, "compaction": {}, "configOptions": []}}, ["shows_compaction"]),
    ],
)
def test_what_a_client_does_not_say_it_cannot_do(said: Any, able: list[str]) -> None:
    read = read_params(Initialize, {"protocolVersion": 1, "clientCapabilities": said})
    assert [name for name in ABILITIES if getattr(read.capabilities, name)] == able
    assert read_params(Initialize, {"protocolVersion": 1}).capabilities == ClientCapabilities()


TEXT = updates.Text(text="hi")
HI = {"type": "text", "text": "hi"}
OPTION = updates.SelectOption(
    id="mode", name="Mode", category="mode", current_value="ask", options=[updates.Choice(value="ask", name="Ask")]
)
OPTION_WRITTEN = {
    "type": "select",
    "id": "mode",
    "name": "Mode",
    "category": "mode",
    "currentValue": "ask",
    "options": [{"value": "ask", "name": "Ask"}],
}


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (updates.UserMessageChunk(content=TEXT), {"sessionUpdate": "user_message_chunk", "content": HI}),
        (
            updates.AgentMessageChunk(content=TEXT, message_id="m"),
            {"sessionUpdate": "agent_message_chunk", "content": HI, "messageId": "m"},
        ),
        (updates.AgentThoughtChunk(content=TEXT), {"sessionUpdate": "agent_thought_chunk", "content": HI}),
        (
            updates.ToolCall(
                tool_call_id="t",
                title="Write a",
                kind="edit",
                status="pending",
                raw_input={"a": 1},
                content=[updates.Diff(path="/a", new_text="n")],
                locations=[updates.Location(path="/a", line=1)],
            ),
            {
                "sessionUpdate": "tool_call",
                "toolCallId": "t",
                "title": "Write a",
                "kind": "edit",
                "status": "pending",
                "rawInput": {"a": 1},
                "content": [{"type": "diff", "path": "/a", "newText": "n"}],
                "locations": [{"path": "/a", "line": 1}],
            },
        ),
        (
            updates.ToolCallUpdate(
                tool_call_id="t",
                status="completed",
                content=[updates.Shown(content=TEXT), updates.Terminal(terminal_id="x")],
            ),
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "t",
                "status": "completed",
                "content": [{"type": "content", "content": HI}, {"type": "terminal", "terminalId": "x"}],
            },
        ),
        (
            updates.ToolCallUpdate(tool_call_id="t", content=[], meta={"terminal_output": {"data": "x"}}),
            {
                "sessionUpdate": "tool_call_update",
                "toolCallId": "t",
                "content": [],
                "_meta": {"terminal_output": {"data": "x"}},
            },
        ),
        (
            updates.Plan(entries=[updates.PlanEntry(content="a", priority="high", status="in_progress")]),
            {"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "high", "status": "in_progress"}]},
        ),
        (
            updates.AvailableCommands(
                available_commands=[updates.Command(name="a", description="b", input=updates.CommandInput(hint="h"))]
            ),
            {
                "sessionUpdate": "available_commands_update",
                "availableCommands": [{"name": "a", "description": "b", "input": {"hint": "h"}}],
            },
        ),
        (
            updates.AvailableCommands(available_commands=[]),
            {"sessionUpdate": "available_commands_update", "availableCommands": []},
        ),
        (updates.CurrentMode(current_mode_id="ask"), {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}),
        (
            updates.ConfigOptions(config_options=[OPTION]),
            {"sessionUpdate": "config_option_update", "configOptions": [OPTION_WRITTEN]},
        ),
        (updates.SessionInfoUpdate(title=None), {"sessionUpdate": "session_info_update", "title": None}),
        (
            updates.SessionInfoUpdate(updated_at="2026-01-01T00:00:00Z"),
            {"sessionUpdate": "session_info_update", "updatedAt": "2026-01-01T00:00:00Z"},
        ),
        (
            updates.UsageUpdate(used=0, size=200, cost=updates.Cost(amount=0.5, currency="USD")),
            {"sessionUpdate": "usage_update", "used": 0, "size": 200, "cost": {"amount": 0.5, "currency": "USD"}},
        ),
        (
            updates.Notice(severity="warning", title="t"),
            {"sessionUpdate": "notice", "severity": "warning", "title": "t"},
        ),
        (
            updates.Compaction(compaction_id="c", status="completed", summary=[TEXT]),
            {"sessionUpdate": "compaction_update", "compactionId": "c", "status": "completed", "summary": [HI]},
        ),
        (
            updates.CompactionChunk(compaction_id="c", content=TEXT),
            {"sessionUpdate": "compaction_summary_chunk", "compactionId": "c", "content": HI},
        ),
    ],
)
def test_an_update_is_written_as_the_protocol_spells_it(update: Any, expected: Any) -> None:
    told = updates.SessionUpdate(session_id="s", update=update)
    assert written(told) == {"sessionId": "s", "update": expected}


def test_answers_leave_out_what_there_is_not() -> None:
    assert written(requests.SessionOpened()) == {}
    assert written(requests.Prompted(stop_reason="end_turn")) == {"stopReason": "end_turn"}
    usage = requests.Usage(total_tokens=3, input_tokens=2, output_tokens=1)
    assert written(requests.Prompted(stop_reason="refusal", usage=usage)) == {
        "stopReason": "refusal",
        "usage": {"totalTokens": 3, "inputTokens": 2, "outputTokens": 1},
    }
    listed = requests.SessionList(sessions=[requests.SessionInfo(session_id="a", cwd="/")])
    assert written(listed) == {"sessions": [{"sessionId": "a", "cwd": "/"}]}
    modes = updates.Modes(current_mode_id="ask", available_modes=[updates.Mode(id="ask", name="Ask")])
    assert written(requests.SessionMade(session_id="a", modes=modes, config_options=[OPTION])) == {
        "sessionId": "a",
        "configOptions": [OPTION_WRITTEN],
        "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}]},
    }


@pytest.mark.parametrize(
    ("asked", "method", "expected"),
    [
        (
            client_requests.ReadTextFile(session_id="s", path="/a", line=1),
            "fs/read_text_file",
            {"sessionId": "s", "path": "/a", "line": 1},
        ),
        (
            client_requests.WriteTextFile(session_id="s", path="/a", content=""),
            "fs/write_text_file",
            {"sessionId": "s", "path": "/a", "content": ""},
        ),
        (
            client_requests.CreateTerminal(
                session_id="s",
                command="ls",
                args=["-l"],
                env=[client_requests.Variable(name="A", value="b")],
                cwd="/",
                output_byte_limit=9,
            ),
            "terminal/create",
            {
                "sessionId": "s",
                "command": "ls",
                "args": ["-l"],
                "env": [{"name": "A", "value": "b"}],
                "cwd": "/",
                "outputByteLimit": 9,
            },
        ),
        (
            client_requests.TerminalOutput(session_id="s", terminal_id="t"),
            "terminal/output",
            {"sessionId": "s", "terminalId": "t"},
        ),
        (
            client_requests.WaitForExit(session_id="s", terminal_id="t"),
            "terminal/wait_for_exit",
            {"sessionId": "s", "terminalId": "t"},
        ),
        (
            client_requests.KillTerminal(session_id="s", terminal_id="t"),
            "terminal/kill",
            {"sessionId": "s", "terminalId": "t"},
        ),
        (
            client_requests.ReleaseTerminal(session_id="s", terminal_id="t"),
            "terminal/release",
            {"sessionId": "s", "terminalId": "t"},
        ),
        (
            client_requests.RequestPermission(
                session_id="s",
                tool_call=updates.ToolFields(tool_call_id="t", title="x"),
                options=[client_requests.PermissionOption(option_id="o", name="Allow", kind="allow_once")],
            ),
            "session/request_permission",
            {
                "sessionId": "s",
                "toolCall": {"toolCallId": "t", "title": "x"},
                "options": [{"optionId": "o", "name": "Allow", "kind": "allow_once"}],
            },
        ),
        (
            client_requests.AskForm(message="m", requested_schema={"type": "object"}, session_id="s", tool_call_id="t"),
            "elicitation/create",
            {
                "mode": "form",
                "message": "m",
                "requestedSchema": {"type": "object"},
                "sessionId": "s",
                "toolCallId": "t",
            },
        ),
        (
            client_requests.AskUrl(message="m", elicitation_id="e", url="https://x", request_id=0),
            "elicitation/create",
            {"mode": "url", "message": "m", "elicitationId": "e", "url": "https://x", "requestId": 0},
        ),
    ],
)
def test_what_is_asked_of_a_client_is_written_as_the_protocol_spells_it(asked: Any, method: str, expected: Any) -> None:
    assert client_requests.METHODS[type(asked)][0] == method
    assert written(asked) == expected


def test_answers_of_a_client_are_read() -> None:
    assert read_result(client_requests.TextFile, {"content": "a", "more": 1}) == client_requests.TextFile(content="a")
    assert read_result(client_requests.Done, None) == client_requests.Done()
    assert read_result(client_requests.ExitStatus, {"exitCode": 0, "signal": None}) == client_requests.ExitStatus(
        exit_code=0
    )
    output = read_result(client_requests.Output, {"output": "a", "truncated": False, "exitStatus": {"signal": "KILL"}})
    assert output == client_requests.Output(
        output="a", truncated=False, exit_status=client_requests.ExitStatus(signal="KILL")
    )
    assert read_result(client_requests.ExitStatus, {"exitCode": -1, "signal": 9}) == client_requests.ExitStatus(
        signal=9
    )
    output = read_result(client_requests.Output, {"output": "a", "truncated": False, "exitStatus": "none"})
    assert output == client_requests.Output(output="a", truncated=False)
    chosen = read_result(client_requests.PermissionAnswer, {"outcome": {"outcome": "selected", "optionId": "o"}})
    assert chosen.outcome == client_requests.Selected(option_id="o")
    assert (
        read_result(client_requests.PermissionAnswer, {"outcome": {"outcome": "cancelled"}}).outcome
        == client_requests.Cancelled()
    )


@pytest.mark.parametrize(
    ("wanted", "result"),
    [
        (client_requests.PermissionAnswer, {"outcome": {"outcome": "allowed"}}),
        (client_requests.PermissionAnswer, {"outcome": {"outcome": "selected"}}),
        (client_requests.PermissionAnswer, {"outcome": "selected"}),
        (client_requests.PermissionAnswer, True),
        (client_requests.TextFile, {"content": None}),
        (client_requests.TextFile, None),
        (client_requests.Output, {"output": "a", "exitStatus": {"exitCode": -1}}),
        (client_requests.TerminalMade, []),
    ],
)
def test_a_wrong_answer_of_a_client_is_a_failure(wanted: type, result: Any) -> None:
    with pytest.raises(RpcError) as failed:
        read_result(wanted, result)
    assert failed.value.code == INTERNAL_ERROR


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "sessionId",
                    "cwd",
                    "mcpServers",
                    "prompt",
                    "type",
                    "text",
                    "name",
                    "value",
                    "protocolVersion",
                    "_meta",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(requests.METHODS)), ANY)
def test_any_parameters_are_read_or_refused(method: str, params: Any) -> None:
    try:
        read = read_params(requests.METHODS[method].params, params)
    except RpcError as error:
        assert (error.code, error.message.isprintable()) == (INVALID_PARAMS, True)
    else:
        assert isinstance(read, requests.METHODS[method].params)
