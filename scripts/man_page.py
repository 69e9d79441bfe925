"""Generate the man page from the help of the commands: `python -m scripts.man_page`.

tests/packaging/test_system_files.py fails if deploy/man/callgate.1 differs from the output.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "deploy/man/callgate.1"


def page() -> str:
    """Return the whole page. Help in a pipe has one width, whatever the terminal has."""
    with contextlib.redirect_stdout(io.StringIO()):
        return _page()


def _page() -> str:
    from callgate.cli.command_line import every, help_text, parser_of
    from callgate.core.version import __version__

    overview = help_text(["help", "--all"]) or ""
    lines = [
        f'.TH CALLGATE 1 "" "callgate {__version__}" "User Commands"',
        ".SH NAME",
        r"callgate \- the one guarded door through which every tool call of an AI agent goes",
        ".SH SYNOPSIS",
        ".B callgate",
        "[--version] [--help] [--debug] COMMAND ...",
        ".SH DESCRIPTION",
        *_verbatim(overview.partition("\n\n")[2]),
        ".SH COMMANDS",
    ]
    for name in every():
        lines += [f'.SS "callgate {_escaped(name)}"', *_verbatim(parser_of(name).format_help())]
    lines += [".SH FILES", ".I ~/.callgate", "Settings, records and sessions (CALLGATE_HOME).", ""]
    return "\n".join(lines)


def _verbatim(text: str) -> list[str]:
    return [".nf", *(_escaped(line) for line in text.rstrip().splitlines()), ".fi"]


def _escaped(line: str) -> str:
    shown = line.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{shown}" if shown[:1] in (".", "'") else shown


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
