"""Which tool of ours a tool of an agent is, so that the same rules hold for both.

    Bash, run_shell_command, ...   shell
    Write, write_file, ...         write_file       Edit, MultiEdit, replace, ...   patch_file
    Read, Grep, Glob, LS, ...      read_file, search_text, find_files, list_dir
    WebFetch                       web_fetch
    apply_patch                    by the files that it names
    mcp__server__tool              that tool, if callgate has it
    anything else                  agent_CLASS, by its declared class; execute where nothing says

Pure. Arguments that our tool does not have are left out of the call; the record names the agent's
own tool beside it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.protocol.hooks import inputs
from callgate.protocol.hooks.events import BadHookEvent, HookEvent

GENERIC = "agent_"
"""What the names of the tools for anything else begin with; their class follows."""


class Edit(msgspec.Struct, frozen=True):
    old: str
    new: str
    everywhere: bool = False


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool of ours."""

    tool: str
    arguments: dict[str, Any]
    edits: tuple[Edit, ...] = ()
    """What an edit does, where it is more than one replacement."""
    command: str | None = None
    """A command line that the agent's own process would run."""


_NAMESPACE = "functions."
"""Some models put it before the name of a tool. Before any other dot stands a name that we do not
know, and so is the tool."""

_HARMLESS = frozenset(
    ("todowrite", "todo_write", "todoread", "update_plan", "exitplanmode", "exit_plan_mode",
     "enterplanmode", "askuserquestion", "ask_user", "task", "agent", "taskoutput", "bashoutput",
     "killshell", "killbash", "taskstop", "taskcreate", "taskupdate", "tasklist", "taskget",
     "toolsearch", "think", "write_todos", "skill", "settodolist", "todo")
)  # fmt: skip
"""They change nothing themselves; what a sub-agent does comes through the hook by itself."""


def translate(event: HookEvent, classes: Mapping[str, str], agent: str) -> Translated:
    """`classes`: of tools that are none of ours, by the agent's name. Raises `BadHookEvent`."""
    make = _TOOLS.get(event.tool.lower().removeprefix(_NAMESPACE))
    if make is not None:
        return make(event)
    if event.tool.startswith("mcp__"):
        return Translated(tool=event.tool, arguments=dict(event.input))
    return generic(event, classes, agent)


def generic(event: HookEvent, classes: Mapping[str, str], agent: str) -> Translated:
    """A tool that is none of ours."""
    is_harmless = event.tool.lower() in _HARMLESS
    effect = classes.get(event.tool) or ("none" if is_harmless else "execute")
    arguments: dict[str, Any] = {"agent": agent, "name": event.tool, "input": dict(event.input)}
    given = [event.input[key] for key in inputs.PATHS if isinstance(event.input.get(key), str)]
    paths = [path if event.cwd is None else posixpath.join(event.cwd, path) for path in given]
    if paths and effect in ("read", "write"):
        arguments["paths"] = paths
    return Translated(tool=GENERIC + effect, arguments=arguments)


def _shell(event: HookEvent) -> Translated:
    command = inputs.one_of(event.input, "command", "cmd")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = _joined(command)
    if not isinstance(command, str) or not command.strip():
        raise BadHookEvent(f"A call of {event.tool} names no command.")
    arguments = {"command": command}
    given = inputs.text_of(event.input, *inputs.DIRECTORIES)
    directory = inputs.absolute(event, given) if given else event.cwd
    if directory is not None:
        arguments["cwd"] = directory
    return Translated(tool="shell", arguments=arguments, command=command)


def _joined(words: list[str]) -> str:
    is_shell = words[:1] and words[0].rpartition("/")[2] in ("bash", "sh", "zsh")
    if is_shell and len(words) == 3 and words[1] in ("-c", "-lc"):
        return words[2]
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _write(event: HookEvent) -> Translated:
    content = inputs.text_of(event.input, "content", "contents", "file_text")
    if content is None:
        raise BadHookEvent(f"A call of {event.tool} has no content.")
    return Translated(tool="write_file", arguments={"path": _path(event), "content": content})


