"""`callgate dashboard`: a link that logs a browser in to a running instance, and the browser."""

from __future__ import annotations

from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.remote.instance_http import find_instance
from callgate.cli.remote.instance_states import note_provenance
from callgate.cli.ui.browser import open_in_browser
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home


def dashboard(options: Namespace) -> int:
    refuse_within_a_call("callgate dashboard")
    if options.words:
        raise CliError(f"dashboard takes no {options.words[0]!r}")
    home = Home.from_environment().path
    found = find_instance(home, options.instance)
    note_provenance(found.instance)
    if options.rotate:
        found.request("POST", "/v1/token/rotate", {})
    link = found.request("POST", "/v1/login", {})
    if options.json:
        print_json(link)
        return OK
    print(link["url"], flush=True)
    if not options.no_open and not open_in_browser(link["url"]):
        say("callgate: no browser could be opened; the link works once, for a minute")
    return OK
