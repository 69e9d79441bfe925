"""The narrowest rule that allows a recorded call: its tool, destination and command.

    a command        exactly these words
    one file         this path
    anything else    every argument, except plain texts (`CONTENT`); absent arguments must stay
                     absent
    otherwise        exactly these arguments, by their hash

The rule is limited to the workspace and the kind of caller of the record. Facts that the record
does not contain are not guessed. Programs that can do anything, for any arguments, get no rule
(`LeftOut`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from callgate.core.effects import SideEffects
from callgate.core.sessions import ResolvedPath, Root
from callgate.features.reporting.recorded_calls import (
    Lookups,
    RecordedCall,
    WorkspacePolicy,
    resolve_recorded,
)
from callgate.policy.commands import generalise, parse_pattern, read_command
from callgate.policy.rules import Outcome, Rule, is_within
from callgate.policy.shell_patterns import TooMuch, program_name, quote
from callgate.policy.shell_wrappers import commands_within

CONTENT = frozenset(
    {
        *("body", "text", "subject", "message", "content", "html", "title", "summary"),
        *("description", "comment", "note", "notes", "caption", "reason"),
    }
)
"""Parameters with content, as opposed to destinations and actions."""
_INTERPRETERS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "ash", "pwsh"),
        *("python", "pypy", "node", "deno", "bun", "perl", "ruby", "php", "lua", "tclsh", "r"),
        *("rscript", "java", "awk", "gawk", "mawk", "sed", "psql", "mysql", "sqlite", "osascript"),
        *("ssh", "eval", "source", ".", "exec", "su", "npx", "uvx", "pipx", "bunx", "find"),
        *("docker", "podman", "kubectl", "nix", "vim", "vi", "ed", "emacs"),
    }
)
"""Programs that execute their input; an approved command line says nothing about the next one."""
_WILD = set("*?")


class LeftOut(StrEnum):
    """The reason why an approved call gets no rule."""

    DESTRUCTIVE = "destructive"
    INTERPRETER = "interpreter"
    COMPOUND = "compound_command"
    REDACTED = "arguments_cut"
    TOOL = "tool_unknown"
    ALWAYS_ASKED = "always_asked"
    PROTECTED = "protected_path"
    RULE = "rule_asks"
    UNDECIDABLE = "undecidable"
    WORKSPACE = "workspace_settings"


def narrow_rule(
    call: RecordedCall, workspace: WorkspacePolicy, roots: tuple[Root, ...], lookups: Lookups
) -> Rule | LeftOut:
    """Return the rule for a call with known arguments. `roots` are the roots besides the
    workspace.
    """
    tool = call.tool
    if tool is None or _WILD & set(call.record.tool):
        return LeftOut.TOOL
    if tool.definition.always_ask or call.repaired:
        return LeftOut.ALWAYS_ASKED
    if call.destructive is not False:
        return LeftOut.DESTRUCTIVE
    base = Rule(
        decision=Outcome.ALLOW,
        tool=call.record.tool,
        caller=call.caller,
        workspace=workspace.directory,
        network=True if call.sandboxed and call.arguments.values.get("network") is True else None,
    )
    paths = _resolved_paths(call, workspace, roots, lookups)
    if isinstance(paths, LeftOut):
        return paths
    if "command" in _parameters(call) or "command" in call.arguments.values:
        return _command_rule(call, base, paths)
    plain = len(paths) == 1 and not _WILD & set(paths[0])
    if plain and call.effect is SideEffects.WRITE:
        return msgspec.structs.replace(base, path=paths[0])
    return _argument_rule(call, base, paths[0] if plain else None)


def written(rule: Rule) -> dict[str, Any]:
    """Return the keys of a rule, as in a settings file."""
    fields = {
        "decision": rule.decision.value,
        "tool": rule.tool,
        "caller": None if rule.caller is None else rule.caller.value,
        "workspace": rule.workspace,
        "command": None if rule.command is None else str(rule.command),
        "path": rule.path,
        "arguments": dict(rule.arguments) or None,
        "without": list(rule.without) or None,
        "arguments_sha256": rule.arguments_sha256,
        "network": rule.network,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _command_rule(call: RecordedCall, base: Rule, paths: list[str]) -> Rule | LeftOut:
    command = call.arguments.values.get("command")
    if not isinstance(command, str) or not call.arguments.knows("command"):
        return LeftOut.REDACTED
    if not call.arguments.knows("network"):
        return LeftOut.REDACTED
    parsed = read_command(command)
    if parsed.too_long or parsed.doubts or len(parsed.segments) != 1:
        return LeftOut.COMPOUND
    (segment,) = parsed.segments
    if segment.redirects or segment.assignments or not segment.literal or not segment.argv:
        return LeftOut.COMPOUND
    try:
        runs = [*commands_within(segment)]
    except TooMuch:
        return LeftOut.COMPOUND
    if len(runs) != 1 or _interprets(segment.argv[0]) or generalise(parsed) is None:
        return LeftOut.INTERPRETER
    if len(paths) > 1 or any(_WILD & set(each) for each in paths):
        return _exact(call, base)
    pattern = parse_pattern(" ".join(map(quote, segment.argv)))
    return msgspec.structs.replace(base, command=pattern, path=paths[0] if paths else None)


def _interprets(program: str) -> bool:
    """Whether a program executes its input: by its name, or because it is a file that
    may change.
    """
    return "/" in program or program_name(program).rstrip("0123456789.-") in _INTERPRETERS


def _argument_rule(call: RecordedCall, base: Rule, path: str | None) -> Rule | LeftOut:
    given = {
        name: value
        for name, value in call.arguments.values.items()
        if name not in CONTENT and not (path is not None and name in call.path_params)
    }
    fixed = {name: value for name, value in given.items() if value not in (None, "", [], {})}
    absent = {*_parameters(call), *given} - {*fixed, *CONTENT}
    if path is not None:
        absent -= {*call.path_params}
    if not all(map(call.arguments.knows, {*given, *absent})):
        return LeftOut.REDACTED
    texts = {name: _text(value) for name, value in sorted(fixed.items())}
    open_ended = call.tool is not None and _takes_anything(call.tool.definition.input_schema)
    if open_ended or not fixed or any(_WILD & set(text) for text in texts.values()):
        return _exact(call, base)
    return msgspec.structs.replace(base, path=path, arguments=texts, without=tuple(sorted(absent)))


def _exact(call: RecordedCall, base: Rule) -> Rule | LeftOut:
    if not call.arguments.verified:
        return LeftOut.REDACTED
    args = call.record.args.encode("utf-8", "surrogatepass")
    return msgspec.structs.replace(base, arguments_sha256=sha256(args).hexdigest())


def _resolved_paths(
    call: RecordedCall, workspace: WorkspacePolicy, roots: tuple[Root, ...], lookups: Lookups
) -> list[str] | LeftOut:
    """Return the files that a call names, in the form of a rule."""
    if not call.knows_paths:
        return LeftOut.REDACTED
    found: list[str] = []
    inside = Root(workspace.directory, writable=True)
    for path in call.paths():
        resolved = resolve_recorded(path, call.record.cwd, (inside, *roots), lookups.is_protected)
        if resolved is None or resolved.protected:
            return LeftOut.PROTECTED
        found.append(_named(resolved, workspace.directory))
    return found


def _named(resolved: ResolvedPath, workspace: str) -> str:
    return resolved.relative if is_within(resolved.real, workspace) else resolved.real


def _parameters(call: RecordedCall) -> Mapping[str, Any]:
    schema = {} if call.tool is None else call.tool.definition.input_schema
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _takes_anything(schema: Mapping[str, Any]) -> bool:
    """Whether a call may have arguments that the schema does not name."""
    return bool(schema.get("additionalProperties", False)) or "patternProperties" in schema


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
