"""Messages between an editor and the agent behind the proxy, and the tool of a question. Pure.

    the question of an agent, merged with earlier updates of the same tool call
        a command          -> shell
        a file and a text  -> write_file, patch_file, read_file, delete_file
        a URL              -> web_fetch
        anything else      -> agent_action, which needs approval each time

The agent's own words (title, kind) only choose between these: the policy checks the declared
input. A missing or ambiguous input becomes agent_action.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from callgate.core.patterns import compile_tokens, parse_wildcards
from callgate.features.agents.hooks.agent_tools import Translated, fits, translate_unnamed
from callgate.protocol import strict_json
from callgate.protocol.acp.client_requests import ToolState

EDITOR_REQUESTS = frozenset(
    (
        "authenticate", "logout", "auth/login", "auth/logout", "auth/status",
        "session/new", "session/load", "session/resume", "session/fork", "session/list",
        "session/close", "session/delete", "session/archive", "session/unarchive",
        "session/prompt", "session/set_mode", "session/set_config_option", "session/set_model",
        "session/set_title", "session/status",
        "providers/list", "providers/set", "providers/disable",
    )
)  # fmt: skip
"""Stable and unstable requests of editors. `mcp/message` is excluded, because the agent could use
it to call tools of the editor outside the gate."""
EDITOR_NOTIFICATIONS = frozenset({"session/cancel"})
AGENT_REQUESTS = frozenset({"elicitation/create"})
AGENT_NOTIFICATIONS = frozenset({"elicitation/complete", "auth/status_update"})
UPDATES = frozenset(
    (
        "user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call",
        "tool_call_update", "plan", "plan_update", "plan_removed", "available_commands_update",
        "current_mode_update", "config_option_update", "session_info_update", "usage_update",
        "notice", "compaction_update", "compaction_summary_chunk", "subagent_update",
        "session_message", "session_message_chunk",
    )
)  # fmt: skip
"""Kinds of `session/update` that change only the view of their session."""


def passes_from_editor(method: str, *, is_request: bool) -> bool:
    known = EDITOR_REQUESTS if is_request else EDITOR_NOTIFICATIONS
    return method in known or method.startswith("_")


def passes_from_agent(method: str, extensions: Iterable[str], *, is_request: bool) -> bool:
    """Return whether to forward a message. `extensions`: patterns of allowed extension methods."""
    if method in (AGENT_REQUESTS if is_request else AGENT_NOTIFICATIONS):
        return True
    if not method.startswith("_"):
        return False
    return any(compile_tokens(parse_wildcards(each))(method) for each in extensions)


def opens_program(params: Any) -> bool:
    """Return whether the URL of a question could open a program other than a browser.

    Examples are `file:` and `vscode:`.
    """
    url = params.get("url") if isinstance(params, dict) else None
    if url is None:
        return False
    return not isinstance(url, str) or not url.lower().startswith(("https://", "http://"))


def is_update(params: Any) -> bool:
    """Return whether the parameters of `session/update` have a known kind and a valid card id."""
    update = params.get("update") if isinstance(params, dict) else None
    if not isinstance(update, dict) or update.get("sessionUpdate") not in UPDATES:
        return False
    is_card = update["sessionUpdate"] in ("tool_call", "tool_call_update")
    return isinstance(update.get("toolCallId"), str) if is_card else "toolCallId" not in update


_TERMINAL_LOGIN = "terminal-auth"
"""Key in `_meta`: the editor runs the agent's login command in its own terminal."""


def combined(params: Any) -> dict[str, Any]:
    """Return the parameters of `initialize` for the agent.

    callgate provides files and terminals. A login in a terminal is removed, because it would start
    the agent outside the proxy.
    """
    given = dict(params) if isinstance(params, dict) else {}
    able = given.get("clientCapabilities")
    capabilities = dict(able) if isinstance(able, dict) else {}
    capabilities["fs"] = {"readTextFile": True, "writeTextFile": True}
    capabilities["terminal"] = True
    auth = capabilities.get("auth")
    if isinstance(auth, dict) and auth.get("terminal"):
        capabilities["auth"] = {**auth, "terminal": False}
    return {**given, "clientCapabilities": _without_terminal_login(capabilities)}


def guarded(answer: Any) -> Any:
    """Return the agent's answer to `initialize` for the editor.

    Logins in the editor's terminal are removed, and so is the support of the editor's MCP servers,
    whose calls would bypass the gate.
    """
    if not isinstance(answer, dict):
        return answer
    changed = dict(answer)
    methods = answer.get("authMethods")
    if isinstance(methods, list):
        allowed = [each for each in methods if not _runs_in_terminal(each)]
        changed["authMethods"] = [_without_terminal_login(each) for each in allowed]
    able = answer.get("agentCapabilities")
    servers = able.get("mcpCapabilities") if isinstance(able, dict) else None
    if isinstance(able, dict) and isinstance(servers, dict) and servers.get("acp"):
        less = {name: value for name, value in servers.items() if name != "acp"}
        changed["agentCapabilities"] = {**able, "mcpCapabilities": less}
    return changed


def _runs_in_terminal(method: Any) -> bool:
    return isinstance(method, dict) and method.get("type") == "terminal"


def _without_terminal_login(value: Any) -> Any:
    meta = value.get("_meta") if isinstance(value, dict) else None
    if not isinstance(meta, dict) or _TERMINAL_LOGIN not in meta:
        return value
    less = {name: each for name, each in meta.items() if name != _TERMINAL_LOGIN}
    return {**value, "_meta": less}


TextOf = Callable[[str, str], str | None]
"""Returns the output of a callgate terminal by terminal id and card; None for other terminals."""

_MOST_WAITING = 200
"""Maximum number of waiting updates of a card; beyond it, the second oldest is dropped."""

_log = logging.getLogger("callgate.acp")


class CardUpdates:
    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        """`send` takes the parameters of `session/update`."""
        self._send = send
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        """Waiting updates of each card with an open question."""
        self._own_cards: set[str] = set()

    def has_question(self, card: str) -> bool:
        return card in self._waiting

    @contextmanager
    def question(self, card: str) -> Iterator[None]:
        """Hold back the updates of a card while its question is open."""
        self._waiting[card] = []
        try:
            yield
        finally:
            for params in self._waiting.pop(card):
                self._send(params)

    def add_own(self, card: str) -> None:
        """Mark a card as callgate's own, which the agent must not change."""
        self._own_cards.add(card)

    def pass_on(self, params: dict[str, Any]) -> None:
        """Send an update of the agent, now or after the answer to the card's question."""
        card = card_of(params)
        if card in self._own_cards:
            _log.warning("dropped: the agent tried to change a card of callgate")
            return
        waiting = None if card is None else self._waiting.get(card)
        if waiting is None:
            self._send(params)
            return
        waiting.append(params)
        if len(waiting) > _MOST_WAITING:
            del waiting[1]  # the first update may announce the card


def card_of(params: dict[str, Any]) -> str | None:
    update = params.get("update")
    card = update.get("toolCallId") if isinstance(update, dict) else None
    return card if isinstance(card, str) else None


_LONGEST_OUTPUT = 64 * 1024


def output_of(state: Mapping[str, Any]) -> str | None:
    """Return the text of a tool's output in its last update; None if it has none."""
    texts = list(_texts(state.get("content")))
    raw = state.get("rawOutput")
    if not texts and raw:
        texts = [raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)]
    return "\n".join(texts)[:_LONGEST_OUTPUT] or None


def words_of(params: Any) -> str:
    """Return the text that the user wrote in a prompt, without the content of attachments."""
    return "\n".join(_texts(params.get("prompt") if isinstance(params, dict) else None))


def _texts(blocks: Any) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        found = block.get("content", block) if isinstance(block, dict) else None
        if isinstance(found, dict) and found.get("type") == "text":
            yield str(found.get("text", ""))


def with_texts(params: dict[str, Any], text_of: TextOf) -> dict[str, Any]:
    """Replace callgate's terminals in an update by their texts. Return `params` if unchanged."""
    update = params.get("update")
    content = update.get("content") if isinstance(update, dict) else None
    if not isinstance(update, dict) or not isinstance(content, list):
        return params
    card = str(update.get("toolCallId", ""))
    replaced = [_shown(each, card, text_of) for each in content]
    if all(new is old for new, old in zip(replaced, content, strict=True)):
        return params
    return {**params, "update": {**update, "content": replaced}}


def _shown(block: Any, card: str, text_of: TextOf) -> Any:
    if not isinstance(block, dict) or block.get("type") != "terminal":
        return block
    text = text_of(str(block.get("terminalId", "")), card)
    if text is None:
        return block
    return {"type": "content", "content": {"type": "text", "text": text}}


AGENT_ACTION = "agent_action"
SWITCH_MODE = "switch_mode"

_SHOWN_INPUT = "inputInContent"
"""Internal key of the input that the agent shows as text."""
_KINDS = {
    None: ("shell", "fetch", "write", "edit"),
    "execute": ("shell",),
    "other": ("shell",),
    "fetch": ("fetch",),
    "edit": ("write", "edit"),
    "read": ("read",),
    "delete": ("delete",),
}
"""Kind of an ACP tool call -> possible kinds of tools. A kind alone proves nothing."""


class JudgedTool(NamedTuple):
    tool: str
    arguments: dict[str, Any]


def merged(before: ToolState | None, question: ToolState) -> ToolState:
    """Merge a question or a later update into the earlier updates.

    An empty input does not replace an earlier one.
    """
    given = {key: value for key, value in question.items() if value is not None}
    given.pop(_SHOWN_INPUT, None)
    if given.get("rawInput") == {}:
        del given["rawInput"]
    if (shown := _input_in_text(given)) is not None:
        given[_SHOWN_INPUT] = shown
    return {**(before or {}), **given}


def _input_of(state: ToolState) -> dict[str, Any] | None:
    """Return the input of a tool call; None if it is not an object or differs from its text."""
    input, shown = state.get("rawInput", {}), state.get(_SHOWN_INPUT)
    if shown is not None and input in ({}, shown):
        return dict(shown)
    return input if isinstance(input, dict) and shown is None else None


