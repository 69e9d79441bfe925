"""The runtime inside this process, as the command line starts it: settings, tools, a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from callgate.cli.errors import CliError
from callgate.cli.logs import set_up
from callgate.cli.ui import provenance
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.dispatch.tools.registry import Registered
from callgate.wiring.registration import register_configured, register_lazily
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # a usual call is read without it
    from argparse import Namespace


def open_runtime(
    options: Namespace,
    *,
    audit: bool = False,
    register: Callable[[Wired, str], None] = register_configured,
    meant: str | None = None,
    log: str = "error",
) -> tuple[Wired, Session]:
    """A runtime with every configured tool, and a session in the chosen workspace.

    `audit` opens the record: only a command that makes calls needs it. `meant` is the one tool
    that a command is about: what brings others is not looked at. `log` is the least that is
    logged.
    """
    set_up(options.debug, log)
    if pool_workspace(options.workspace) is not None:
        raise CliError(
            f"{options.workspace} is on remote workers, and no callgate server runs here",
            hint="Start callgate serve, and a worker: see callgate worker --help.",
            error_class=ToolErrorClass.HOST_UNAVAILABLE,
            reason="no_worker",
        )
    workspace = os.path.abspath(os.path.expanduser(options.workspace))
    if not os.path.isdir(workspace):
        raise CliError(f"--workspace: {workspace} is not a directory")
    try:
        wired = Wired(Home.from_environment(), audit=audit)
        if meant is None:
            register(wired, workspace)
        else:
            register_lazily(wired, workspace)
            find_tool(wired, meant)
        session = wired.session(workspace, Mode(options.mode) if options.mode else None)
    except SettingsError as error:
        raise CliError(
            str(error),
            hint="Nothing runs until that is corrected.",
            reason="settings_invalid",
        ) from error
    except OSError as error:
        raise CliError(
            f"the home cannot be used: {error}",
            hint="See callgate doctor.",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="home_unusable",
        ) from error
    provenance.from_own_runtime(wired, workspace)
    for notice in wired.notices:
        say(f"callgate: {visible(notice)}")
    return wired, session


def find_tool(wired: Wired, name: str) -> Registered | None:
    """A tool by its name or alias; `read-file` is `read_file` as a command line spells it."""
    registry = wired.dispatcher.registry
    return registry.find(name) or registry.find(name.replace("-", "_"))
