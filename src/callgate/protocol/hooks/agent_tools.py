"""Reads a call of an agent's tool as a call of a callgate tool, so that the same rules apply.

    Bash, run_shell_command, ...   shell
    Write, write_file, ...         write_file       Edit, MultiEdit, replace, ...   patch_file
    Read, Grep, Glob, LS, ...      read_file, search_text, find_files, list_dir
    WebFetch                       web_fetch
    apply_patch                    agent_write, with the files that it names
    mcp__server__tool              that tool, if callgate has it
    other tools in `tool_tables`   agent_CLASS, by the class in the table
    anything else                  agent_CLASS, by the class in `[hooks.tools]`, else agent_execute

Pure. A call of a known tool with an argument that the table does not have, or with two arguments of
one meaning, raises `BadHookEvent`: the agent could perform another call than the one shown.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callgate.protocol.hooks import inputs
from callgate.protocol.hooks.events import BadHookEvent, HookEvent
from callgate.protocol.hooks.tool_tables import CLASSES, ToolRow, asks_itself, find_row

GENERIC = "agent_"
"""Prefix of the tools that stand for tools without a counterpart; the class follows."""


class Edit(msgspec.Struct, frozen=True):
    old: str
    new: str
    everywhere: bool = False


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a callgate tool."""

    tool: str
    arguments: dict[str, Any]
    edits: tuple[Edit, ...] = ()
    """The replacements of an edit, if there is more than one."""
    command: str | None = None
    """A command line that the agent's own process would run."""
    undecided: bool = False
    """The agent has its own check of this call: callgate may refuse the call, and never skips that
    check."""


def translate(
    event: HookEvent,
    classes: Mapping[str, str],
    agent: str,
    runs_unasked: Callable[[], bool] = lambda: False,
) -> Translated:
    """Read one call. `classes` are those of `[hooks.tools]`. `runs_unasked`: the agent's settings
    let it run commands without its own question. Raises `BadHookEvent`."""
    row = find_row(agent, event.tool)
    if event.tool in classes:
        return generic(event, classes[event.tool], agent, row)
    if row is None:
        if event.tool.startswith("mcp__"):
            return Translated(tool=event.tool, arguments=dict(event.input))
        return generic(event, "execute", agent)
    unknown = [key for key in event.input if key not in row.arguments]
    if row.kind in ("none", "skill", "network", "execute"):
        effect = _class_of(event, row, agent, unknown)
        if row.kind == "skill" and effect == "none" and runs_unasked():
            effect = "execute"
        return generic(event, effect, agent, row)
    if unknown:
        raise BadHookEvent(
            f"callgate does not know the argument {unknown[0][:80]!r} of {event.tool}, so it cannot"
            " tell what the call does. Leave it out, or update callgate."
        )
    if any(event.input.get(key) is not None for key in row.executing):
        return generic(event, "execute", agent, row)
    if row.kind in CLASSES:
        return generic(event, row.kind.removesuffix("_class"), agent, row)
    return _READERS[row.kind](event, agent)


def _class_of(event: HookEvent, row: ToolRow, agent: str, unknown: list[str]) -> str:
    if row.kind in ("network", "execute"):
        return row.kind
    executes = bool(unknown) or any(event.input.get(key) is not None for key in row.executing)
    if row.kind == "skill":
        executes = executes or not asks_itself(agent, event.permission_mode)
    return "execute" if executes else "none"


def generic(event: HookEvent, effect: str, agent: str, row: ToolRow | None = None) -> Translated:
    """Return a call of a tool without a counterpart, with its whole input."""
    arguments: dict[str, Any] = {"agent": agent, "name": event.tool, "input": dict(event.input)}
    if effect in ("read", "write"):
        paths = [inputs.absolute(event, path) for path in inputs.paths_in(event.input)]
        if len(paths) > inputs.MOST_PATHS:
            raise BadHookEvent(
                f"The input names {len(paths)} paths, more than {inputs.MOST_PATHS}."
            )
        if paths:
            arguments["paths"] = paths
    undecided = row is not None and row.kind in ("none", "skill")
    return Translated(tool=GENERIC + effect, arguments=arguments, undecided=undecided)


_LONGEST_COMMAND = 131_071
"""Linux starts no program with a longer argument."""


