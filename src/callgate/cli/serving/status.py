"""`callgate status`: which instances run, where each listens, and by which settings it works."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime

from callgate.cli.errors import FAILED, OK
from callgate.cli.remote.instance_http import InstanceHttp
from callgate.cli.remote.instance_states import state_of
from callgate.cli.ui import provenance
from callgate.cli.ui.output import print_json
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.surfaces.socket.instances import InstanceRecord
from callgate.surfaces.socket.instances import running as instances

_LISTENER_S = 3.0
_LISTENERS = {
    "proven": "is this instance",
    "foreign": "is ANOTHER process, not this instance: send it no token",
    "silent": "does not answer",
}


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
        where = each.socket if each.is_reachable else f"{each.socket} (which is gone)"
        print(visible(f"{each.pid}  {each.label}  since {since}  {where}"))
        print(visible(f"  {state.in_words}"))
        if listener is not None:
            print(visible(f"  {each.http} {_LISTENERS[listener]}"))
    if not running:
        print("no instance runs")
    return OK if running else FAILED


def _listener_of(home: str, instance: InstanceRecord) -> str | None:
    """Which process answers at the HTTP address of an instance; None: it has no such address."""
    if instance.http is None:
        return None
    return {True: "proven", False: "foreign", None: "silent"}[
        InstanceHttp(home, instance).is_proven(_LISTENER_S)
    ]
