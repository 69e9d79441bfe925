"""Translates a call of an agent's tool to a call of a callgate tool, so that the same rules apply.

    Bash, run_shell_command, ...   shell
    Write, write_file, ...         write_file       Edit, MultiEdit, replace, ...   patch_file
    Read, Grep, Glob, LS, ...      read_file, search_text, find_files, list_dir
    WebFetch                       web_fetch
    apply_patch                    agent_write, with the files that it names
    mcp__server__tool              that tool, if callgate has it
    other tools in the table        agent_CLASS, by the class in the table
    all other tools                agent_CLASS, by the class in `[hooks.tools]`, else agent_execute

Pure. A call of a known tool raises `BadHookEvent` if it has an argument that is not in the table or
two arguments with the same meaning: the agent could run a different call than the checked one.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from callgate.features.agents.hooks import inputs
from callgate.features.agents.hooks.events import BadHookEvent, HookEvent, HookPhase
from callgate.features.agents.known import KNOWN, hooked, hooks_of
from callgate.features.agents.known.values import ToolRow, tool_rows

GENERIC = "agent_"
"""Prefix of the placeholders for tools without a counterpart; the class follows."""


CLASSES = frozenset(("none", "skill", "read_class", "write_class", "network", "execute"))
"""Kinds of tools without a counterpart among the callgate tools."""


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
    """The command line that the agent's process would run."""
    undecided: bool = False
    """Whether the agent checks this call itself. callgate may refuse the call, but its answer never
    skips the agent's check."""


def translate(
    event: HookEvent,
    classes: Mapping[str, str],
    agent: str,
    runs_unasked: Callable[[], bool] = lambda: False,
) -> Translated:
    """Translate one call. Raises `BadHookEvent`.

    `classes` is `[hooks.tools]`. `runs_unasked` returns whether the agent's settings let it run
    commands without its own question.
    """
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


def translate_unnamed(
    input: Mapping[str, Any], kinds: Iterable[str], cwd: str
) -> Translated | None:
    """Translate a call without a tool name. `kinds` are the possible kinds (`tool_rows`).

    None unless the input fits exactly one of these kinds.
    """
    event = HookEvent(phase=HookPhase.BEFORE, session="", cwd=cwd, tool="the tool", input=input)
    found = []
    for kind in kinds:
        if fits(kind, input):
            try:
                found.append(_READERS[kind](event, ""))
            except BadHookEvent:
                return None
    return found[0] if len(found) == 1 and not found[0].tool.startswith(GENERIC) else None


def _class_of(event: HookEvent, row: ToolRow, agent: str, unknown: list[str]) -> str:
    if row.kind in ("network", "execute"):
        return row.kind
    executes = bool(unknown) or any(event.input.get(key) is not None for key in row.executing)
    if row.kind == "skill":
        executes = executes or event.permission_mode not in hooks_of(agent).asking_modes
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
"""Maximum length of one argument on Linux."""


def _shell(event: HookEvent, agent: str) -> Translated:
    given = inputs.one_of(event.input, "command")
    if isinstance(given, list) and given and "=" in str(given[0]):  # as text: sets a variable
        raise BadHookEvent(f"The program of {event.tool} must not contain '='.")
    command = inputs.command_text(given)
    if command is None or not command.strip():
        raise BadHookEvent(f"A call of {event.tool} names no command.")
    shell = inputs.text_of(event.input, "shell")
    if shell is not None and shell not in inputs.SHELLS:
        raise BadHookEvent(f"The shell {shell[:80]!r} is not supported: omit the argument.")
    if len(command) > _LONGEST_COMMAND:
        raise BadHookEvent(
            f"The command has {len(command)} characters; the maximum is {_LONGEST_COMMAND}."
            " Write it to a file and run the file."
        )
    arguments = {"command": command}
    named = inputs.text_of(event.input, "directory")
    directory = inputs.absolute(event, named) if named else event.cwd
    if directory is not None:
        arguments["cwd"] = directory
    return Translated(tool="shell", arguments=arguments, command=command)


def _write(event: HookEvent, agent: str) -> Translated:
    content = inputs.text_of(event.input, "content")
    if content is None:
        raise BadHookEvent(f"A call of {event.tool} has no content.")
    if event.input.get("mode", "overwrite") != "overwrite":  # Kimi Code appends
        return generic(event, "write", agent)
    return Translated(tool="write_file", arguments={"path": _path(event), "content": content})


def _edit(event: HookEvent, agent: str) -> Translated:
    if "input" in event.input:  # Copilot CLI uses its edit tool for patches as well
        if len(event.input) > 1:
            raise BadHookEvent(f"A call of {event.tool} has both a patch and an edit.")
        return _patch(event, agent)
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


_EDIT_ARGUMENTS = frozenset(
    itertools.chain(
        *(inputs.SPELLINGS[each] for each in ("old text", "new text", "everywhere")),
        ["expected_replacements"],
    )
)


