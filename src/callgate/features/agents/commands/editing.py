"""Installation of a hook: the edit of the agent's settings and its undo, and the hook's scripts.

    before + entries -> after        recorded in HOME/hooks/AGENT/installed.json
    after unchanged  -> before, byte for byte;   changed since -> without callgate's entries

A file is replaced atomically and keeps its mode; a link is followed. Two marker lines enclose
callgate's tables in TOML.

Two layers turn each failure into a refusal in the agent's own format:

    settings   $(HOOK pre) || printf REFUSAL   the script is missing, was killed, or failed
    script     answer=$(timeout ... client)    the client crashed, hung, or truncated its answer

A failure after a call or at a prompt prints nothing: a finished call cannot be refused, and the
prompt reaches the agent. Without its words the guard asks more.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import os
import secrets
import shlex
import shutil
import stat
import sys
import tomllib
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from callgate.cli.errors import CliError
from callgate.core.local.disk import make_private_directory, write_private
from callgate.features.agents.commands import hook_client
from callgate.features.agents.hooks import events
from callgate.features.agents.hooks.jsonc_edits import (
    NotJson,
    parse,
    value_of,
    with_first_member,
    with_item,
    without_items,
)
from callgate.features.agents.known import (
    DIRECTORY,
    hook_directory,
    hook_name,
    hooks_of,
    open_regular,
    token_file,
)
from callgate.features.agents.known.values import Entry, HookFile, Phase

CLIENT_S, SCRIPT_S, AGENT_S = 5, 10, 15
"""Additional waiting time of the client, the script and the agent after the time limit for a
person's answer. Each gives up before the next one does."""
SILENT = "callgate gave no answer, so nothing was run: see callgate hook status."

_SCRIPT = """\
#!/bin/sh
# callgate's hook for {agent}. Made by callgate hook install; callgate hook remove removes it.
phase=${{1:-pre}}
answer=$({timeout} {python} -I -S {client} {agent} "$phase" {directory} {template} {client_s} \\
  2>/dev/null
  printf 'rc%s' "$?")
case $answer in
*rc0) printf '%s' "${{answer%rc0}}" ;;
*) [ "$phase" = post ] || [ "$phase" = prompt ] || printf '%s' {refusal} ;;
esac
exit 0
"""
_RUN = """\
#!/bin/sh
# Runs the command of one ticket in callgate's sandbox; each ticket counts once.
exec {python} -I -S {client} {agent} run {directory} "$1"
"""


def write_scripts(home: str, agent: str, wait_s: float, *, new_token: bool = False) -> None:
    """Write the files of an agent's hook into callgate's home. Idempotent.

    An existing token stays. `new_token` replaces it, because other processes may know it.
    """
    directory = hook_directory(home, agent)
    make_private_directory(directory)
    token = token_file(home, agent)
    if new_token or not os.path.exists(token):
        write_private(token, secrets.token_urlsafe(32) + "\n")
    for name, text in script_texts(home, agent, wait_s).items():
        path = os.path.join(directory, name)
        write_private(path, text)
        os.chmod(path, 0o700)


def script_texts(home: str, agent: str, wait_s: float) -> dict[str, str]:
    """Return the scripts of an agent's hook by name."""
    values = {
        "agent": agent,
        "python": shlex.quote(_python()),
        "client": shlex.quote(os.path.abspath(hook_client.__file__)),
        "directory": shlex.quote(os.path.join(home, DIRECTORY)),
        "template": shlex.quote(_template(agent)),
        "refusal": shlex.quote(_silent(agent)),
        "timeout": _timeout(math.ceil(wait_s) + SCRIPT_S),
        "client_s": math.ceil(wait_s) + CLIENT_S,
    }
    return {"hook": _SCRIPT.format(**values), "run": _RUN.format(**values)}


def _timeout(seconds: int) -> str:
    """Return the command that stops a hanging client; empty if `timeout` is not installed.

    It contains the program's path, because a repository's settings may set PATH for the hook.
    """
    found = shutil.which("timeout")
    return "" if found is None else f"{shlex.quote(os.path.realpath(found))} -s KILL {seconds}"


def _python() -> str:
    """Return the interpreter, without links: a virtual environment's link could be replaced."""
    return os.path.realpath(sys.executable)


def _template(agent: str) -> str:
    return events.refusal(agent, hook_client.REASON).decode()


def _silent(agent: str) -> str:
    return events.refusal(agent, SILENT).decode()


def command(home: str, agent: str, phase: str) -> str:
    """Return the shell command in an agent's settings."""
    hook = shlex.quote(os.path.join(hook_directory(home, agent), "hook"))
    if phase != "pre":
        return f"{hook} {phase} || :"
    refusal = shlex.quote(_silent(agent))
    return f"a=$({hook} pre) && printf '%s' \"$a\" || printf '%s' {refusal}"


class Installed(msgspec.Struct, frozen=True):
    path: str
    before: str | None
    """None: there was no file."""
    after_sha256: str
    url: str | None = None
    """URL of an HTTP hook, which only older versions installed."""


