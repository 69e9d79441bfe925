"""`callgate host`: the process in which the tools of a file run."""

from __future__ import annotations

from argparse import Namespace

from callgate.cli.errors import CliError
from callgate.host.main import main


def host(options: Namespace) -> int:
    if not options.words:
        raise CliError("which file or module?", hint="See callgate host --help.")
    if len(options.words) > 1 and not options.script:
        raise CliError(f"{options.words[1]!r} is one argument too many")
    return main([*(["--script"] if options.script else []), *options.words])