def _edits(event: HookEvent) -> tuple[Edit, ...]:
    listed = inputs.one_of(event.input, "edits")
    if listed is not None and any(key in event.input for key in _EDIT_ARGUMENTS):
        raise BadHookEvent(f"A call of {event.tool} has both a list of edits and an edit.")
    rows = [event.input] if listed is None else listed if isinstance(listed, list) else [listed]
    edits = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadHookEvent(f"An edit of {event.tool} is not an object.")
        if row is not event.input and not row.keys() <= _EDIT_ARGUMENTS:
            raise BadHookEvent(f"An edit of {event.tool} has an unknown argument.")
        old, new = inputs.text_of(row, "old text"), inputs.text_of(row, "new text")
        if old is None or new is None:
            raise BadHookEvent(f"An edit of {event.tool} lacks the old or the new text.")
        everywhere = inputs.flag_of(row, "everywhere")
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


def _delete(event: HookEvent, agent: str) -> Translated:
    return Translated(tool="delete_file", arguments={"path": _path(event)})


def _read(event: HookEvent, agent: str) -> Translated:
    return Translated(tool="read_file", arguments={"path": _path(event)})


def _list(event: HookEvent, agent: str) -> Translated:
    path = inputs.place_of(event) or event.cwd or "."
    return Translated(tool="list_dir", arguments={"path": path})


def _find(event: HookEvent, agent: str) -> Translated:
    pattern = inputs.text_of(event.input, "pattern") or "*"
    directory, glob = inputs.split_glob(pattern)
    found = [
        posixpath.join(base, directory).rstrip("/") or ("/" if directory == "/" else ".")
        for base in inputs.directories_of(event, splits=_splits_paths(agent)) or [event.cwd or ""]
    ]
    if len(found) > 1:
        return _reads(event, agent, found)
    return Translated(tool="find_files", arguments={"pattern": glob, "path": found[0]})


def _search(event: HookEvent, agent: str) -> Translated:
    inputs.check_filters(event.input)
    arguments = {"pattern": inputs.text_of(event.input, "pattern") or "*"}
    found = inputs.directories_of(event, splits=_splits_paths(agent))
    if len(found) > 1:
        return _reads(event, agent, found)
    if path := found[0] if found else event.cwd:
        arguments["path"] = path
    return Translated(tool="search_text", arguments=arguments)


def _splits_paths(agent: str) -> bool:
    hooks = KNOWN[agent].hooks if agent in KNOWN else None
    return hooks is not None and hooks.splits_paths


def _reads(event: HookEvent, agent: str, paths: list[str]) -> Translated:
    """Return a search in several directories, which callgate's own tools do not support."""
    arguments = {"agent": agent, "name": event.tool, "input": dict(event.input), "paths": paths}
    return Translated(tool=f"{GENERIC}read", arguments=arguments)


def _fetch(event: HookEvent, agent: str) -> Translated:
    url = inputs.address_of(event.input, event.tool)
    return Translated(tool="web_fetch", arguments={"url": url})


def _patch(event: HookEvent, agent: str) -> Translated:
    text = inputs.text_of(event.input, "patch")
    if text is None:
        raise BadHookEvent(f"A call of {event.tool} has no patch.")
    paths = [inputs.absolute(event, path) for path in inputs.patched_files(text)]
    arguments = {"agent": agent, "name": event.tool, "input": {"patch": text}, "paths": paths}
    return Translated(tool=f"{GENERIC}write", arguments=arguments)


_READERS: Mapping[str, Callable[[HookEvent, str], Translated]] = {
    "shell": _shell,
    "write": _write,
    "edit": _edit,
    "delete": _delete,
    "read": _read,
    "list": _list,
    "find": _find,
    "search": _search,
    "fetch": _fetch,
    "patch": _patch,
}

# --- tables -----------------------------------------------------------------------------------

_QUESTIONS = tool_rows("""
exec_approval     shell   call_id approval_id turn_id started_at_ms command cwd reason parsed_cmd
                          available_decisions proposed_execpolicy_amendment
                          proposed_network_policy_amendments ?network_approval_context
                          ?additional_permissions
patch_approval    diff    call_id turn_id started_at_ms changes reason ?grant_root
edit_preview      diff    filepath diff
delete_file       delete  path
""")
"""Inputs of ACP questions that differ from the inputs of tools: two of Codex, one of opencode, and
a deletion. A `diff` accompanies the change that it describes."""

_NAMESPACE = "functions."
"""Prefix that some models add to tool names. A tool with any other prefix is unknown."""


def find_row(agent: str, tool: str) -> ToolRow | None:
    """Return the row of an agent's tool; None if the tool is not known.

    Names of other agents' tools are unknown as well: in opencode and Vibe, `read_file` can be the
    tool `file` of a server `read`.
    """
    if not tool.isascii():  # lower case could turn such a name into a known one
        return None
    return hooks_of(agent).tools.get(tool.lower().removeprefix(_NAMESPACE))


def fits(kind: str, input: Mapping[str, Any]) -> bool:
    """Return whether some agent has a tool of this kind with all these arguments."""
    tables = (hooks.tools.values() for hooks in hooked().values())
    return any(
        row.kind == kind
        and input.keys() <= row.arguments
        and all(input.get(key) is None for key in row.executing)
        for row in itertools.chain(_QUESTIONS.values(), *tables)
    )
