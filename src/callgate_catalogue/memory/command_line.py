"""`callgate memory`: what agents noted for later. Read it, put it right, have it forgotten."""

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
    SettingsError,
    clip,
    columns,
    is_terminal,
    paint_for,
    print_json,
    read_settings,
    refuse_within_a_call,
    say,
    visible,
)
from callgate_catalogue.memory.store import Entry, Memory

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
    paint = paint_for(sys.stdout)
    width = max((len(entry.id) for entry in entries), default=0)
    room = columns() - width - 14 if is_terminal(sys.stdout) else None
    for entry in entries:
        text = " ".join(entry.text.split())
        shown = visible(text) if room is None else clip(text, max(room, 20))
        day = time.strftime("%Y-%m-%d", time.localtime(entry.changed))
        print(f"{paint('bold', f'{entry.id:<{width}}')}  {paint('dim', day)}  {shown}")
    if not entries:
        say("callgate: nothing is noted yet")
    return OK


def edit(options: Namespace) -> int:
    if not options.words:
        raise CliError("which entry? callgate memory edit ID [TEXT]")
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
        raise CliError("which entries? callgate memory forget ID ...")
    refuse_within_a_call("callgate memory forget")
    with _explained():
        memory, ids = _memory(options), [*dict.fromkeys(options.words)]
        for id in ids:
            memory.get(id)  # all of them, or none
        for id in ids:
            memory.forget(id, for_good=options.for_good)
    if options.json:
        print_json({"forgotten": ids})
    else:
        say(f"Forgotten: {', '.join(ids)}.")
    return OK


def _typed(entry: Entry) -> str:
    """What stdin says; at a terminal, what the person makes of it in their editor."""
    if not is_terminal(sys.stdin):
        return sys.stdin.buffer.read(_LONGEST).decode("utf-8", "replace")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise CliError("say the new text behind the id, or set EDITOR")
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


def _one(entry: Entry) -> dict[str, Any]:
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
