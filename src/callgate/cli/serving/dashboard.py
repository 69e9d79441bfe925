"""`callgate dashboard`: a link that logs a browser in to a running instance, and the browser."""

from __future__ import annotations

import http.client
import json
from argparse import Namespace
from typing import Any
from urllib.parse import urlsplit

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.remote.instance_states import note_provenance
from callgate.cli.ui.browser import open_in_browser
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.surfaces.http.access import token_path
from callgate.surfaces.socket.instances import InstanceRecord, live

_LIMIT_S = 10.0


def dashboard(options: Namespace) -> int:
    refuse_within_a_call("callgate dashboard")
    if options.words:
        raise CliError(f"dashboard takes no {options.words[0]!r}")
    home = Home.from_environment().path
    instance = _instance(home, options.instance)
    note_provenance(instance)
    if options.rotate:
        _ask(home, instance, "/v1/token/rotate")
    link = _ask(home, instance, "/v1/login")
    if options.json:
        print_json(link)
        return OK
    print(link["url"], flush=True)
    if not options.no_open and not open_in_browser(link["url"]):
        say("callgate: no browser could be opened; the link works once, for a minute")
    return OK


def _instance(home: str, wanted: str | None) -> InstanceRecord:
    running = [each for each in live(home) if wanted in (None, str(each.pid), each.label)]
    serving = [each for each in running if each.http is not None]
    if not serving:
        message = "the instance was started with --no-http" if running else "no instance runs"
        raise CliError(
            message,
            hint="callgate serve --detach starts one.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="no_instance",
        )
    return serving[0]


def _ask(home: str, instance: InstanceRecord, path: str) -> Any:
    """What an instance answers to a request of its user."""
    address = urlsplit(instance.http or "")
    try:
        with open(token_path(home, instance.pid), encoding="ascii") as file:
            token = file.read().strip()
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=_LIMIT_S
        )
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", path, b"{}", headers)
            answer = connection.getresponse()
            payload = json.loads(answer.read())
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(instance, str(error)) from error
    if answer.status != 200:
        raise _no_answer(instance, str(payload.get("error", {}).get("message", answer.status)))
    return payload


def _no_answer(instance: InstanceRecord, problem: str) -> CliError:
    return CliError(
        f"instance {instance.pid} does not answer at {instance.http}: {problem}",
        hint="callgate status shows what runs.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="no_answer",
    )
