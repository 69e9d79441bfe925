"""`callgate protect`: the complete setup of callgate for an agent, in one command.

    hook -> instance (and service) -> trust this directory? -> test -> verdict

Each step is idempotent, so a run after an interruption continues. The hook refuses every call until
all steps are done. HOME/hooks/protect.json records the trust and the background instance that this
command added. The removal of the last hook undoes them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import msgspec

from callgate.cli.errors import EXIT_CODES, FAILED, OK, CliError
from callgate.cli.instance_http import end_instance
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.tty import Tty, open_tty
from callgate.cli.ui.visible import visible
from callgate.config import trust as trusting
from callgate.config.home import Home
from callgate.config.instance_records import process_start
from callgate.config.load import SettingsError
from callgate.config.trust import brought_items
from callgate.core.errors import ToolErrorClass
from callgate.core.local.disk import write_private
from callgate.features.agents.commands import checks, editing, instance_start
from callgate.features.agents.commands.hook import answer_limit_s, install_hook, remove_hook
from callgate.features.agents.commands.instance_start import Started, ensure_instance
from callgate.features.agents.commands.trying import try_agent
from callgate.features.agents.hooks import hook_switches
from callgate.features.agents.known import (
    DIRECTORY,
    KNOWN,
    hook_directory,
    hooked,
    used_directories,
    user_file,
)
from callgate.policy.rules import is_within
from callgate.socket.instances import running


class Record(msgspec.Struct, frozen=True):
    directories: tuple[str, ...] = ()
    """Directories that `callgate protect` trusted."""
    pid: int | None = None
    """The instance that `callgate protect` started in the background."""
    process_start: str | None = None


def note_trust(home: str, directory: str) -> None:
    record = _read(home)
    directories = dict.fromkeys((*record.directories, directory))
    _write(home, msgspec.structs.replace(record, directories=tuple(directories)))


def note_instance(home: str, pid: int) -> None:
    record = _read(home)
    _write(home, msgspec.structs.replace(record, pid=pid, process_start=process_start(pid)))


def undo(home: Home, agent: str) -> list[str]:
    """Remove an agent's hook and, with the last hook, everything else.

    Returns a line for each change. Raises `CliError`.
    """
    label, done = KNOWN[agent].label, []
    known = [each.path for each in editing.remembered(home.path, agent)]
    for path in dict.fromkeys((*known, user_file(agent))):
        if editing.entries(agent, editing.read(path) or "", home.path):
            remove_hook(home.path, agent, path)
            done.append(f"{label}: the hook was removed from {path}.")
    if any(os.path.isdir(hook_directory(home.path, each)) for each in hooked()):
        return done
    return done + _undo_rest(home)


def _undo_rest(home: Home) -> list[str]:
    done, record = [], _read(home.path)
    if instance_start.remove(home.path):
        done.append(f"The service {instance_start.unit_name(home.path)} was removed.")
    for instance in running(home.path):
        if instance.pid == record.pid and process_start(instance.pid) == record.process_start:
            end_instance(home.path, instance)
            done.append(f"The instance (process {instance.pid}) was stopped.")
    for directory in record.directories:
        if trusting.distrust(home, directory):
            done.append(f"{directory} is no longer trusted.")
    if os.path.exists(_path(home.path)):
        os.unlink(_path(home.path))
    return done


def _path(home: str) -> str:
    return os.path.join(home, DIRECTORY, "protect.json")


def _read(home: str) -> Record:
    try:
        with open(_path(home), "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (OSError, ValueError, RecursionError):
        return Record()


def _write(home: str, record: Record) -> None:
    write_private(_path(home), msgspec.json.encode(record).decode())


_MOST_LISTED = 5


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    file: str
    """The settings file with the hook."""
    protected: bool
    test: str | None
    """The result of the test; None: it was not run."""
    problems: tuple[checks.Problem, ...]
    other_directories: list[str] | None
    """Further directories of the agent that are not trusted; None: unknown."""


class Person:
    """Answers questions: by options, or at the terminal."""

    def __init__(self, options: Namespace) -> None:
        self._yes: bool = options.yes
        self._tty: Tty | None = None if options.json else open_tty()

    @property
    def is_present(self) -> bool:
        return self._tty is not None

    def agrees(self, answer: bool | None, lines: Sequence[str], question: str) -> bool:
        """Ask a question. `answer` is the value of an option; no terminal means no."""
        if answer is not None:
            return answer
        if self._yes:
            return True
        if self._tty is None:
            return False
        text = Lines([visible(line) for line in lines])
        return asyncio.run(agreed(self._tty, text, question))


def protect(options: Namespace) -> int:
    refuse_within_a_call("callgate protect")
    home, person = Home.from_environment(), Person(options)
    workspace = os.path.realpath(options.workspace)
    if not os.path.isdir(workspace):
        raise CliError(f"{options.workspace} is not a directory")
    agents = _agents(options, person)
    if options.undo:
        return _undo(home, agents, options)
    home.make()
    tell = _silent if options.json else _print
    try:
        return _protect(home, agents, workspace, options, person, tell)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except KeyboardInterrupt:
        say(f"\ncallgate: interrupted: callgate protect {' '.join(agents)} continues")
        raise


def _protect(
    home: Home, agents: list[str], workspace: str, options: Namespace, person: Person, tell: Any
) -> int:
    limit_s = answer_limit_s()
    files = {agent: _install(home, agent, workspace, limit_s, tell) for agent in agents}
    started = _start(home, agents, options, person)
    tell(f"callgate is running (process {started.pid}){_at_login(started)}.")
    if started.note is not None:
        tell(started.note)
    is_trusted = _trust(home, agents, workspace, options, person)
    reports = [_report(home, each, workspace, files[each], limit_s) for each in agents]
    protected = all(each.protected for each in reports)
    if options.json:
        print_json(
            {
                "directory": workspace,
                "trusted": is_trusted,
                "protected": protected,
                "instance": {"pid": started.pid, "service": started.service, "note": started.note},
                "agents": [msgspec.to_builtins(each) for each in reports],
            }
        )
    for report in reports:
        for line in _verdict(report, workspace):
            tell(line)
    if protected:
        tell("Answer the questions about calls with callgate dashboard or callgate watch --answer.")
    if protected or is_trusted:
        return OK if protected else FAILED
    return EXIT_CODES[ToolErrorClass.PERMISSION_DENIED]


def _agents(options: Namespace, person: Person) -> list[str]:
    """Return the named agents, or the installed agents that the person chooses."""
    unknown = [word for word in options.words if word not in hooked()]
    if unknown:
        raise CliError(
            f"callgate does not support the agent {unknown[0]!r}", hint=_names("Agents", hooked())
        )
    if options.words:
        return list(dict.fromkeys(options.words))
    found = [agent for agent in hooked() if shutil.which(KNOWN[agent].program)]
    if not found:
        raise CliError(
            "PATH contains no agent that callgate supports",
            hint=f"Name one: callgate protect {' | '.join(hooked())}",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_agent",
        )
    if not options.yes and not person.is_present:
        hint = f"callgate protect {found[0]}, or callgate protect --yes for all of them."
        raise CliError(_names("name an agent. Installed", found), hint=hint)
    verb = "Remove callgate's hook from" if options.undo else "Protect"
    return [each for each in found if person.agrees(None, [], f"{verb} {KNOWN[each].label}?")]


def _names(title: str, agents: Any) -> str:
    return f"{title}: {', '.join(agents)}"


def _install(home: Home, agent: str, workspace: str, limit_s: float, tell: Any) -> str:
    """Install the hook if it is missing. Return the settings file with the hook."""
    label = KNOWN[agent].label
    holding = list(checks.installed_files(home.path, agent, workspace))
    path = holding[0] if holding else user_file(agent)
    if path != user_file(agent) and holding:
        tell(f"{label}: {path} has the hook.")  # the settings of a project or an administrator
        return path
    edit = install_hook(home.path, agent, path, limit_s)
    tell(f"{label}: the hook {'was added to' if edit.changes else 'is in'} {path}.")
    return path


def _start(home: Home, agents: list[str], options: Namespace, person: Person) -> Started:
    label = KNOWN[agents[0]].label if len(agents) == 1 else "an agent"
    lines = [f"The hook refuses every call of {label} while callgate is not running."]
    question = "Also start callgate at each login (systemd user service)?"
    started = ensure_instance(
        home,
        lambda: person.agrees(options.service, lines, question),
        insist=options.service is True,
    )
    if started.detached:
        note_instance(home.path, started.pid)
    return started


def _at_login(started: Started) -> str:
    return "" if started.service is None else f" and starts at login ({started.service})"


def _trust(
    home: Home, agents: list[str], workspace: str, options: Namespace, person: Person
) -> bool:
    """Return whether the directory is trusted; ask the person if it is not."""
    if trusting.is_within_trusted(home, workspace):
        return True
    lines = [
        f"This directory is {workspace}",
        "The hook refuses every call in a directory that you do not trust.",
        "Your policy decides about each call in a trusted directory and below it.",
        *(f"  {each}" for each in _findings(home.path, agents, workspace)),
    ]
    if not person.agrees(options.trust, lines, "Trust this directory?"):
        return False
    trusting.trust(home, workspace)
    note_trust(home.path, workspace)
    return True


def _findings(home: str, agents: list[str], workspace: str) -> list[str]:
    """Return the files of a directory that turn hooks off, add hooks, or configure callgate."""
    found: dict[str, None] = {}
    for agent in agents:
        for each in hook_switches.in_directory(agent, workspace, home):
            found[f"{each}: {KNOWN[agent].label} would run calls without callgate"] = None
        for each in hook_switches.added_in_directory(agent, workspace, home):
            found[f"{each}: {KNOWN[agent].label} runs them without callgate"] = None
    if is_within(os.path.realpath(os.path.expanduser("~")), workspace):
        found["This directory contains your home, so your whole home would be trusted"] = None
    for name in brought_items(workspace):
        found[f"callgate would use {name} of this directory"] = None
    return list(found) or ["Nothing here turns hooks off or adds hooks."]


def _report(home: Home, agent: str, workspace: str, path: str, limit_s: float) -> AgentReport:
    status = checks.look(home.path, agent, workspace, limit_s)
    test, problems = None, status.problems
    if not any(each.blocks for each in problems):
        trial = try_agent(home.path, agent, workspace)
        test = trial.message
        if not trial.ok and not problems:
            problems = (checks.Problem(trial.message, f"callgate hook test {agent}"),)
    used = used_directories(agent)
    others = None
    if used is not None:
        others = [
            each for each in used if each != workspace and not checks.is_served(home.path, each)
        ]
    return AgentReport(
        agent=agent,
        file=path,
        protected=not problems,
        test=test,
        problems=problems,
        other_directories=others,
    )


def _verdict(report: AgentReport, workspace: str) -> list[str]:
    label = KNOWN[report.agent].label
    if not report.protected:
        blocked = all(each.blocks for each in report.problems)
        state = "is blocked" if blocked else "is NOT protected"
        lines = [f"{label} {state} in this directory ({workspace}):"]
        for each in report.problems:
            lines += [f"  why  {each.reason}", f"  fix  {each.fix}"]
        return lines
    lines = [report.test] if report.test else []
    others = report.other_directories
    if others is None:
        return [
            *lines,
            f"{label} is protected in this directory. The hook refuses every call in other"
            " directories until you trust them (callgate trust DIR); callgate cannot list them.",
        ]
    if not others:
        return [*lines, f"{label} is protected in this directory and in all others that it uses."]
    count = "1 more directory is" if len(others) == 1 else f"{len(others)} more directories are"
    lines.append(f"{label} is protected in this directory; {count} not:")
    lines += [f"  {each}" for each in others[:_MOST_LISTED]]
    if len(others) > _MOST_LISTED:
        lines.append(f"  and {len(others) - _MOST_LISTED} more")
    return [*lines, "The hook refuses every call there until you trust them: callgate trust DIR"]


def _undo(home: Home, agents: list[str], options: Namespace) -> int:
    done = [line for agent in agents for line in undo(home, agent)]
    if options.json:
        print_json({"agents": agents, "undone": done})
    else:
        for line in done or ["There is nothing to undo."]:
            _print(line)
    return OK


def _print(line: str) -> None:
    print(visible(line), flush=True)


def _silent(line: str) -> None:
    pass
