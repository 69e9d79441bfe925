"""Answers that a person gave for good, written down as rules they can read and edit.

A saved rule is bound to a pattern of the arguments, never to the tool alone: what a command
or a path generalises to is decided by `policy.commands`, anything else is remembered as
exactly these arguments.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from callgate.config.home import Home
from callgate.config.locks import alone_in
from callgate.config.rule_texts import rule_text
from callgate.config.stores import configured_store
from callgate.core.calls import ToolCall
from callgate.core.directories import write_private_synced
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import pool_workspace
from callgate.dispatch.permission.confirmations import Answer
from callgate.dispatch.subjects import Subject
from callgate.policy.commands import generalise, parse_pattern, read_command
from callgate.policy.rules import Outcome, is_within


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
) -> dict[str, str | bool]:
    """The keys of the rule that an `always` answer to this call becomes."""
    here = workspace if pool_workspace(workspace) else os.path.realpath(workspace)
    rule: dict[str, str | bool] = {"decision": decision.value, "tool": tool, "workspace": here}
    if network:
        rule["network"] = True
    names = [_named(resolved, here) for resolved in resolved_paths]
    plain = not any(set("*?") & set(name) for name in names)
    command = arguments.get("command")
    if isinstance(command, str):
        suggested = pattern or generalise(read_command(command))
        if suggested is not None and plain and len(resolved_paths) <= 1:
            parse_pattern(suggested)  # a ValueError now, not at the next start
            where = {"path": names[0]} if resolved_paths else {}
            return {**rule, "command": suggested, **where}
    elif len(resolved_paths) == 1 and (pattern or plain):
        return {**rule, "path": pattern or names[0]}
    return {**rule, "arguments_sha256": arguments_sha256}


def _named(resolved: ResolvedPath, workspace: str) -> str:
    """How a rule names a place: relative in the workspace, in full elsewhere."""
    inside = pool_workspace(workspace) is not None or is_within(resolved.real, workspace)
    return resolved.relative if inside else resolved.real


def save_rule(home: Home, rule: Mapping[str, Any]) -> None:
    """Append a rule to the home's `rules.toml`, or to the rules that several homes share.

    Blocks while the shared store is written. `OSError` where it is not saved."""
    save_rules(home, [rule])


def save_rules(home: Home, rules: Sequence[Mapping[str, Any]]) -> None:
    """Append rules, all of them or none; otherwise as `save_rule`."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    shared = configured_store(home)
    if shared is not None:
        from callgate.config.mirror import Mirror, put_rule  # lazy: most homes share nothing  # noqa: PLC0415

        Mirror(home, shared).change(*(put_rule(rule, stamp) for rule in rules))
        return
    home.make()
    with alone_in(home.path):
        path = os.path.realpath(home.saved_rules)  # a link stays one
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
    """Append the rule that an `always` answer to a call becomes."""
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
