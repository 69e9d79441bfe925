"""`callgate hook`: install, remove, check and test the hook of an agent.

`callgate protect` (`protect`) uses these steps to set up an agent completely. Each change of
settings is returned as an edit for display; `apply=False` changes nothing.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from argparse import Namespace
from typing import Any

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import print_lines
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.features.agents.commands import checks, editing, instance_start
from callgate.features.agents.commands.editing import Edit
from callgate.features.agents.hooks import events
from callgate.features.agents.known import KNOWN, hook_directory, hooked, hooks_of, user_file
from callgate.features.agents.settings import AgentsSettings
from callgate.redaction.texts import redact


def install_hook(home: str, agent: str, path: str, wait_s: float, *, apply: bool = True) -> Edit:
    """Add the hook to a settings file. Idempotent. Raises `CliError`."""
    before = editing.read(path)
    had_http = bool(checks.posted_urls(home, agent, before or ""))
    try:
        if apply:
            editing.write_scripts(home, agent, wait_s, new_token=had_http)
        edit = Edit(path, before, editing.with_hook(agent, home, before or "", wait_s))
        if apply and edit.changes:
            editing.apply(edit, is_executable=hooks_of(agent).file.is_executable)
            editing.remember(home, agent, edit, editing.original(agent, home, before))
        for beside in _beside(agent, path):
            install_hook(home, agent, beside, wait_s, apply=apply)
    except OSError as error:
        raise _unwritable(path, error) from error
    return edit


def remove_hook(home: str, agent: str, path: str, *, apply: bool = True) -> Edit:
    """Remove the hook from a settings file. Idempotent. Raises `CliError`."""
    try:
        edit = editing.removal(home, agent, path)
        if apply and edit.changes:
            editing.apply(edit)
            editing.forget(home, agent, path)
        for beside in _beside(agent, path):
            if os.path.exists(beside):
                remove_hook(home, agent, beside, apply=apply)
        if apply and not editing.remembered(home, agent):
            shutil.rmtree(hook_directory(home, agent), ignore_errors=True)  # including the token
    except OSError as error:
        raise _unwritable(path, error) from error
    return edit


def _beside(agent: str, path: str) -> list[str]:
    """Return the other files of a hook that consists of several programs."""
    others = hooks_of(agent).file.others
    directory, name = os.path.split(path)
    return [] if name in others else [os.path.join(directory, each) for each in others]


def _unwritable(path: str, error: OSError) -> CliError:
    return CliError(
        f"{path} cannot be changed: {error.strerror or error}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="unwritable",
    )


def install(options: Namespace) -> int:
    agent, home, path = _agent(options), Home.from_environment().path, _file(options)
    refuse_within_a_call("callgate hook install")
    _refuse_http(options.form)
    limit_s = answer_limit_s()
    if options.managed:
        return _print_managed(agent, home, limit_s)
    edit = install_hook(home, agent, path, limit_s, apply=not options.dry_run)
    report = {"agent": agent, "file": path, "form": "command", "changed": edit.changes}
    _show(report, edit, options)
    if not options.json and not options.dry_run:
        _advise(agent)
    return OK


def _print_managed(agent: str, home: str, wait_s: float) -> int:
    """Print administrator settings for an agent, whose hooks no repository can turn off."""
    switches = hooks_of(agent).switches
    if switches.managed is None:
        raise CliError(f"callgate knows no managed settings of {KNOWN[agent].label}")
    editing.write_scripts(home, agent, wait_s)
    text = editing.with_hook(agent, home, editing.read(switches.managed) or "", wait_s)
    print(editing.with_settings(agent, text, switches.managed_settings).rstrip("\n"))
    say(f"callgate: as root, save this as {switches.managed}, with mode 0644")
    say("callgate: these hooks use this user's callgate; calls of other users are refused")
    return OK


def remove(options: Namespace) -> int:
    agent, home, path = _agent(options), Home.from_environment().path, _file(options)
    refuse_within_a_call("callgate hook remove")
    edit = remove_hook(home, agent, path, apply=not options.dry_run)
    _show({"agent": agent, "file": path, "changed": edit.changes}, edit, options)
    if not options.json and not options.dry_run and instance_start.is_installed(home):
        say(f"callgate: the instance still starts at login: callgate protect --undo {agent}")
    return OK


def status(options: Namespace) -> int:
    home = Home.from_environment().path
    agents = [_agent(options)] if options.words else list(hooked())
    limit_s = answer_limit_s()
    found = [checks.look(home, agent, os.getcwd(), limit_s) for agent in agents]
    if not options.words:
        found = [each for each in found if each.installed or each.program]
    if options.json:
        print_json([each.as_json() for each in found])
    else:
        for each in found:
            print_lines(each.text())
        if not found:
            print("No agent that callgate knows is installed here.")
    checked = found if options.words else [each for each in found if each.installed]
    return OK if all(each.is_protected for each in checked) else FAILED


def test(options: Namespace) -> int:
    from callgate.features.agents.commands.trying import try_agent  # lazy: only this command  # noqa: PLC0415

    agent, home = _agent(options), Home.from_environment().path
    refuse_within_a_call("callgate hook test")
    result = try_agent(home, agent, os.getcwd())
    if options.json:
        print_json({"agent": agent, "ok": result.ok, "message": result.message})
    else:
        print(visible(result.message))
    return OK if result.ok else FAILED


def run(options: Namespace) -> int:
    """Run the hook. `cli.main` does the same without importing this module."""
    return run_script(options.words)


def run_script(words: list[str]) -> int:
    if not words or words[0] not in hooked() or len(words) > 2:
        sys.stderr.write("callgate: hook run takes an agent, and pre, post or prompt\n")
        return 2  # most agents treat it as a refusal
    script = os.path.join(hook_directory(Home.from_environment().path, words[0]), "hook")
    try:
        os.execv(script, [script, *words[1:]])  # noqa: S606
    except OSError as error:
        reason = f"callgate: the hook is not installed: {error.strerror}"
        sys.stderr.write(f"{reason}\n")
        if words[1:] == ["prompt"]:
            return OK  # in Claude Code, exit code 2 would erase the prompt
        if words[1:] == ["post"]:
            return 2
        # some agents ignore an exit code and would run the call
        print(events.refusal(words[0], reason).decode())
        return OK


def _agent(options: Namespace) -> str:
    if len(options.words) != 1 or options.words[0] not in hooked():
        raise CliError(f"name one agent of: {', '.join(hooked())}")
    return str(options.words[0])


def _file(options: Namespace) -> str:
    agent = _agent(options)
    if not getattr(options, "project", False):
        return user_file(agent)
    project = hooks_of(agent).project
    if project is None:
        raise CliError(f"{KNOWN[agent].label} has no hooks in a project: omit --project")
    return os.path.join(os.path.abspath(options.workspace), project)


def _refuse_http(form: str | None) -> None:
    if form == "http":
        raise CliError(
            "HTTP hooks are no longer installed: an agent cannot verify which process listens on"
            " the port",
            hint="Omit --form: the command form uses a private socket.",
        )


def answer_limit_s() -> float:
    """Return the time limit for a person's answer from the settings."""
    try:
        return load_user(Home.from_environment())[0].of(AgentsSettings).hooks.wait_s
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def _show(report: dict[str, Any], edit: editing.Edit, options: Namespace) -> None:
    old, new = (edit.before or "").splitlines(True), (edit.after or "").splitlines(True)
    lines = difflib.unified_diff(old, new, edit.path, edit.path)
    diff = redact("".join(map(_ended, lines)))  # settings may have tokens, of callgate too
    if options.json:
        print_json({**report, "diff": diff, "dry_run": options.dry_run})
        return
    if diff:
        _print(diff.rstrip("\n"))
    outcome = "would be changed" if options.dry_run else "was changed"
    say(f"callgate: {edit.path} {outcome if report['changed'] else 'is unchanged'}")


def _print(text: str) -> None:
    for line in text.split("\n"):
        print(visible(line))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n"


def _advise(agent: str) -> None:
    say(f"callgate: calls are refused unless an instance is running: callgate protect {agent}")
    say("callgate: calls are refused outside trusted directories: callgate trust DIR")
    if review := hooks_of(agent).review:
        say(f"callgate: {KNOWN[agent].label} skips a hook that it does not trust: {review};")
        say(f"callgate: then check it: callgate hook status {agent}")
    say(f"callgate: to test the hook: callgate hook test {agent}")
