"""`callgate trust`: which directories may bring settings of their own, which only narrow."""

from __future__ import annotations

import os
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.hooks.checks import warnings as hook_warnings
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config import trust as trusting
from callgate.config.brought_items import MCP, brought_items
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass


def trust(options: Namespace) -> int:
    home = Home.from_environment()
    if len(options.words) != (0 if options.list else 1):
        raise CliError("trust takes one directory, or --list")
    try:
        if options.list:
            _list(home, options.json)
        else:
            refuse_within_a_call("callgate trust")
            _change(home, options.words[0], options)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    except NotADirectoryError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(
            f"the home cannot be used: {error}", error_class=ToolErrorClass.EXECUTION_ERROR
        ) from error
    return OK


def _list(home: Home, as_json: bool) -> None:
    directories = trusting.trusted(home)
    if as_json:
        print_json(directories)
    for directory in () if as_json else directories:
        print(visible(directory))


def _change(home: Home, directory: str, options: Namespace) -> None:
    if options.remove:
        real = os.path.realpath(os.path.expanduser(directory))
        changed = trusting.distrust(home, directory)
        message = f"{real} is no longer trusted." if changed else f"{real} was not trusted."
    else:
        unseen = trusting.unseen_items(home, os.path.expanduser(directory))
        real, changed = trusting.trust(home, directory), True
        there = os.path.exists(workspace_settings(real))
        message = f"{real} is trusted: its .callgate/settings.toml may narrow what you allow."
        message += "" if there else " It has none yet."
        message += " Its skills count as they are now; later ones are shown first."
        if any(name.startswith(MCP) for name in brought_items(real)):
            message += " Each of its MCP servers still needs callgate mcp approve."
        for name in brought_items(real):
            message += f"\n  {visible(name)}" + (f" ({unseen[name]})" if name in unseen else "")
    notes = [] if options.remove else hook_warnings(home.path, [real])
    if options.json:
        report = {"directory": real, "trusted": not options.remove, "changed": changed}
        print_json({**report, "warnings": notes})
        return
    say(message)
    for note in notes:
        say(visible(f"callgate: {note}"))
