"""`callgate trust`: directories whose own settings callgate reads; they can only narrow."""

from __future__ import annotations

import os
from argparse import Namespace

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config import trust as trusting
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError
from callgate.config.trust import MCP, brought_items
from callgate.core.errors import ToolErrorClass
from callgate.feature import port


def trust(options: Namespace) -> int:
    home = Home.from_environment()
    if len(options.words) != (0 if options.list else 1):
        raise CliError("trust needs one directory, or --list")
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
        message = f"{real} is trusted: its .callgate/settings.toml can narrow your settings."
        message += "" if there else " That file does not exist yet."
        message += " Its present skills are approved; later ones are shown to you first."
        if any(name.startswith(MCP) for name in brought_items(real)):
            message += " Each of its MCP servers still needs callgate mcp approve."
        for name in brought_items(real):
            message += f"\n  {visible(name)}" + (f" ({unseen[name]})" if name in unseen else "")
    warnings = None if options.remove else port("hook_warnings")
    notes = [] if warnings is None else warnings(home.path, [real])
    if options.json:
        report = {"directory": real, "trusted": not options.remove, "changed": changed}
        print_json({**report, "warnings": notes})
        return
    say(message)
    for note in notes:
        say(visible(f"callgate: {note}"))
