"""Which tool a question of an agent is about, as our policy knows it. Pure.

    what the question says, over what updates said before of the same tool call
        a command          -> shell
        a file and a text  -> write_file, patch_file, read_file, delete_file
        an address         -> web_fetch
        anything else      -> agent_action, which a person is asked about each time

An agent's own words (title, kind) choose nothing but between these: what is judged is what it
says that it will run. Where that is missing, or says two things, it is not known.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from callgate.protocol import strict_json
from callgate.protocol.acp.agent_requests import ToolState

AGENT_ACTION = "agent_action"
SWITCH_MODE = "switch_mode"

_PATHS = ("path", "file_path", "filePath", "filepath", "abs_path", "absolute_path")
_CONTENTS = ("content", "contents", "file_text")
_OLD = ("old_string", "oldString", "old_text", "oldText", "old_str")
_NEW = ("new_string", "newString", "new_text", "newText", "new_str")
_COMMANDS = ("command", "cmd")
_ALL = ("replace_all", "replaceAll", "multiple")
_DIRECTORIES = ("cwd", "workdir", "directory", "dir_path")
_SYNONYMS = (_PATHS, _CONTENTS, _OLD, _NEW, _COMMANDS, _ALL, _DIRECTORIES)
SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash"})


class JudgedTool(NamedTuple):
    tool: str
    arguments: dict[str, Any]


def merged(before: ToolState | None, question: ToolState) -> ToolState:
    """What is known of a tool call: the question's own words over what updates said before."""
    given = {key: value for key, value in question.items() if value is not None}
    known = {**(before or {}), **given}
    if "rawInput" not in given and (input := _input_in_text(given)) is not None:
        known["rawInput"] = input
    return known


def _input_in_text(state: ToolState) -> dict[str, Any] | None:
    """The input of a tool call that has not run, where an agent shows it as one text of JSON."""
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
    """The tool and the arguments by which a question is judged."""
    input = state.get("rawInput")
    fields = input if isinstance(input, dict) else {}
    found = list(_candidates(state, fields, cwd))
    if len(found) == 1 and not _is_ambiguous(fields) and _is_about_no_other(state, found[0], cwd):
        return found[0]
    return unknown(state)


def of_hook(tool: str, arguments: dict[str, Any], workspace: str) -> JudgedTool:
    """A call that the agent's hook tells of, in the form in which a question is read."""
    given = dict(arguments)
    if isinstance(path := given.get("path"), str):
        given["path"] = absolute(path, workspace)
    if isinstance(cwd := given.pop("cwd", None), str) and absolute(cwd, workspace) != workspace:
        given["cwd"] = absolute(cwd, workspace)
    return JudgedTool(tool, given)


def is_plain_switch(state: ToolState) -> bool:
    """Whether a question is about the agent's mode and nothing that it would run or change; a plan
    may come with it, which is words."""
    if state.get("kind") != SWITCH_MODE or state.get("locations") or _diffs(state):
        return False
    input = state.get("rawInput") or {}
    return isinstance(input, dict) and input.keys() <= {"plan"}


def unknown(state: ToolState) -> JudgedTool:
    """For what cannot be told: all that is known of it, for the person who is asked."""
    told = {key: state[key] for key in ("kind", "rawInput", "content", "locations") if key in state}
    arguments: dict[str, Any] = {"title": str(state.get("title", ""))}
    if told:
        arguments["details"] = told
    return JudgedTool(AGENT_ACTION, arguments)


def _candidates(state: ToolState, fields: dict[str, Any], cwd: str) -> Iterator[JudgedTool]:
    kind = state.get("kind")
    command = command_text(_first(fields, _COMMANDS))
    if command is not None:
        if kind in (None, "execute", "other"):
            yield JudgedTool("shell", {"command": command, **_directory(fields, cwd)})
        else:  # such as an edit by a command of an editor's tool: its words do not fit
            yield unknown(state)
        return
    url = fields.get("url")
    if isinstance(url, str) and kind in (None, "fetch"):
        yield JudgedTool("web_fetch", {"url": url})
        return
    path = _first(fields, _PATHS)
    if isinstance(path, str) and path:
        edit = _edit(fields, absolute(path, cwd), kind)
        if edit is not None:
            yield edit
            return
    yield from _from_diffs(state, cwd)


