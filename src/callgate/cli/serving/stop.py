"""`callgate stop`: end an instance, and wait until it has gone."""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.remote.instance_states import note_provenance
from callgate.cli.ui.output import print_json
from callgate.config.home import Home
from callgate.config.instance_records import is_alive
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import InstanceTable
from callgate.core.errors import ToolErrorClass
from callgate.surfaces.socket.instances import InstanceRecord, running

_PATIENCE_S = 5.0
"""How long it may take to end once it has drained."""
_LOOK_EVERY_S = 0.02


def stop(options: Namespace) -> int:
    refuse_within_a_call("callgate stop")
    if len(options.words) > 1:
        raise CliError(f"{options.words[1]!r} is one argument too many")
    home = Home.from_environment().path
    instance = _find(home, options.words[0] if options.words else None)
    note_provenance(instance)
    os.kill(instance.pid, signal.SIGINT if options.now else signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_S + (0.0 if options.now else _drain_s())
    while any(each.pid == instance.pid for each in running(home)) or is_alive(instance.pid):
        if time.monotonic() > until:
            raise CliError(
                f"process {instance.pid} was told to stop and has not",
                error_class=ToolErrorClass.TIMEOUT,
                reason="still_running",
            )
        time.sleep(_LOOK_EVERY_S)
    if options.json:
        print_json({"stopped": instance.pid})
    else:
        print(f"stopped {instance.pid} ({instance.label})")
    return OK


def _drain_s() -> float:
    """How long the instance lets go on what runs: by the settings, or as long as is usual."""
    try:
        return load_user(Home.from_environment())[0].instance.drain_seconds
    except SettingsError:
        return InstanceTable().drain_seconds


def _find(home: str, name: str | None) -> InstanceRecord:
    fitting = [each for each in running(home) if name in (None, str(each.pid), each.label)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(f"{each.pid} ({each.label})" for each in fitting)
        raise CliError(f"which one? {names}", reason="ambiguous")
    raise CliError(
        "no instance runs" if name is None else f"no instance {name!r} runs",
        error_class=ToolErrorClass.NOT_FOUND,
        reason="not_found",
    )