def _input_in_text(state: ToolState) -> dict[str, Any] | None:
    """Return the input of a tool call that has not run, if the agent shows it as a JSON text."""
    content = state.get("content")
    if state.get("status") in ("completed", "failed") or not isinstance(content, list):
        return None
    if len(content) != 1 or not isinstance(content[0], dict):
        return None
    block = content[0].get("content")
    text = block.get("text") if isinstance(block, dict) else None
    if not isinstance(text, str) or not text.startswith("{"):
        return None
    try:
        input = strict_json.loads(text.encode("utf-8", "replace"))
    except strict_json.StrictJsonError:
        return None
    return input if isinstance(input, dict) else None


def read(state: ToolState, cwd: str) -> JudgedTool:
    """Return the tool and the arguments of a question, for the policy."""
    input, kind = _input_of(state), state.get("kind")
    if input is None or not (kind is None or isinstance(kind, str)):
        return unknown(state)
    call = translate_unnamed(input, _KINDS.get(kind, ()), cwd)
    if call is None:
        found = _from_diff(state, input, cwd)
    elif len(call.edits) > 1 or any(each.everywhere for each in call.edits):
        found = None  # `patch_file` shows one change
    else:
        found = of_hook(call, cwd)
    return found if found and _is_about_no_other(state, found, cwd) else unknown(state)


def of_hook(call: Translated, workspace: str) -> JudgedTool:
    """Return a call with absolute paths. Its directory is omitted if it is the workspace."""
    given = dict(call.arguments)
    if isinstance(path := given.get("path"), str):
        given["path"] = absolute(path, workspace)
    if isinstance(cwd := given.pop("cwd", None), str) and absolute(cwd, workspace) != workspace:
        given["cwd"] = absolute(cwd, workspace)
    return JudgedTool(call.tool, given)


def is_plain_switch(state: ToolState) -> bool:
    """Return whether a question is only about the agent's mode, with at most the text of a plan."""
    if state.get("kind") != SWITCH_MODE or state.get("locations") or _diffs(state):
        return False
    input = _input_of(state)
    return input is not None and input.keys() <= {"plan"}


def unknown(state: ToolState) -> JudgedTool:
    """Return an `agent_action` with all known details, for the approver."""
    keys = ("kind", "rawInput", _SHOWN_INPUT, "content", "locations")
    details = {key: state[key] for key in keys if key in state}
    arguments: dict[str, Any] = {"title": str(state.get("title", ""))}
    if details:
        arguments["details"] = details
    return JudgedTool(AGENT_ACTION, arguments)


def _is_about_no_other(state: ToolState, judged: JudgedTool, cwd: str) -> bool:
    """Return whether diffs and locations of a question name only the file of its input."""
    diffs, locations = _diffs(state), state.get("locations") or []
    if not isinstance(locations, list):
        return False
    shown = [each.get("path") if isinstance(each, dict) else None for each in (*diffs, *locations)]
    path = judged.arguments.get("path")
    if path is None:  # a command or a fetch must not show a diff
        return not diffs
    if not all(isinstance(each, str) and absolute(each, cwd) == path for each in shown):
        return False
    return all(_is_same_change(each, judged) for each in diffs)


def _is_same_change(diff: dict[str, Any], judged: JudgedTool) -> bool:
    """Return whether a diff contains the new text; it may include a part of the file around it."""
    new = judged.arguments.get("content", judged.arguments.get("new"))
    shown = diff.get("newText")
    return isinstance(new, str) and isinstance(shown, str) and new in shown


def _from_diff(state: ToolState, input: dict[str, Any], cwd: str) -> JudgedTool | None:
    """Read a question with a single diff, whose input names no other file."""
    diffs = _diffs(state)
    if state.get("kind") not in (None, "edit") or len(diffs) != 1:
        return None
    path, old, new = (diffs[0].get(key) for key in ("path", "oldText", "newText"))
    if not isinstance(path, str) or not path or not isinstance(new, str):
        return None
    path = absolute(path, cwd)
    if input and not (fits("diff", input) and _names_only(path, input, cwd)):
        return None
    if old is None or old == "":
        return JudgedTool("write_file", {"path": path, "content": new})
    if isinstance(old, str):
        return JudgedTool("patch_file", {"path": path, "old": old, "new": new})
    return None


def _names_only(path: str, input: dict[str, Any], cwd: str) -> bool:
    """Return whether the input of a question with a diff names only the diff's file.

    Codex names files as keys of `changes`, and may move them.
    """
    changes = input.get("changes", {})
    if not isinstance(changes, dict):
        return False
    named = [input.get("filepath", path), *changes]
    return all(isinstance(each, str) and absolute(each, cwd) == path for each in named) and all(
        isinstance(each, dict)
        and each.get("type") in ("add", "update")
        and each.keys() <= {"type", "content", "unified_diff", "move_path"}
        and each.get("move_path") is None
        for each in changes.values()
    )


def _diffs(state: ToolState) -> list[dict[str, Any]]:
    content = state.get("content")
    blocks = content if isinstance(content, list) else []
    return [each for each in blocks if isinstance(each, dict) and each.get("type") == "diff"]


def absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))