def _shell(event: HookEvent, agent: str) -> Translated:
    command = inputs.one_of(event.input, "command", "cmd")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = _joined(command)
    if not isinstance(command, str) or not command.strip():
        raise BadHookEvent(f"A call of {event.tool} names no command.")
    if len(command) > _LONGEST_COMMAND:
        raise BadHookEvent(
            f"The command has {len(command)} characters, and no shell takes more than"
            f" {_LONGEST_COMMAND} as one argument. Write it to a file and run that."
        )
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


def _write(event: HookEvent, agent: str) -> Translated:
    content = inputs.text_of(event.input, "content", "contents", "file_text")
    if content is None:
        raise BadHookEvent(f"A call of {event.tool} has no content.")
    if event.input.get("mode", "overwrite") != "overwrite":  # Kimi Code appends
        return generic(event, "write", agent)
    return Translated(tool="write_file", arguments={"path": _path(event), "content": content})


def _edit(event: HookEvent, agent: str) -> Translated:
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


_OLD = ("old_string", "oldString", "old", "old_str", "search")
_NEW = ("new_string", "newString", "new", "new_str", "replace")
_EVERYWHERE = ("replace_all", "replaceAll", "allow_multiple")
_EDIT_ARGUMENTS = frozenset((*_OLD, *_NEW, *_EVERYWHERE, "expected_replacements"))


def _edits(event: HookEvent) -> tuple[Edit, ...]:
    listed = inputs.one_of(event.input, "edits", "edit")
    if listed is not None and any(key in event.input for key in _EDIT_ARGUMENTS):
        raise BadHookEvent(f"A call of {event.tool} has a list of edits and an edit next to it.")
    rows = [event.input] if listed is None else listed if isinstance(listed, list) else [listed]
    edits = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadHookEvent(f"An edit of {event.tool} is not an object.")
        if row is not event.input and not row.keys() <= _EDIT_ARGUMENTS:
            raise BadHookEvent(f"An edit of {event.tool} has an argument that is not known.")
        old, new = inputs.text_of(row, *_OLD), inputs.text_of(row, *_NEW)
        if old is None or new is None:
            raise BadHookEvent(f"An edit of {event.tool} lacks the old or the new text.")
        everywhere = inputs.flag_of(row, *_EVERYWHERE)
        if row.get("expected_replacements", 1) != 1:
            everywhere = True
        edits.append(Edit(old, new, everywhere))
    if not edits:
        raise BadHookEvent(f"A call of {event.tool} has no edits.")
    return tuple(edits)


def _path(event: HookEvent) -> str:
    path = inputs.place_of(event)
    if path is None:
        raise BadHookEvent(f"A call of {event.tool} names no file.")
    return path


def _read(event: HookEvent, agent: str) -> Translated:
    return Translated(tool="read_file", arguments={"path": _path(event)})


def _list(event: HookEvent, agent: str) -> Translated:
    path = inputs.place_of(event) or event.cwd or "."
    return Translated(tool="list_dir", arguments={"path": path})


def _find(event: HookEvent, agent: str) -> Translated:
    pattern = inputs.text_of(event.input, "pattern", "glob_pattern") or "*"
    directory, rest = inputs.split_glob(pattern)
    path = posixpath.join(inputs.place_of(event) or event.cwd or "", directory).rstrip("/") or (
        "/" if directory == "/" else "."
    )
    return Translated(tool="find_files", arguments={"pattern": rest, "path": path})


def _search(event: HookEvent, agent: str) -> Translated:
    inputs.check_filters(event.input)
    arguments = {"pattern": inputs.text_of(event.input, "pattern") or "*"}
    path = inputs.place_of(event) or event.cwd
    if path:
        arguments["path"] = path
    return Translated(tool="search_text", arguments=arguments)


def _fetch(event: HookEvent, agent: str) -> Translated:
    url = inputs.address_of(event.input, event.tool)
    return Translated(tool="web_fetch", arguments={"url": url})


def _patch(event: HookEvent, agent: str) -> Translated:
    text = inputs.text_of(event.input, "command", "patch", "input", "patchText")
    if text is None:
        raise BadHookEvent(f"A call of {event.tool} has no patch.")
    paths = [inputs.absolute(event, path) for path in inputs.patched_files(text)]
    arguments = {"agent": agent, "name": event.tool, "input": {"patch": text}, "paths": paths}
    return Translated(tool=f"{GENERIC}write", arguments=arguments)


_READERS: Mapping[str, Callable[[HookEvent, str], Translated]] = {
    "shell": _shell,
    "write": _write,
    "edit": _edit,
    "read": _read,
    "list": _list,
    "find": _find,
    "search": _search,
    "fetch": _fetch,
    "patch": _patch,
}
