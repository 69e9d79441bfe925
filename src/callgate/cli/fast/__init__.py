"""The fast path of `callgate call` and `acp`: their command line, read without argparse.

    arguments    the arguments of a call, without a schema validator
    instances    the sockets of running instances, without what a server needs
    connection   frames to and from an instance, without asyncio

Every module here is light to import. A command line that is wrong or unusual is left to
`commands.read`, which reads all others alike, so every message comes from one place.
"""

from __future__ import annotations

from callgate.cli.options import ACP, CALL, DEBUG, TARGETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from callgate.cli.options import Option


class ParsedOptions:
    """An attribute for each option, and the positional `words`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def read(given: Sequence[str]) -> Any:
    """The options of a call as a `ParsedOptions`; None: leave it to argparse."""
    values = _values(given, (*CALL, *TARGETS, DEBUG))
    if values is None or sum(bool(values[option.name]) for option in TARGETS) > 1:
        return None
    return ParsedOptions(values) if values["words"] else None


def read_acp(given: Sequence[str]) -> Any:
    """The same for `callgate acp`."""
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
