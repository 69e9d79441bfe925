"""`callgate hosts` and `callgate host`: manage the hosts of an instance, and serve one.

`callgate host`: serve the tools of a file over stdin and stdout.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from callgate.cli import instance_http as remote_hosts
from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.hosts.reloads import Reload, Reloaded, settings_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.stores import not_found, words
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Cell, Column, print_field, print_rows
from callgate.cli.ui.terminal import room, say
from callgate.cli.ui.visible import visible, visible_text, width_of
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import Settings
from callgate.core.errors import ToolErrorClass
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.host.__main__ import main
from callgate.instance.wiring.builder import build, register_known
from callgate.instance.wiring.hosts import make_hosts
from callgate.instance.wiring.runtime import surroundings
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.sources.host_provider import Hosts
from callgate.sources.providers import entry


def host(options: Namespace) -> int:
    if not options.words:
        raise CliError("no file or module was named", hint="See callgate host --help.")
    if len(options.words) > 1 and not options.script:
        raise CliError(f"unexpected argument {options.words[1]!r}")
    return main([*(["--script"] if options.script else []), *options.words])


_COLOURS = {"running": "green", "quarantined": "red", "waiting": "yellow"}
_MARGIN = 4
"""Columns before a note at a terminal."""


def described(host: HostEntry) -> dict[str, Any]:
    return {
        "name": host.name,
        "health": host.health,
        "command": host.command,
        "tools": [
            {"name": tool.name, "effect": tool.effect, "changed": tool.changed}
            for tool in host.tools
        ],
        "problem": host.problem,
    }


def print_table(entries: Collection[HostEntry], renew: str) -> None:
    """Print the list. `renew`: the command, without a name, that approves new or changed tools."""
    width = max((width_of(each.name) for each in entries), default=0)
    headings = (Column("name", least=width), Column("state", 11), Column("has", 8), Column("runs"))
    for each in entries:
        count = "1 tool" if len(each.tools) == 1 else f"{len(each.tools)} tools"
        health = Cell(each.health, _COLOURS.get(each.health, "bold"))
        print_rows(headings, [(each.name, health, count, " ".join(each.command))])
        margin = " " * (width + 2 if room() is None else _MARGIN)
        for text, command in _notes(each, f"{renew} {each.name}"):
            _print_note(margin, text, command)


def _print_note(margin: str, text: str, command: str) -> None:
    """Print a note and its command; the command is never wrapped, so that it can be copied."""
    whole, available = f"{text}  -> {command}" if command else text, room()
    if not command or available is None or width_of(f"{margin}{whole}") <= available:
        print_field(margin, whole)
        return
    print_field(margin, text)
    print(visible(f"{margin}-> {command}"))


def _notes(entry: HostEntry, command: str) -> Iterator[tuple[str, str]]:
    if entry.health == "new":
        yield "not approved yet", command
    changed = [tool.name for tool in entry.tools if tool.changed]
    if changed:
        yield f"changed: {', '.join(changed)}", command
    if entry.problem is not None:
        yield f"problem: {entry.problem}", ""


_LOOK_EVERY_S = 0.2
_LONGEST = 64 * 1024
"""Bytes of an unfinished line that are shown without waiting for its end."""


class HostLog:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _open(path)

    def last(self, count: int) -> Sequence[str]:
        """Return the last lines, also from the rotated file."""
        data = b""
        for file in (_open(f"{self._path}.1"), self._file):
            data += b"" if file is None else file.read()
            if file is not None and file is not self._file:
                file.close()
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        return [_shown(line) for line in lines[-count:]] if count else []

    def follow(self) -> Iterator[str | None]:
        """Yield new lines; None if there is none at the moment."""
        partial = b""
        while True:
            self._file = self._file or _open(self._path)
            if self._file is not None:
                moved = _is_another(self._file, self._path)  # before the last read of it
                *lines, partial = (partial + self._file.read()).split(b"\n")
                yield from map(_shown, lines)
                if len(partial) > _LONGEST:
                    yield _shown(partial)
                    partial = b""
                if moved:
                    self._file.close()
                    self._file = None
                    continue
            yield None
            time.sleep(_LOOK_EVERY_S)


def _open(path: str) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def _is_another(file: BinaryIO, path: str) -> bool:
    """Whether the path no longer names the open file."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return True


def _shown(line: bytes) -> str:
    return visible_text(line.decode("utf-8", "backslashreplace"))


def show(log: HostLog, lines: int, *, follow: bool) -> None:
    """Print the last lines, and with `follow` new ones until an interrupt."""
    for line in log.last(lines):
        print(line)
    for more in log.follow() if follow else ():
        if more is None:
            sys.stdout.flush()
        else:
            print(more)