def _edit(event: HookEvent) -> Translated:
    path, edits = _path(event), _edits(event)
    if len(edits) == 1 and not edits[0].old:
        return Translated(tool="write_file", arguments={"path": path, "content": edits[0].new})
    if len(edits) == 1 and not edits[0].everywhere:
        old, new = edits[0].old, edits[0].new
    else:
        old = "\n[...]\n".join(each.old for each in edits)
        new = "\n[...]\n".join(each.new for each in edits)
    arguments = {"path": path, "old": old, "new": new}
    return Translated(tool="patch_file", arguments=arguments, edits=edits)


def _edits(event: HookEvent) -> tuple[Edit, ...]:
    listed = inputs.one_of(event.input, "edits", "edit")
    rows = listed if isinstance(listed, list) else [listed or event.input]
    edits = []
    for row in rows:
        if not isinstance(row, dict):
            raise BadHookEvent(f"An edit of {event.tool} is not an object.")
        old, new = (
            inputs.text_of(row, "old_string", "oldString", "old", "old_str", "search"),
            inputs.text_of(row, "new_string", "newString", "new", "new_str", "replace", "content"),
        )
        if old is None or new is None:
            raise BadHookEvent(f"An edit of {event.tool} lacks the old or the new text.")
        everywhere = bool(
            row.get("replace_all")
            or row.get("replaceAll")
            or row.get("allow_multiple")
            or row.get("expected_replacements", 1) != 1
        )
        edits.append(Edit(old, new, everywhere))
    if not edits:
        raise BadHookEvent(f"A call of {event.tool} has no edits.")
    return tuple(edits)


def _path(event: HookEvent) -> str:
    path = inputs.place_of(event)
    if path is None:
        raise BadHookEvent(f"A call of {event.tool} names no file.")
    return path


def _read(event: HookEvent) -> Translated:
    return Translated(tool="read_file", arguments={"path": _path(event)})


def _list(event: HookEvent) -> Translated:
    path = inputs.place_of(event) or event.cwd or "."
    return Translated(tool="list_dir", arguments={"path": path})


def _find(event: HookEvent) -> Translated:
    pattern = inputs.text_of(event.input, "pattern", "query", "glob") or "*"
    directory, rest = inputs.split_glob(pattern)
    path = posixpath.join(inputs.place_of(event) or event.cwd or "", directory).rstrip("/") or (
        "/" if directory == "/" else "."
    )
    return Translated(tool="find_files", arguments={"pattern": rest, "path": path})


def _search(event: HookEvent) -> Translated:
    inputs.check_filters(event.input)
    arguments = {"pattern": inputs.text_of(event.input, "pattern", "query", "regex") or "*"}
    path = inputs.place_of(event) or event.cwd
    if path:
        arguments["path"] = path
    return Translated(tool="search_text", arguments=arguments)


def _fetch(event: HookEvent) -> Translated:
    url = inputs.address_of(event.input, event.tool)
    return Translated(tool="web_fetch", arguments={"url": url})


def _patch(event: HookEvent) -> Translated:
    text = inputs.text_of(event.input, "command", "patch", "input", "patchText")
    if text is None:
        raise BadHookEvent(f"A call of {event.tool} has no patch.")
    paths = [inputs.absolute(event, path) for path in inputs.patched_files(text)]
    arguments = {"agent": "codex", "name": event.tool, "input": {"patch": text}, "paths": paths}
    return Translated(tool=f"{GENERIC}write", arguments=arguments)


def _table() -> dict[str, Callable[[HookEvent], Translated]]:
    rows: tuple[tuple[Callable[[HookEvent], Translated], str], ...] = (
        (_shell, "bash shell run_shell_command exec_command local_shell run_terminal_cmd"),
        (_write, "write write_file writefile create_file"),
        (_edit, "edit multiedit multi_edit replace edit_file strreplacefile str_replace"
                " search_replace strreplace"),
        (_read, "read read_file readfile view view_file"),
        (_list, "ls list_directory list_dir list list_files"),
        (_find, "glob find_files file_search"),
        (_search, "grep grep_search search_file_content search_text"),
        (_fetch, "webfetch web_fetch fetch fetchurl fetch_url"),
        (_patch, "apply_patch applypatch"),
    )  # fmt: skip
    return {name: make for make, names in rows for name in names.split()}


_TOOLS = _table()
