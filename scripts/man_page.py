"""The man page, made from the help of the commands themselves: `python -m scripts.man_page`.

tests/packaging/test_man_page.py fails where deploy/man/callgate.1 is not what this makes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "deploy/man/callgate.1"


def page() -> str:
    """The whole page. Widths of the terminal make no difference."""
    os.environ["COLUMNS"] = "80"
    from callgate.cli.command_line import every, help_text, parser_of
    from callgate.core.version import __version__

    overview = help_text(["--help"]) or ""
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
