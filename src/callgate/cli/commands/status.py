"""`callgate status` and `callgate stop`: the running instances of this home."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.instance_http import InstanceHttp, end_instance, note_provenance, state_of
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui import provenance
from callgate.cli.ui.output import print_json
from callgate.cli.ui.tables import Column, print_field, print_rows
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.socket.instances import InstanceRecord, running
from callgate.socket.instances import running as instances

_LISTENER_S = 3.0
_LISTENERS = {
    "proven": "is this instance",
    "foreign": "is ANOTHER process, not this instance: do not send it a token",
    "silent": "does not answer",
}

_HEADINGS = (Column("pid"), Column("name"), Column("runs"), Column("socket"))


def status(options: Namespace) -> int:
    home = Home.from_environment().path
    running = instances(home)
    states = [state_of(each) for each in running]
    listening = [_listener_of(home, each) for each in running]
    for each, state in zip(running, states, strict=True):
        provenance.from_instance_at(each.socket, state.policy)
    if options.json:
        found = [
            {
                **each._asdict(),
                "reachable": each.is_reachable,
                "http_listener": listener,
                **state._asdict(),
            }
            for each, state, listener in zip(running, states, listening, strict=True)
        ]
        print_json({"instances": found})
        return OK if running else FAILED
    for each, state, listener in zip(running, states, listening, strict=True):
        since = datetime.fromtimestamp(each.started_at / 1000).strftime("%Y-%m-%d %H:%M:%S")
        where = each.socket if each.is_reachable else f"{each.socket} (missing)"
        print_rows(_HEADINGS, [(str(each.pid), each.label, f"since {since}", where)])
        print_field("  ", state.in_words)
        if listener is not None:
            print_field("  ", f"{each.http} {_LISTENERS[listener]}")
    if not running:
        print("no instance runs")
    return OK if running else FAILED


def _listener_of(home: str, instance: InstanceRecord) -> str | None:
    """Return the kind of process at the HTTP address of an instance; None if it has none."""
    if instance.http is None:
        return None
    return {True: "proven", False: "foreign", None: "silent"}[
        InstanceHttp(home, instance).is_proven(_LISTENER_S)
    ]


def stop(options: Namespace) -> int:
    refuse_within_a_call("callgate stop")
    if len(options.words) > 1:
        raise CliError(f"unexpected argument {options.words[1]!r}")
    home = Home.from_environment().path
    instance = _find(home, options.words[0] if options.words else None)
    note_provenance(instance)
    end_instance(home, instance, now=options.now)
    if options.json:
        print_json({"stopped": instance.pid})
    else:
        print(f"stopped {instance.pid} ({instance.label})")
    return OK


def _find(home: str, name: str | None) -> InstanceRecord:
    fitting = [each for each in running(home) if name in (None, str(each.pid), each.label)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(f"{each.pid} ({each.label})" for each in fitting)
        raise CliError(f"several instances run; name one of {names}", reason="ambiguous")
    raise CliError(
        "no instance runs" if name is None else f"no instance {name!r} runs",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )
