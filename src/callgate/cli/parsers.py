"""The parser of a command's options, with help that fits the terminal and callgate's errors."""

from __future__ import annotations

import argparse
from argparse import SUPPRESS as SUPPRESS

from callgate.cli.errors import CliError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_PIPE_COLUMNS = 78
"""The width of help in a pipe or a file."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that preserves line breaks, and reflows the help for a narrow terminal.

    The width comes from stdout's terminal, and is constant in a pipe or a file. argparse would
    prefer an exported COLUMNS, which another terminal may have set.
    """

    def __init__(self, prog: str) -> None:
        from callgate.cli.ui.terminal import room  # lazy: only for help  # noqa: PLC0415

        self._room = room()
        super().__init__(prog, width=_PIPE_COLUMNS if self._room is None else self._room - 1)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from callgate.cli.ui.tables import reflow  # lazy: only for help  # noqa: PLC0415

        filled = super()._fill_text(text, width, indent)
        return filled if self._room is None else reflow(filled, width)

    def _format_usage(self, *args: Any, **more: Any) -> str:
        from callgate.cli.ui.tables import wrap  # lazy: only for help  # noqa: PLC0415

        usage = super()._format_usage(*args, **more)
        if self._room is None:
            return usage
        return "\n  ".join(wrap(usage.rstrip(), self._width - 2)) + "\n\n"


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `CliError` for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        hint = f"See {self.prog} --help."
        unknown = message.partition("unrecognized arguments: ")[2]
        if unknown.startswith("-") and "-- COMMAND" in (self.usage or ""):
            hint = f"If they belong to COMMAND, write -- before COMMAND. {hint}"
        elif unknown.startswith("-"):
            from callgate.core.texts import nearest  # lazy: only for an error  # noqa: PLC0415

            near = nearest(unknown.split()[0].partition("=")[0], self._option_string_actions)
            if near is not None:
                hint = f"Did you mean {near}? {hint}"
        raise CliError(message, hint=hint)
