"""The edit of an agent's settings: what is added to what stands there, and how it is undone.

    before + entries -> after        kept in HOME/hooks/AGENT/installed.json
    after unchanged  -> before, to the byte;   changed since -> without our entries

A file is replaced in one step, with the mode that it had; a link is followed.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from callgate.cli.errors import CliError
from callgate.cli.hooks import scripts, toml_blocks
from callgate.cli.hooks.installations import Edit, hash_of, remembered
from callgate.config.agents.jsonc_edits import (
    NotJson,
    parse,
    value_of,
    with_first_member,
    with_item,
    without_items,
)
from callgate.config.agents.settings_files import hook_directory, hook_name

_EVENTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "claude": (("PreToolUse", "pre"), ("PostToolUse", "post"), ("PostToolUseFailure", "post")),
    "codex": (("PreToolUse", "pre"), ("PostToolUse", "post")),
    "gemini": (("BeforeTool", "pre"), ("AfterTool", "post")),
    "qwen": (("PreToolUse", "pre"), ("PostToolUse", "post"), ("PostToolUseFailure", "post")),
    "cursor": (("preToolUse", "pre"), ("postToolUse", "post"), ("postToolUseFailure", "post")),
}


def read(path: str) -> str | None:
    """The text of a settings file; None if there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text: nothing was changed") from None


def with_hook(agent: str, home: str, text: str, wait_s: float) -> str:
    """An agent's settings with our hook in them, once. Raises `CliError`."""
    if agent == "opencode":
        if text.strip() and not entries(agent, text, home):
            raise CliError("the plugin of that name is not callgate's: nothing was changed")
        return scripts.plugin(home, wait_s)
    text = without_hook(agent, home, text)
    if agent in ("vibe", "kimi"):
        tables = _toml_tables(agent, home, wait_s)
        return toml_blocks.with_block(agent, text, tables)
    try:
        for event, phase in _EVENTS[agent]:
            text = with_item(text, ("hooks", event), _entry(agent, home, phase, wait_s))
        if agent == "cursor" and "version" not in value_of(text, parse(text)):
            text = with_first_member(text, "version", 1)
        parse(text)  # what the agent cannot read would turn its hooks off, all of them
    except NotJson as error:
        raise CliError(f"the settings of {agent} cannot be edited: {error}") from None
    return text


def with_settings(agent: str, text: str, settings: Sequence[tuple[str, Any]]) -> str:
    """An agent's settings with further members. Raises `CliError` where one has another value."""
    for name, value in settings:
        found = value_of(text, parse(text))
        if name not in found:
            text = with_first_member(text, name, value)
        elif found[name] != value:
            raise CliError(f"the settings of {agent} have another {name}: change it by hand")
    return text


def expected(agent: str, home: str, wait_s: float) -> dict[str, Any]:
    """Our hook before a call, as `entries` has it right after an installation."""
    if agent == "opencode":
        return {"plugin": scripts.plugin(home, wait_s)}
    if agent in ("vibe", "kimi"):
        found: dict[str, Any] = tomllib.loads(_toml_tables(agent, home, wait_s))["hooks"][0]
        return found
    return _entry(agent, home, "pre", wait_s)


def _entry(agent: str, home: str, phase: str, wait_s: float) -> dict[str, Any]:
    command, seconds = scripts.command(home, agent, phase), math.ceil(wait_s) + scripts.AGENT_S
    if agent == "cursor":
        closed = {"failClosed": True} if phase == "pre" else {}
        return {"command": command, "timeout": seconds, **closed}
    hook: dict[str, Any] = {"type": "command", "command": command, "timeout": seconds}
    if agent == "claude" and phase == "pre":
        hook["onFailure"] = "block"
    if agent in ("gemini", "qwen"):
        name = hook_name(home, agent) if agent == "gemini" else "callgate"
        hook |= {"name": name, "timeout": seconds * 1000}
    return {"matcher": ".*" if agent == "codex" else "*", "hooks": [hook]}