class Edit(msgspec.Struct, frozen=True):
    path: str
    before: str | None
    after: str | None
    """None: the file is removed."""

    @property
    def changes(self) -> bool:
        return self.after != self.before


def remember(home: str, agent: str, edit: Edit, original: str | None) -> None:
    """Store the text to restore: the text before the first installation, else `original`."""
    known = remembered(home, agent)
    others = [each for each in known if each.path != edit.path]
    first = next((each for each in known if each.path == edit.path), None)
    before = original
    if first is not None and first.after_sha256 == hash_of(edit.before):
        before = first.before
    others.append(Installed(edit.path, before, hash_of(edit.after)))
    _keep(home, agent, others)


def remembered(home: str, agent: str) -> list[Installed]:
    try:
        with open(_record(home, agent), "rb") as file:
            return msgspec.json.decode(file.read(), type=list[Installed])
    except (OSError, ValueError, RecursionError):
        return []


def forget(home: str, agent: str, path: str) -> None:
    _keep(home, agent, [each for each in remembered(home, agent) if each.path != path])


def _keep(home: str, agent: str, installed: list[Installed]) -> None:
    write_private(_record(home, agent), msgspec.json.encode(installed).decode())


def _record(home: str, agent: str) -> str:
    return os.path.join(hook_directory(home, agent), "installed.json")


