"""`callgate host`: serve the tools of a file over stdin and stdout."""

from __future__ import annotations

from argparse import Namespace

from callgate.cli.errors import CliError
from callgate.host.__main__ import main


def host(options: Namespace) -> int:
    if not options.words:
        raise CliError("no file or module was named", hint="See callgate host --help.")
    if len(options.words) > 1 and not options.script:
        raise CliError(f"unexpected argument {options.words[1]!r}")
    return main([*(["--script"] if options.script else []), *options.words])
