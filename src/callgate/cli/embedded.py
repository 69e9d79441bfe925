"""The runtime of a command that uses no instance: settings, tools and a session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from callgate.cli.errors import CHECK_SETTINGS, CliError
from callgate.cli.logs import set_up
from callgate.cli.ui import provenance
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.dispatch.tools.registry import Registered
from callgate.instance.wiring.builder import (
    Register,
    build,
    register_configured,
    register_lazily,
)
from callgate.instance.wiring.runtime import Wired

if TYPE_CHECKING:  # a usual call is read without it
    from argparse import Namespace


def open_runtime(
    options: Namespace,
    *,
    audit: bool = False,
    register: Register = register_configured,
    meant: str | None = None,
    log: str = "error",
) -> tuple[Wired, Session]:
    """Return a runtime with every configured tool, and a session in the chosen workspace.

    `audit` opens the audit log, which only commands that make calls need. `meant` names the only
    tool that the command needs, so that sources of other tools are not loaded. `log` is the
    lowest level that is logged.
    """
    set_up(options.debug, log)
    if pool_workspace(options.workspace) is not None:
        raise CliError(
            f"{options.workspace} is on remote workers, and no callgate server runs here",
            hint="Start callgate serve and a worker; see callgate worker --help.",
            error_class=ToolErrorClass.HOST_UNAVAILABLE,
            reason="no_worker",
        )
    workspace = os.path.abspath(os.path.expanduser(options.workspace))
    if not os.path.isdir(workspace):
        raise CliError(f"--workspace: {workspace} is not a directory")
    try:
        register = register if meant is None else register_lazily
        wired = build(Home.from_environment(), workspace, register, audit=audit)
        if meant is not None:
            find_tool(wired, meant)
        session = wired.session(workspace, Mode(options.mode) if options.mode else None)
    except SettingsError as error:
        raise CliError(
            str(error),
            hint=f"Nothing runs until it is corrected. {CHECK_SETTINGS}",
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
    """Return the tool with this name or alias; a command line may write `read-file`."""
    registry = wired.registry
    return registry.find(name) or registry.find(name.replace("-", "_"))
