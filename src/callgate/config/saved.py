"""Saved approvals, as rules that the user can read and edit.

A saved rule is bound to a pattern of the arguments, never to the tool alone. `policy.commands`
generalizes commands and paths; any other approval covers exactly these arguments. Rules are written
without tomlkit, whose import takes 50 ms.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from callgate.config.home import Home, alone_in
from callgate.config.stores import configured_store, shared_homes
from callgate.core.calls import ToolCall
from callgate.core.commands import CONNECT_HOST
from callgate.core.local.disk import write_private_synced
from callgate.core.sessions import ResolvedPath, pool_workspace
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.subjects import Subject
from callgate.policy.commands import generalise, parse_pattern, read_command
from callgate.policy.rules import Outcome, is_within


def rule_text(rule: Mapping[str, Any], stamp: str) -> str:
    """Return one `[[rules]]` table, with a comment that has the time."""
    return "\n".join([f"\n# saved {stamp}", "[[rules]]", *rule_lines(rule)]) + "\n"


def rule_lines(rule: Mapping[str, Any]) -> list[str]:
    """Return the keys of a rule, one per line."""
    return [f"{key} = {_toml(value)}" for key, value in rule.items()]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{_toml(key)} = {_toml(each)}" for key, each in value.items())
        return "{" + ", ".join(entries) + "}"
    # A JSON string is a TOML basic string, except for DEL and a few escapes JSON does not need.
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    """Escape an invisible character within a string."""
    return char if char.isprintable() else f"\\U{ord(char):08x}"


def saved_rule(
    *,
    tool: str,
    decision: Outcome,
    workspace: str,
    arguments: Mapping[str, Any],
    arguments_sha256: str,
    resolved_paths: tuple[ResolvedPath, ...],
    pattern: str | None = None,
    network: bool = False,
) -> dict[str, Any]:
    """Return the keys of the rule that an `always` answer to this call creates."""
    here = workspace if pool_workspace(workspace) else os.path.realpath(workspace)
    rule: dict[str, Any] = {"decision": decision.value, "tool": tool, "workspace": here}
    if tool == CONNECT_HOST:
        return {**rule, "arguments": {"host": pattern or arguments["host"]}}
    if network:
        rule["network"] = True
    names = [_named(resolved, here) for resolved in resolved_paths]
    plain = not any(set("*?") & set(name) for name in names)
    command = arguments.get("command")
    if isinstance(command, str):
        suggested = pattern or generalise(read_command(command))
        if suggested is not None and plain and len(resolved_paths) <= 1:
            parse_pattern(suggested)  # raises ValueError now, not at the next start
            where = {"path": names[0]} if resolved_paths else {}
            return {**rule, "command": suggested, **where}
    elif len(resolved_paths) == 1 and (pattern or plain):
        return {**rule, "path": pattern or names[0]}
    return {**rule, "arguments_sha256": arguments_sha256}


def _named(resolved: ResolvedPath, workspace: str) -> str:
    """Return a path as in a rule: relative in the workspace, absolute elsewhere."""
    inside = pool_workspace(workspace) is not None or is_within(resolved.real, workspace)
    return resolved.relative if inside else resolved.real


def save_rule(home: Home, rule: Mapping[str, Any]) -> None:
    """Append a rule to the home's `rules.toml`, or to the rules that several homes share.

    Blocks during the write to a shared store. Raises `OSError` if the rule is not saved.
    """
    save_rules(home, [rule])


def save_rules(home: Home, rules: Sequence[Mapping[str, Any]]) -> None:
    """Append rules, all of them or none; otherwise like `save_rule`."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    shared = configured_store(home)
    if shared is not None:
        shared_homes().save_rules(home, shared, rules, stamp)
        return
    home.make()
    with alone_in(home.path):
        path = os.path.realpath(home.saved_rules)  # a link remains a link
        added = "".join(rule_text(rule, stamp) for rule in rules)
        write_private_synced(path, _text(path) + added)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "is not UTF-8", path) from None


def save_answer(home: Home, call: ToolCall, subject: Subject, answer: Answer) -> None:
    """Append the rule that an `always` answer to a call creates."""
    rule = saved_rule(
        tool=subject.tool.name,
        decision=answer.decision,
        workspace=call.session.workspace,
        arguments=subject.checked.arguments,
        arguments_sha256=subject.checked.sha256,
        resolved_paths=subject.resolved_paths,
        pattern=answer.pattern,
        network=subject.widened,
    )
    save_rule(home, rule)
