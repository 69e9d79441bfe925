"""`callgate memory`: list, edit and delete the notes of agents."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callgate import ToolError, ToolErrorClass
from callgate.packs.commands import CliError
from callgate.packs.processes import without_secrets_keys
from callgate.packs.terminal import (
    OK,
    Cell,
    Column,
    SettingsError,
    is_terminal,
    print_json,
    print_rows,
    read_settings,
    refuse_within_a_call,
    say,
)
from callgate_catalogue.memory.store import Memory, MemoryEntry

_LONGEST = 1024 * 1024


def list(options: Namespace) -> int:
    if options.words:
        raise CliError(
            f"memory list takes no {options.words[0]!r}", hint="See callgate memory list --help."
        )
    with _explained():
        scopes = () if options.scope is None else (options.scope,)
        entries = _memory(options).entries(*scopes)
    if options.json:
        print_json([_one(entry) for entry in entries])
        return OK
    rows = [
        (
            Cell(entry.id, "bold"),
            Cell(time.strftime("%Y-%m-%d", time.localtime(entry.changed)), "dim"),
            " ".join(entry.text.split()),
        )
        for entry in entries
    ]
    print_rows((Column("id"), Column("changed"), Column("text")), rows)
    if not entries:
        say("callgate: there are no notes yet")
    return OK


def edit(options: Namespace) -> int:
    if not options.words:
        raise CliError("an id is missing: callgate memory edit ID [TEXT]")
    refuse_within_a_call("callgate memory edit")
    id, *words = options.words
    with _explained():
        memory = _memory(options)
        entry = memory.get(id)
        text = " ".join(words) if words else _typed(entry)
        changed = text.strip() != entry.text
        if changed:
            entry = memory.replace(id, text)
    if options.json:
        print_json(_one(entry))
    else:
        say(f"{entry.id} is changed." if changed else f"{entry.id} stays as it is.")
    return OK


def forget(options: Namespace) -> int:
    if not options.words:
        raise CliError("ids are missing: callgate memory forget ID ...")
    refuse_within_a_call("callgate memory forget")
    with _explained():
        memory, ids = _memory(options), [*dict.fromkeys(options.words)]
        for id in ids:
            memory.get(id)  # all or none
        for id in ids:
            memory.forget(id, for_good=options.for_good)
    if options.json:
        print_json({"forgotten": ids})
    else:
        say(f"Forgotten: {', '.join(ids)}.")
    return OK


def _typed(entry: MemoryEntry) -> str:
    """Return the text from stdin; at a terminal, from the person's editor."""
    if not is_terminal(sys.stdin):
        return sys.stdin.buffer.read(_LONGEST).decode("utf-8", "replace")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise CliError("the new text is missing: add it after the id, or set EDITOR")
    with tempfile.TemporaryDirectory(prefix="callgate-") as directory:
        path = os.path.join(directory, f"{entry.id}.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(entry.text + "\n")
        try:
            command = [*shlex.split(editor), path]
            env = without_secrets_keys(os.environ)
            ended = subprocess.run(command, env=env, check=False).returncode
        except (OSError, ValueError) as error:
            raise CliError(f"{editor} cannot be run: {error}") from None
        if ended != 0:
            raise CliError(
                f"{editor} ended with {ended}; nothing is changed",
                error_class=ToolErrorClass.EXECUTION_ERROR,
            )
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST)


def _memory(options: Namespace) -> Memory:
    workspace = os.path.abspath(os.path.expanduser(options.workspace))
    if not os.path.isdir(workspace):
        raise CliError(f"--workspace: {workspace} is not a directory")
    home, table = read_settings("memory")
    return Memory(home, workspace, max_entries=table.max_entries, max_chars=table.max_chars)


def _one(entry: MemoryEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "scope": entry.scope,
        "content": entry.text,
        "changed": entry.changed,
    }


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise CliError(
            error.message,
            hint="callgate memory list lists the entries."
            if error.reason in ("unknown_entry", "invalid_id")
            else None,
            error_class=error.error_class,
            reason=error.reason or "memory",
        ) from None
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