def _toml_tables(agent: str, home: str, wait_s: float) -> str:
    def quoted(value: str) -> str:
        return json.dumps(value)  # a basic string of TOML, too: all of it is ASCII

    pre, post = (quoted(scripts.command(home, agent, phase)) for phase in ("pre", "post"))
    seconds = math.ceil(wait_s) + scripts.AGENT_S
    if agent == "vibe":
        rows = [
            f'name = "callgate"\ntype = "pre_tool"\ncommand = {pre}\n'
            f"timeout = {seconds}.0\nstrict = true",
            f'name = "callgate-after"\ntype = "post_tool"\ncommand = {post}\ntimeout = {seconds}.0',
        ]
    else:
        rows = [
            f'event = "{event}"\nmatcher = ".*"\ncommand = {command}\ntimeout = {seconds}'
            for event, command in (("PreToolUse", pre), ("PostToolUse", post))
        ]
    return "\n".join(f"[[hooks]]\n{row}" for row in rows)


def without_hook(agent: str, home: str, text: str) -> str:
    """An agent's settings without our hook. Raises `CliError`."""
    if agent == "opencode":
        return "" if entries(agent, text, home) else text

    def is_only_ours(entry: Any) -> bool:
        return bool(hooks := _hooks_of(entry)) and all(
            _is_ours(each, home, agent) for each in hooks
        )

    if agent in ("vibe", "kimi"):
        return toml_blocks.without_blocks(agent, text, is_only_ours)
    if not text.strip():
        return text
    try:
        for event, _ in _EVENTS[agent]:
            text = without_items(text, ("hooks", event), is_only_ours, "hooks")
    except NotJson as error:
        raise CliError(f"the settings of {agent} cannot be edited: {error}") from None
    return text


def original(agent: str, home: str, text: str | None) -> str | None:
    """An agent's settings as they are without our hook; None: there is no file without it."""
    if text is None or not entries(agent, text, home):
        return text
    return without_hook(agent, home, text) or None


def _hooks_of(entry: Any) -> list[Any]:
    """What an entry runs: the hooks of a matcher, or itself."""
    listed = entry.get("hooks", [entry]) if isinstance(entry, dict) else []
    return listed if isinstance(listed, list) else []


def _is_ours(hook: Any, home: str, agent: str) -> bool:
    """Whether it runs our script, perhaps not as we wrote it, or posts to an instance, as older
    versions installed it for Claude Code."""
    if not isinstance(hook, dict):
        return False
    if f"{hook_directory(home, agent)}/hook" in str(hook.get("command", "")):
        return True
    if not isinstance(url := hook.get("url"), str):
        return False
    return url in {each.url for each in remembered(home, agent)} or is_instance_url(url, agent)


def is_instance_url(url: str, agent: str) -> bool:
    """Whether a URL is the address at which instances of older versions took events of hooks."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
    return is_local and parts.path == f"/v1/hooks/{agent}"


def entries(agent: str, text: str, home: str) -> list[dict[str, Any]]:
    """Our hooks before a call, as an agent's settings have them; none where they lack. Each is as
    if it stood alone in its entry."""
    if agent == "opencode":
        marked = json.dumps(os.path.join(hook_directory(home, agent), "hook")) in text
        return [{"plugin": text}] if marked else []
    if agent in ("vibe", "kimi"):
        try:
            hooks = tomllib.loads(text).get("hooks", [])
        except (ValueError, RecursionError):
            return []
        key, event = ("type", "pre_tool") if agent == "vibe" else ("event", "PreToolUse")
        ours = [each for each in hooks if _is_ours(each, home, agent)]
        return [each for each in ours if each.get(key) == event]
    try:
        document = value_of(text, parse(text)) if text.strip() else {}
    except NotJson:
        return []
    events = document.get("hooks", {}) if isinstance(document, dict) else {}
    before = events.get(_EVENTS[agent][0][0], []) if isinstance(events, dict) else []
    return [
        {**entry, "hooks": [hook]} if "hooks" in entry else hook
        for entry in (before if isinstance(before, list) else [])
        for hook in _hooks_of(entry)
        if _is_ours(hook, home, agent)
    ]


def apply(edit: Edit) -> None:
    """Replace the file in one step, or remove it. Raises `OSError`."""
    path = os.path.realpath(edit.path)
    if edit.after is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o600
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
    """What takes our hook out of a file again."""
    text = read(path)
    known = next((each for each in remembered(home, agent) if each.path == path), None)
    if known is not None and text is not None and known.after_sha256 == hash_of(text):
        return Edit(path, text, known.before)
    if text is None:
        return Edit(path, None, None)
    after = without_hook(agent, home, text)
    return Edit(path, text, after if after or agent != "opencode" else None)
