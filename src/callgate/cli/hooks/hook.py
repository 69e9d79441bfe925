"""`callgate hook`: put an agent's calls behind the gate, take them out, see whether they are."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from argparse import Namespace
from typing import Any

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.hooks import checks, editing, installations, scripts
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.agents import hook_switches
from callgate.config.agents.settings_files import AGENTS, hook_directory, user_file
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.protocol.hooks import dialects
from callgate.surfaces.socket.instances import live


def install(options: Namespace) -> int:
    agent, home, path = _agent(options), Home.from_environment().path, _file(options)
    refuse_within_a_call("callgate hook install")
    _refuse_http(options.form)
    wait_s = _wait_s()
    if options.managed:
        return _print_managed(agent, home, wait_s)
    before = editing.read(path)
    had_http = bool(checks.posted_urls(home, agent, before or ""))
    try:
        if not options.dry_run:
            scripts.write_scripts(home, agent, wait_s, new_token=had_http)
        edit = installations.Edit(
            path, before, editing.with_hook(agent, home, before or "", wait_s)
        )
        changed = edit.after != before
        if changed and not options.dry_run:
            editing.apply(edit)
            installations.remember(home, agent, edit, editing.original(agent, home, before))
    except OSError as error:
        raise _unwritable(path, error) from error
    report: dict[str, Any] = {"agent": agent, "file": path, "form": "command", "changed": changed}
    _show(report, edit, options)
    if not options.json and not options.dry_run:
        _advise(agent, home)
    return OK


def _print_managed(agent: str, home: str, wait_s: float) -> int:
    """Print the administrator's settings of an agent, with hooks that no repository turns off."""
    switches = hook_switches.SWITCHES[agent]
    if switches.managed is None:
        raise CliError(f"callgate knows no managed settings of {AGENTS[agent].label}")
    scripts.write_scripts(home, agent, wait_s)
    text = editing.with_hook(agent, home, editing.read(switches.managed) or "", wait_s)
    print(editing.with_settings(agent, text, switches.managed_settings).rstrip("\n"))
    say(f"callgate: as root, save this as {switches.managed}, with mode 0644")
    say("callgate: its hooks ask this user's callgate; calls of other users are refused")
    return OK


def remove(options: Namespace) -> int:
    agent, home, path = _agent(options), Home.from_environment().path, _file(options)
    refuse_within_a_call("callgate hook remove")
    try:
        edit = editing.removal(home, agent, path)
        changed = edit.after != edit.before
        if changed and not options.dry_run:
            editing.apply(edit)
            installations.forget(home, agent, path)
        if not options.dry_run and not installations.remembered(home, agent):
            shutil.rmtree(hook_directory(home, agent), ignore_errors=True)  # its token, too
    except OSError as error:
        raise _unwritable(path, error) from error
    _show({"agent": agent, "file": path, "changed": changed}, edit, options)
    return OK


def status(options: Namespace) -> int:
    home = Home.from_environment().path
    agents = [_agent(options)] if options.words else list(AGENTS)
    wait_s = _wait_s()
    found = [checks.look(home, agent, os.getcwd(), wait_s) for agent in agents]
    if not options.words:
        found = [each for each in found if each.installed or each.program]
    if options.json:
        print_json([each.as_json() for each in found])
    else:
        for each in found:
            _print(each.text())
        if not found:
            print("No agent that callgate knows is installed here.")
    asked = found if options.words else [each for each in found if each.installed]
    return OK if all(each.is_guarded for each in asked) else FAILED


def test(options: Namespace) -> int:
    from callgate.cli.hooks.trying import try_agent  # lazy: only this command  # noqa: PLC0415

    agent, home = _agent(options), Home.from_environment().path
    refuse_within_a_call("callgate hook test")
    result = try_agent(home, agent, os.getcwd())
    if options.json:
        print_json({"agent": agent, "ok": result.ok, "message": result.message})
    else:
        print(visible(result.message))
    return OK if result.ok else FAILED


def run(options: Namespace) -> int:
    """Be the hook itself; `cli.main` does the same without loading this."""
    return run_script(options.words)


def run_script(words: list[str]) -> int:
    if not words or words[0] not in AGENTS or len(words) > 2:
        sys.stderr.write("callgate: hook run takes an agent, and pre or post\n")
        return 2  # which most agents take for a refusal
    script = os.path.join(hook_directory(Home.from_environment().path, words[0]), "hook")
    try:
        os.execv(script, [script, *words[1:]])  # noqa: S606
    except OSError as error:
        reason = f"callgate: the hook is not installed: {error.strerror}"
        sys.stderr.write(f"{reason}\n")
        if words[1:] == ["post"]:
            return 2
        print(dialects.refusal(words[0], reason).decode())  # an exit code alone opens some agents
        return OK


def _agent(options: Namespace) -> str:
    if len(options.words) != 1 or options.words[0] not in AGENTS:
        raise CliError(f"name one agent of: {', '.join(AGENTS)}")
    return str(options.words[0])


def _file(options: Namespace) -> str:
    agent = _agent(options)
    if not getattr(options, "project", False):
        return user_file(agent)
    project = AGENTS[agent].project
    if project is None:
        raise CliError(f"{AGENTS[agent].label} has no hooks in a project: leave --project out")
    return os.path.join(os.path.abspath(options.workspace), project)


def _refuse_http(form: str | None) -> None:
    if form == "http":
        raise CliError(
            "HTTP hooks are no longer installed: an agent cannot verify which process listens on"
            " the port",
            hint="Leave --form out: the command form talks to a private socket.",
        )


def _wait_s() -> float:
    """How long a hook waits for a person, as the settings say."""
    try:
        return load_user(Home.from_environment())[0].hooks.wait_s
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def _show(report: dict[str, Any], edit: installations.Edit, options: Namespace) -> None:
    old, new = (edit.before or "").splitlines(True), (edit.after or "").splitlines(True)
    diff = "".join(_ended(line) for line in difflib.unified_diff(old, new, edit.path, edit.path))
    if options.json:
        print_json({**report, "diff": diff, "dry_run": options.dry_run})
        return
    if diff:
        _print(diff.rstrip("\n"))
    what = "would be changed" if options.dry_run else "was changed"
    say(f"callgate: {edit.path} {what if report['changed'] else 'stays as it is'}")


def _print(text: str) -> None:
    for line in text.split("\n"):
        print(visible(line))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n"


def _advise(agent: str, home: str) -> None:
    if not live(home):
        say("callgate: until an instance runs, every call is refused: callgate serve --detach")
    if agent == "codex":
        say("callgate: Codex skips hooks that you have not trusted: start codex, open /hooks, and")
        say("callgate: trust callgate's; then callgate hook status codex")
    say(f"callgate: callgate hook test {agent} tries it")


def _unwritable(path: str, error: OSError) -> CliError:
    return CliError(
        f"{path} cannot be changed: {error.strerror or error}",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="unwritable",
    )
