"""`callgate acp`: the agent of an editor, on stdin and stdout.

The command takes the two descriptors before it loads anything else, and redirects them. Output of
this process and of its children therefore never reaches the protocol. Code that the greeting does
not need is loaded after it is answered.
"""

from __future__ import annotations

import os

from callgate.cli.command import Command, takes
from callgate.cli.options import ACP, model_of
from callgate.cli.ui.terminal import say
from callgate.host import take_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from callgate.instance.wiring.runtime import Wired

_USAGE = 2


def acp(options: Any) -> int:
    if options.words:
        from callgate.cli.errors import CliError  # lazy: only for errors  # noqa: PLC0415

        raise CliError("acp takes no arguments")
    if options.print_config:
        from callgate.features.editor.setup import show  # lazy: not for an editor  # noqa: PLC0415

        return show(options)
    if options.setup:
        from callgate.features.editor.setup import set_up  # lazy: not for an editor  # noqa: PLC0415

        return set_up()
    if os.isatty(0) or os.isatty(1):
        say("callgate acp must be started by an editor, which connects to its stdin and stdout.")
        say("Its settings: callgate acp --print-config zed (or neovim, jetbrains, emacs, vscode)")
        return _USAGE
    from callgate.config.home_check import home_path  # lazy: not for what only prints  # noqa: PLC0415

    home_path()  # refuses a home that other users control
    requests, answers = take_streams()
    return _serve(requests, answers, options)


def _level(options: Any) -> str:
    if options.vv:
        return "debug"
    return "info" if options.v else "warning"


def _serve(requests: int, answers: int, options: Any) -> int:
    import asyncio  # lazy: after the streams were taken  # noqa: PLC0415

    from callgate.cli.logs import set_up  # lazy: the same  # noqa: PLC0415
    from callgate.features.editor.instance import serve_editor  # lazy: the same  # noqa: PLC0415
    from callgate.features.editor.stdio import AcpOptions  # lazy: the same  # noqa: PLC0415
    from callgate.sandbox.processes.command_marks import is_within_a_call  # lazy: the same  # noqa: PLC0415

    if is_within_a_call():
        from callgate.cli.nested_calls import refuse_within_a_call  # lazy: only for errors  # noqa: PLC0415

        refuse_within_a_call("callgate acp")
    set_up(options.debug, _level(options))
    chosen = AcpOptions(model_of(options), options.mode, options.unstable)
    verbose = options.v or options.vv

    def report(wired: Wired) -> None:
        from callgate.cli.ui import provenance  # lazy: after the greeting  # noqa: PLC0415

        provenance.begin(verbose=verbose)
        provenance.from_own_runtime(wired, os.getcwd())

    return asyncio.run(serve_editor(requests, answers, chosen, report))


COMMANDS = {
    "acp": Command(
        "serve an editor as its agent, over stdio",
        "",
        takes(*ACP),
        "An editor starts it and connects with the Agent Client Protocol. --print-config prints\n"
        "the settings for an editor.",
        acp,
        is_verbose_itself=True,
        reports_settings=True,
    ),
}