def hash_of(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()


BEGIN, END = "# callgate begin", "# callgate end"


def with_block(agent: str, text: str, tables: str) -> str:
    """Append callgate's tables to the text. Raises `CliError`."""
    gap = "" if not text or text.endswith("\n") else "\n"
    new = f"{text}{gap}{BEGIN}\n{tables}\n{END}\n"
    try:
        tomllib.loads(new)
    except (ValueError, RecursionError) as error:
        raise CliError(
            f"a [[hooks]] table cannot be added to the settings of {agent}: {error}",
            hint="Write the hooks in this file as [[hooks]] tables.",
        ) from None
    return new


def without_blocks(agent: str, text: str, is_ours: Callable[[Any], bool]) -> str:
    """Return the text without callgate's block.

    Raises `CliError` if this would change more than callgate's hooks.
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.strip() == (END if inside else BEGIN):
            inside = not inside
        elif not inside:
            lines.append(line)
    after = "".join(lines)
    if inside or _meaning(agent, after) != _meaning(agent, text, is_ours):
        raise CliError(
            f"in the settings of {agent}, the lines {BEGIN!r} and {END!r} do not enclose exactly"
            " callgate's hooks, so nothing was changed",
            hint="Put these two lines around callgate's [[hooks]] alone, or remove the hooks with"
            " an editor.",
        )
    return after


def _meaning(
    agent: str, text: str, is_ours: Callable[[Any], bool] = lambda hook: False
) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"the settings of {agent} are not TOML: {error}") from None
    if isinstance(hooks := found.get("hooks"), list):
        left = [each for each in hooks if not is_ours(each)]
        found = (
            {**found, "hooks": left} if left else {k: v for k, v in found.items() if k != "hooks"}
        )
    return found


def read(path: str) -> str | None:
    """Return the text of a settings file; None if it does not exist."""
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text: nothing was changed") from None
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror or error}") from None


def with_hook(agent: str, home: str, text: str, wait_s: float) -> str:
    """Return an agent's settings with callgate's hook, exactly once. Raises `CliError`."""
    file = hooks_of(agent).file
    if file.program is not None:
        if text.strip() and not entries(agent, text, home):
            raise CliError(
                f"a {_kind(file)} of this name exists and is not callgate's: nothing was changed"
            )
        return file.program(_entry(agent, home, "pre", wait_s))
    text = without_hook(agent, home, text)
    if file.table is not None:
        return with_block(agent, text, _toml_tables(agent, home, wait_s))
    try:
        for event, phase in file.events:
            entry = file.entry(_entry(agent, home, phase, wait_s))
            text = with_item(text, ("hooks", event), entry)
        if file.has_version and "version" not in value_of(text, parse(text)):
            text = with_first_member(text, "version", 1)
        parse(text)  # an unreadable file would disable all hooks of the agent
    except NotJson as error:
        raise CliError(f"the settings of {agent} cannot be edited: {error}") from None
    return text


def _kind(file: HookFile) -> str:
    return "program" if file.is_executable else "plugin"


def with_settings(agent: str, text: str, settings: Sequence[tuple[str, Any]]) -> str:
    """Return an agent's settings with additional members. Raises `CliError` for a conflict."""
    for name, value in settings:
        found = value_of(text, parse(text))
        if name not in found:
            text = with_first_member(text, name, value)
        elif found[name] != value:
            raise CliError(
                f"the settings of {agent} have another value of {name}: change it with an editor"
            )
    return text


def expected(agent: str, home: str, wait_s: float) -> dict[str, Any]:
    """Return callgate's hook before a call, in the form of `entries` after an installation."""
    file, entry = hooks_of(agent).file, _entry(agent, home, "pre", wait_s)
    if file.program is not None:
        return {_kind(file): file.program(entry)}
    if file.table is not None:
        found: dict[str, Any] = tomllib.loads(_toml_tables(agent, home, wait_s))["hooks"][0]
        return found
    return file.entry(entry)


def _entry(agent: str, home: str, phase: Phase, wait_s: float) -> Entry:
    return Entry(
        command=command(home, agent, phase),
        report=command(home, agent, "post"),
        prompt=command(home, agent, "prompt"),
        script=os.path.join(hook_directory(home, agent), "hook"),
        phase=phase,
        seconds=AGENT_S if phase == "prompt" else math.ceil(wait_s) + AGENT_S,
        name=hook_name(home, agent),
        failure=SILENT,
    )


def _toml_tables(agent: str, home: str, wait_s: float) -> str:
    file = hooks_of(agent).file
    assert file.table is not None
    entries = ((event, _entry(agent, home, phase, wait_s)) for event, phase in file.events)
    return "\n".join(f"[[hooks]]\n{file.table(entry, event)}" for event, entry in entries)


def without_hook(agent: str, home: str, text: str) -> str:
    """Return an agent's settings without callgate's hook. Raises `CliError`."""
    file = hooks_of(agent).file
    if file.form == "program":
        return "" if entries(agent, text, home) else text

    def is_only_ours(entry: Any) -> bool:
        return bool(hooks := _hooks_of(entry)) and all(
            _is_ours(each, home, agent) for each in hooks
        )

    if file.form == "toml":
        return without_blocks(agent, text, is_only_ours)
    if not text.strip():
        return text
    try:
        for event, _ in file.events:
            text = without_items(text, ("hooks", event), is_only_ours, "hooks")
    except NotJson as error:
        raise CliError(f"the settings of {agent} cannot be edited: {error}") from None
    return text


def original(agent: str, home: str, text: str | None) -> str | None:
    """Return an agent's settings without callgate's hook; None if the file would not exist."""
    if text is None or not entries(agent, text, home):
        return text
    return without_hook(agent, home, text) or None


def _hooks_of(entry: Any) -> list[Any]:
    """Return the hooks of an entry: the list of a matcher, or the entry itself."""
    listed = entry.get("hooks", [entry]) if isinstance(entry, dict) else []
    return listed if isinstance(listed, list) else []


def _is_ours(hook: Any, home: str, agent: str) -> bool:
    """Return whether a hook is callgate's, also if it was edited.

    It runs callgate's script, or posts to an instance, as older versions did for Claude Code.
    """
    if not isinstance(hook, dict):
        return False
    if f"{hook_directory(home, agent)}/hook" in str(hook.get("command", "")):
        return True
    if not isinstance(url := hook.get("url"), str):
        return False
    return url in {each.url for each in remembered(home, agent)} or is_instance_url(url, agent)


def is_instance_url(url: str, agent: str) -> bool:
    """Return whether a URL is the hook endpoint of older versions' instances."""
    try:
        split_url = urlsplit(url)
        host = split_url.hostname or ""
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
    return is_local and split_url.path == f"/v1/hooks/{agent}"


def entries(agent: str, text: str, home: str, phase: Phase = "pre") -> list[dict[str, Any]]:
    """Return callgate's hooks for a phase from an agent's settings; empty if there are none.

    Each entry contains only one hook, also if the file has several in one entry.
    """
    file = hooks_of(agent).file
    if file.form == "program":
        script = os.path.join(hook_directory(home, agent), "hook")
        return [{_kind(file): text}] if script in text or json.dumps(script) in text else []
    name = next((event for event, each in file.events if each == phase), None)
    if file.form == "toml":
        try:
            hooks = tomllib.loads(text).get("hooks", [])
        except (ValueError, RecursionError):
            return []
        ours = [each for each in hooks if _is_ours(each, home, agent)]
        return [each for each in ours if each.get(file.event_key) == name]
    try:
        document = value_of(text, parse(text)) if text.strip() else {}
    except NotJson:
        return []
    events = document.get("hooks", {}) if isinstance(document, dict) else {}
    before = events.get(name, []) if isinstance(events, dict) else []
    return [
        {**entry, "hooks": [hook]} if "hooks" in entry else hook
        for entry in (before if isinstance(before, list) else [])
        for hook in _hooks_of(entry)
        if _is_ours(hook, home, agent)
    ]


def apply(edit: Edit, *, is_executable: bool = False) -> None:
    """Replace the file atomically, or remove it. Raises `OSError`."""
    path = os.path.realpath(edit.path)
    if edit.after is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o600
    mode |= 0o100 if is_executable else 0
    temporary = f"{path}.{os.getpid()}.callgate"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(edit.after)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def removal(home: str, agent: str, path: str) -> Edit:
    """Return the edit that removes callgate's hook from a file."""
    text = read(path)
    known = next((each for each in remembered(home, agent) if each.path == path), None)
    if known is not None and text is not None and known.after_sha256 == hash_of(text):
        return Edit(path, text, known.before)
    if text is None:
        return Edit(path, None, None)
    after = without_hook(agent, home, text)
    return Edit(path, text, after if after or hooks_of(agent).file.form != "program" else None)
