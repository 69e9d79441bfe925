"""`callgate dashboard`: create a login link for a running instance, and open it in a browser."""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli.command import Command, takes
from callgate.cli.options import JSON, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def dashboard(options: Namespace) -> int:
    from callgate.cli.errors import OK, CliError  # lazy: when it runs
    from callgate.cli.instance_http import find_instance, note_provenance  # lazy: as above
    from callgate.cli.nested_calls import refuse_within_a_call  # lazy: as above
    from callgate.cli.programs import open_in_browser  # lazy: as above
    from callgate.cli.ui.output import print_json  # lazy: as above
    from callgate.cli.ui.terminal import say  # lazy: as above
    from callgate.config.home import Home  # lazy: as above

    refuse_within_a_call("callgate dashboard")
    if options.words:
        raise CliError(f"unexpected argument {options.words[0]!r}: dashboard takes only options")
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
        say("callgate: no browser could be opened; open the link yourself within a minute")
    return OK


COMMANDS = {
    "dashboard": Command(
        "open the dashboard in a browser",
        "",
        takes(
            Option("--no-open", help="only print the link"),
            Option("--rotate", help="revoke every token and cookie first"),
            Option("--instance", metavar="PID|LABEL", help="default: the newest"),
            JSON,
        ),
        "The link works once, and for one minute.",
        dashboard,
    ),
}
