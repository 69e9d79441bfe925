"""`callgate policy export` and `policy import`: saved rules as TOML, out and in.

A home keeps them in `rules.toml`; homes that share a store keep them there.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

import msgspec

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import find_shared_store
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.load import SettingsError, check_rule, read_saved_rules
from callgate.config.mirror import RULE, Mirror, SavedRule, put_rule, rules_text
from callgate.config.saved import save_rule
from callgate.core.errors import ToolErrorClass
from callgate.core.ops import DropEntry, Op
from callgate.core.stored import SharedEntry


def export(options: Namespace) -> int:
    if options.words:
        raise CliError("policy export takes no words")
    home = Home.from_environment()
    shared = find_shared_store(home)
    try:
        if shared is not None:
            sys.stdout.write(rules_text(Mirror(home, shared).read(RULE)))
        elif os.path.exists(home.saved_rules):
            with open(home.saved_rules, encoding="utf-8") as file:
                sys.stdout.write(file.read())
    except UnicodeDecodeError:
        problem = f"{home.saved_rules} is not UTF-8"
        raise CliError(problem, reason="settings_invalid") from None
    except OSError as error:
        raise _unusable(error) from error
    return OK


def import_(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("which rules? callgate policy import FILE")
    refuse_within_a_call("callgate policy import")
    (path,) = options.words
    home = Home.from_environment()
    try:
        rules = _rules(path)
        shared = find_shared_store(home)
        if shared is not None:
            added, removed = _share(Mirror(home, shared), path, rules, replace=options.replace)
        elif options.replace:
            raise CliError("--replace is for homes that share a store", hint="Edit rules.toml.")
        else:
            known = _rules(home.saved_rules) if os.path.exists(home.saved_rules) else []
            fresh = [rule for rule in rules if rule not in known]
            for rule in fresh:
                save_rule(home, rule)
            added, removed = len(fresh), 0
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except OSError as error:
        raise _unusable(error) from error
    if options.json:
        print_json({"added": added, "removed": removed})
    else:
        say(f"Rules added: {added}, removed: {removed}.")
    return OK


def _share(
    mirror: Mirror, path: str, rules: list[dict[str, Any]], *, replace: bool
) -> tuple[int, int]:
    entries = mirror.read(RULE)
    known = [_rule_of(each) for each in entries]
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    fresh = [rule for rule in rules if rule not in known]
    ops: list[Op[Any]] = [put_rule(rule, stamp) for rule in fresh]
    surplus = [
        each for each, rule in zip(entries, known, strict=True) if replace and rule not in rules
    ]
    ops += [DropEntry(kind=RULE, name=each.name, expected=each.version) for each in surplus]
    real = os.path.realpath(path)
    if real in map(os.path.realpath, mirror.edited()) and os.path.basename(real) != "rules.toml":
        mirror.change(*ops)
        os.unlink(real)  # it has been taken in
        mirror.change()
    elif ops:
        mirror.change(*ops)
    return len(fresh), len(surplus)


def _rule_of(entry: SharedEntry) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(entry.value, type=SavedRule).rule
    except (ValueError, RecursionError):
        return None


def _rules(path: str) -> list[dict[str, Any]]:
    """Raises `SettingsError` for what could not be read again once it is saved."""
    if not os.path.exists(path):
        raise CliError(f"there is no file {path}", error_class=ToolErrorClass.NOT_FOUND)
    rules = read_saved_rules(path)
    for rule in rules:
        check_rule(rule)
    return rules


def _unusable(error: OSError) -> CliError:
    return CliError(str(error), error_class=ToolErrorClass.EXECUTION_ERROR, reason="not_saved")


setattr(sys.modules[__name__], "import", import_)  # as the command is called