def list(options: Namespace) -> int:
    words(options)
    home = Home.from_environment()
    entries = {each.name: each for each in _entries(home, settings_of(home))}
    answer = remote_hosts.hosts_of(home.path)
    if answer is not None:
        entries |= {each.name: each for each in answer.hosts if "." not in each.name}
    if options.json:
        pid = None if answer is None else answer.instance.pid
        print_json({"instance": pid, "hosts": [described(each) for each in entries.values()]})
        return OK
    if not entries:
        say("no hosts are configured")
    print_table(entries.values(), "callgate hosts reload")
    return OK


def logs(options: Namespace) -> int:
    (name,) = words(options, "host")
    home = Home.from_environment()
    settings = settings_of(home)
    _ensure_known(settings, [name])
    show(HostLog(_hosts(home, settings).log_path(name)), options.n, follow=options.follow)
    return OK


def reload(options: Namespace) -> int:
    refuse_within_a_call("callgate hosts reload")
    if len(options.words) > 1:
        raise CliError(f"unexpected argument {options.words[1]!r}")
    home = Home.from_environment()
    settings = settings_of(home)
    _ensure_known(settings, options.words)
    reloading = Reload(home, settings, options.workspace)
    found = reloading.look(options.words or [*settings.hosts])
    if not options.json:
        reloading.tell(found, yes=options.yes)
    reloading.accept(found, yes=options.yes)
    answers = {each.name: _take_over(home, each) for each in found if each.problem is None}
    if options.json:
        ok = all(each.problem is None for each in found)
        print_json({"ok": ok, "hosts": [_reloaded(each, answers) for each in found]})
    for each in found:
        if each.problem is not None:
            say(f"error (host_unavailable): host {each.name}: {each.problem}")
        for answer in answers.get(each.name, ()):
            _say_taken_over(each.name, answer)
    failed = any(each.problem is not None for each in found)
    return EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE] if failed else OK


def restart(options: Namespace) -> int:
    refuse_within_a_call("callgate hosts restart")
    (name,) = words(options, "host")
    home = Home.from_environment()
    answers = remote_hosts.renew(home.path, name, forget=True)
    if not answers:
        _ensure_known(settings_of(home), [name])
        raise CliError(
            "no instance runs",
            hint="No restart is needed: each command then starts its own hosts.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    if options.json:
        print_json(
            {
                "ok": any(each.problem is None for each in answers),
                "instances": [_answered(each) for each in answers],
            }
        )
    for each in answers:
        _say_taken_over(name, each, "restarts host {} with its next call")
    done = any(each.problem is None for each in answers)
    return OK if done else EXIT_CODES[ToolErrorClass.NOT_FOUND]


def _hosts(home: Home, settings: Settings) -> Hosts:
    return make_hosts(home, settings, Sandbox(surroundings(home, settings)), ".")


def _entries(home: Home, settings: Settings) -> Iterable[HostEntry]:
    """Return the states of the configured hosts, without starting one."""
    if not settings.hosts:
        return []
    try:
        wired = build(home, os.getcwd(), register_known, audit=False)
    except SettingsError:  # other tools have invalid settings
        hosts = _hosts(home, settings)
        return [entry(hosts, name) for name in hosts.hosts]
    assert wired.hosts is not None
    return wired.hosts.entries()


def _ensure_known(settings: Settings, names: Collection[str]) -> None:
    for name in names:
        if name not in settings.hosts:
            raise not_found(f"the settings have no host {name!r}")


def _take_over(home: Home, reloaded: Reloaded) -> Collection[remote_hosts.Answer]:
    return remote_hosts.renew(home.path, reloaded.name, forget=False)


def _say_taken_over(
    name: str, answer: remote_hosts.Answer, done: str = "now uses the present tools of host {}"
) -> None:
    instance = f"instance {answer.instance.pid} ({answer.instance.label})"
    if answer.problem is None:
        say(f"{instance} {done.format(name)}")
    else:
        say(f"{instance} failed: {answer.problem}")
        say("hint: it may have other settings; restart it.")


def _answered(answer: remote_hosts.Answer) -> dict[str, Any]:
    return {"pid": answer.instance.pid, "problem": answer.problem}


def _reloaded(
    each: Reloaded, answers: dict[str, Collection[remote_hosts.Answer]]
) -> dict[str, Any]:
    return {**each.described(), "instances": [*map(_answered, answers.get(each.name, ()))]}
