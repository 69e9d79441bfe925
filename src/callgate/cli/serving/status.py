"""`callgate status`: which instances run, where each listens, and by which settings it works."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime

from callgate.cli.errors import FAILED, OK
from callgate.cli.remote.instance_states import state_of
from callgate.cli.ui import provenance
from callgate.cli.ui.output import print_json
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.surfaces.socket.instances import running as instances


def status(options: Namespace) -> int:
    running = instances(Home.from_environment().path)
    states = [state_of(each) for each in running]
    for each, state in zip(running, states, strict=True):
        provenance.from_instance_at(each.socket, state.policy)
    if options.json:
        found = [
            {**each._asdict(), "reachable": each.is_reachable, **state._asdict()}
            for each, state in zip(running, states, strict=True)
        ]
        print_json({"instances": found})
        return OK if running else FAILED
    for each, state in zip(running, states, strict=True):
        since = datetime.fromtimestamp(each.started_at / 1000).strftime("%Y-%m-%d %H:%M:%S")
        where = each.socket if each.is_reachable else f"{each.socket} (which is gone)"
        print(visible(f"{each.pid}  {each.label}  since {since}  {where}"))
        print(visible(f"  {state.in_words}"))
    if not running:
        print("no instance runs")
    return OK if running else FAILED
