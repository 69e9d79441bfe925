"""`callgate hosts`: how the hosts of the settings are, their logs, and starting them anew.

list     nothing is started: what is pinned, and how a running instance finds them
reload   start -> compare with what is pinned -> a yes -> pin -> running instances take over
restart  a running instance forgets the crashes of a host
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection, Iterable
from typing import Any

from callgate.cli.errors import EXIT_CODES, OK, CliError
from callgate.cli.hosts.lists import described, print_table
from callgate.cli.hosts.log_files import Log, show
from callgate.cli.hosts.reloads import Reload, Reloaded, settings_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.records.stores import not_found, words
from callgate.cli.remote import hosts as remote_hosts
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import Settings
from callgate.core.errors import ToolErrorClass
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.protocol.socket_v1.frames import HostEntry
from callgate.sources.hosts.provider import Hosts
from callgate.sources.provider_tools import entry
from callgate.wiring.hosts import make_hosts
from callgate.wiring.registration import register_known
from callgate.wiring.runtime import Wired
from callgate.wiring.surroundings import surroundings


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
        say("the settings name no hosts")
    print_table(entries.values(), "callgate hosts reload")
    return OK


def logs(options: Namespace) -> int:
    (name,) = words(options, "host")
    home = Home.from_environment()
    settings = settings_of(home)
    _ensure_known(settings, [name])
    show(Log(_hosts(home, settings).log_path(name)), options.n, follow=options.follow)
    return OK


def reload(options: Namespace) -> int:
    refuse_within_a_call("callgate hosts reload")
    if len(options.words) > 1:
        raise CliError(f"{options.words[1]!r} is one argument too many")
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
            hint="Without one, every command starts the hosts that it needs itself.",
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
        _say_taken_over(name, each, "starts host {} anew with its next call")
    done = any(each.problem is None for each in answers)
    return OK if done else EXIT_CODES[ToolErrorClass.NOT_FOUND]


def _hosts(home: Home, settings: Settings) -> Hosts:
    return make_hosts(home, settings, Sandbox(surroundings(home, settings)), ".")


def _entries(home: Home, settings: Settings) -> Iterable[HostEntry]:
    """How the hosts of the settings are, as far as that is known without starting one."""
    if not settings.hosts:
        return []
    wired = Wired(home, audit=False)
    try:
        register_known(wired, os.getcwd())
    except SettingsError:  # of tools that are no host's
        hosts = _hosts(home, settings)
        return [entry(hosts, name) for name in hosts.hosts]
    assert wired.hosts is not None
    return wired.hosts.entries()


def _ensure_known(settings: Settings, names: Collection[str]) -> None:
    for name in names:
        if name not in settings.hosts:
            raise not_found(f"the settings name no host {name!r}")


def _take_over(home: Home, reloaded: Reloaded) -> Collection[remote_hosts.Answer]:
    return remote_hosts.renew(home.path, reloaded.name, forget=False)


def _say_taken_over(
    name: str, answer: remote_hosts.Answer, done: str = "takes host {} over as it is now"
) -> None:
    instance = f"instance {answer.instance.pid} ({answer.instance.label})"
    if answer.problem is None:
        say(f"{instance} {done.format(name)}")
    else:
        say(f"{instance} does not: {answer.problem}")
        say("hint: it may have read other settings; stop it and start it anew.")


def _answered(answer: remote_hosts.Answer) -> dict[str, Any]:
    return {"pid": answer.instance.pid, "problem": answer.problem}


def _reloaded(
    each: Reloaded, answers: dict[str, Collection[remote_hosts.Answer]]
) -> dict[str, Any]:
    return {**each.described(), "instances": [*map(_answered, answers.get(each.name, ()))]}