def _is_ambiguous(fields: dict[str, Any]) -> bool:
    """Whether nobody knows what the agent takes: two names of one argument do not say the same, or
    arguments of tools of two kinds are given."""
    given = {name: value for name, value in fields.items() if value is not None}
    for names in _SYNONYMS:
        values = [given[name] for name in names if name in given]
        if any(each != values[0] for each in values):
            return True
    kinds = (_COMMANDS, ("url",), (*_PATHS, *_CONTENTS, *_OLD, *_NEW))
    return sum(not given.keys().isdisjoint(names) for names in kinds) > 1


def _is_about_no_other(state: ToolState, judged: JudgedTool, cwd: str) -> bool:
    """Whether what the question shows beside its input names the file that is judged, if any."""
    diffs, locations = _diffs(state), state.get("locations") or []
    if not isinstance(locations, list):
        return False
    shown = [each.get("path") if isinstance(each, dict) else None for each in (*diffs, *locations)]
    path = judged.arguments.get("path")
    if path is None:  # a command or an address changes what it says, and shows no change
        return not diffs
    if not all(isinstance(each, str) and absolute(each, cwd) == path for each in shown):
        return False
    return all(_is_same_change(each, judged) for each in diffs)


def _is_same_change(diff: dict[str, Any], judged: JudgedTool) -> bool:
    """A diff shows the new text, or a part of the file around the change."""
    new = judged.arguments.get("content", judged.arguments.get("new"))
    shown = diff.get("newText")
    return isinstance(new, str) and isinstance(shown, str) and new in shown


def _edit(fields: dict[str, Any], path: str, kind: Any) -> JudgedTool | None:
    content, old, new = _first(fields, _CONTENTS), _first(fields, _OLD), _first(fields, _NEW)
    if isinstance(old, str) and isinstance(new, str) and kind in (None, "edit"):
        if any(fields.get(name) is True for name in _ALL) or content is not None:
            return None
        if not old:
            return JudgedTool("write_file", {"path": path, "content": new})
        return JudgedTool("patch_file", {"path": path, "old": old, "new": new})
    if isinstance(content, str) and kind in (None, "edit"):
        return JudgedTool("write_file", {"path": path, "content": content})
    if kind == "read" and content is None and new is None:
        return JudgedTool("read_file", {"path": path})
    if kind == "delete" and content is None and new is None:
        return JudgedTool("delete_file", {"path": path})
    return None


def _from_diffs(state: ToolState, cwd: str) -> Iterator[JudgedTool]:
    """A question that shows one change, and says no more, is about that change."""
    diffs = _diffs(state)
    if state.get("kind") not in (None, "edit") or len(diffs) != 1:
        return
    path, old, new = (diffs[0].get(key) for key in ("path", "oldText", "newText"))
    if not isinstance(path, str) or not path or not isinstance(new, str):
        return
    where = absolute(path, cwd)
    if old is None or old == "":
        yield JudgedTool("write_file", {"path": where, "content": new})
    elif isinstance(old, str):
        yield JudgedTool("patch_file", {"path": where, "old": old, "new": new})


def _diffs(state: ToolState) -> list[dict[str, Any]]:
    content = state.get("content")
    blocks = content if isinstance(content, list) else []
    return [each for each in blocks if isinstance(each, dict) and each.get("type") == "diff"]


def command_text(command: Any) -> str | None:
    """A command line as one text: of `bash -c TEXT` the text, of a list of words these, quoted."""
    if isinstance(command, str):
        return command or None
    if not isinstance(command, list) or not all(isinstance(each, str) for each in command):
        return None
    if len(command) == 3 and command[0] in SHELLS and command[1] in ("-c", "-lc"):
        return str(command[2]) or None
    return shlex.join(command) or None


def _directory(fields: dict[str, Any], cwd: str) -> dict[str, str]:
    for name in _DIRECTORIES:
        value = fields.get(name)
        if isinstance(value, str) and value and absolute(value, cwd) != cwd:
            return {"cwd": absolute(value, cwd)}
    return {}


def absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
