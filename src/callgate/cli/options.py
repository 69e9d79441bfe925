"""The options of `callgate call` and `callgate acp`: tables, and the parser of the fast path.

`command_line` passes the tables to argparse, whose import takes longer than a call through a
running instance. `read_call` and `read_acp` therefore parse common command lines without it.
Wrong and uncommon ones are left to argparse, so every error message comes from one place.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MODES = ("none", "read", "ask", "guarded", "write")
EDITORS = ("zed", "neovim", "jetbrains", "emacs", "vscode")


class Option:
    """One option. Without `metavar` and `choices` it takes no value."""

    __slots__ = ("choices", "default", "flags", "help", "metavar", "read")

    def __init__(
        self,
        *flags: str,
        help: str,
        metavar: str | None = None,
        choices: tuple[str, ...] | None = None,
        read: Callable[[str], Any] | None = None,
        default: str | None = None,
    ) -> None:
        self.flags = flags
        self.help = help
        self.metavar = metavar
        self.choices = choices
        self.read = read
        """Converts the text to a value, or raises `ValueError`."""
        self.default = default

    @property
    def name(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def takes_value(self) -> bool:
        return self.metavar is not None or self.choices is not None

    @property
    def for_argparse(self) -> dict[str, Any]:
        if not self.takes_value:
            return {"action": "store_true", "help": self.help}
        settings = {
            "metavar": self.metavar,
            "choices": self.choices,
            "type": self.read,
            "default": self.default,
            "help": self.help,
        }
        return {key: value for key, value in settings.items() if value is not None}


def seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def minutes(text: str) -> float:
    return seconds(text)


minutes.__name__ = "number of minutes"
seconds.__name__ = "number of seconds"  # argparse shows it in its error message

ARGS = Option("--args", metavar="JSON", help="arguments as JSON; - reads stdin")
WORKSPACE = Option("--workspace", metavar="DIR", default=".", help="default: here")
MODE = Option("--mode", choices=MODES, help="upper limit of the permissions")
TIMEOUT = Option("--timeout", metavar="S", read=seconds, help="stop the call after S seconds")
NO_INPUT = Option("--no-input", help="refuse instead of asking")
JSON = Option("--json", help="print one JSON object on stdout")
VERBOSE = Option("-v", "--verbose", help="show which instance and policy answered")
DEBUG = Option("--debug", help="show tracebacks")

CALL = (
    ARGS,
    WORKSPACE,
    MODE,
    TIMEOUT,
    Option("--yes", help="approve the call if it needs approval"),
    NO_INPUT,
    Option("--wait", help="wait for an answer through callgate confirmations"),
    JSON,
    Option("-q", "--quiet", help="do not print `ok` for an empty result"),
    Option("-v", "--verbose", help="show live output on stderr"),
)
TARGETS = (
    Option("--socket", metavar="PATH", help="use only the instance on this socket"),
    Option("--instance", metavar="PID|LABEL", help="use only this instance"),
    Option("--no-instance", help="use no running instance"),
)
"""Mutually exclusive."""

ACP = (
    Option("--model", metavar="NAME", help="a configured model, KIND/MODEL or scripted:FILE"),
    Option("--mode", choices=MODES, help="initial mode of sessions"),
    Option("-v", help="log connections and sessions on stderr"),
    Option("-vv", help="also log each request, without its content"),
    Option("--unstable", help="also enable unstable parts of the protocol"),
    Option("--print-config", choices=EDITORS, help="print the configuration for an editor"),
    Option("--setup", help="configure a model and its key at a terminal"),
)


def model_of(options: Any) -> str | None:
    """Return the `--model` option, with `scripted:FILE` as `scripted/` and an absolute path."""
    name: str | None = options.model
    kind, colon, path = (name or "").partition(":")
    return f"scripted/{os.path.abspath(path)}" if colon and kind == "scripted" else name


class ParsedOptions:
    """An attribute for each option, and the positional `words`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def read_call(given: Sequence[str]) -> Any:
    """Return the options of `callgate call`; None if argparse must read the command line."""
    values = _values(given, (*CALL, *TARGETS, DEBUG))
    if values is None or sum(bool(values[option.name]) for option in TARGETS) > 1:
        return None
    return ParsedOptions(values) if values["words"] else None


def read_acp(given: Sequence[str]) -> Any:
    """Return the options of `callgate acp`; None if argparse must read the command line."""
    values = _values(given, (*ACP, DEBUG))
    return None if values is None or values["words"] else ParsedOptions(values)


def _values(given: Sequence[str], options: Sequence[Option]) -> dict[str, Any] | None:
    by_flag = {flag: option for option in options for flag in option.flags}
    values: dict[str, Any] = {
        option.name: option.default if option.takes_value else False for option in options
    }
    end = given.index("--") if "--" in given else len(given)
    words: list[str] = []
    remaining = iter(given[:end])
    for word in remaining:
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, equals, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None or (equals and not flag.startswith("--")):
            return None
        if not option.takes_value:
            if equals:
                return None
            values[option.name] = True
            continue
        value = text if equals else next(remaining, None)
        if value is None or (not equals and value.startswith("-") and value != "-"):
            return None
        if not _take(option, value, values):
            return None
    values["words"] = [*words, *given[end + 1 :]]
    return values


def _take(option: Option, value: str, values: dict[str, Any]) -> bool:
    if option.choices is not None and value not in option.choices:
        return False
    try:
        values[option.name] = value if option.read is None else option.read(value)
    except ValueError:
        return False
    return True
