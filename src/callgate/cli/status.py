"""`callgate status`: which instances run, and where each listens."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime

from callgate.cli.exits import FAILED, OK
from callgate.cli.output import print_json
from callgate.cli.visible import visible
from callgate.config.places import Home
from callgate.surfaces.socket.instances import live


def status(options: Namespace) -> int:
    running = live(Home.from_environment().path)
    if options.json:
        print_json({"instances": [each._asdict() for each in running]})
        return OK if running else FAILED
    for each in running:
        since = datetime.fromtimestamp(each.started_at / 1000).strftime("%Y-%m-%d %H:%M:%S")
        print(visible(f"{each.pid}  {each.label}  since {since}  {each.socket}"))
    if not running:
        print("no instance runs")
    return OK if running else FAILED
