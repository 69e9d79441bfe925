"""The module of a command, loaded when the command runs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def command_module(first: str) -> ModuleType:
    """The module that is called like the first word of a command, and has a function for each of
    its last words."""
    match first:
        case "acp":
            from callgate.cli import acp  # lazy: this command alone  # noqa: PLC0415

            return acp
        case "audit":
            from callgate.cli import audit  # lazy: this command alone  # noqa: PLC0415

            return audit
        case "call":
            from callgate.cli import call  # lazy: this command alone  # noqa: PLC0415

            return call
        case "chat":
            from callgate.cli import chat  # lazy: this command alone  # noqa: PLC0415

            return chat
        case "completion":
            from callgate.cli import completion  # lazy: this command alone  # noqa: PLC0415

            return completion
        case "confirmations":
            from callgate.cli import confirmations  # lazy: this command alone  # noqa: PLC0415

            return confirmations
        case "dashboard":
            from callgate.cli import dashboard  # lazy: this command alone  # noqa: PLC0415

            return dashboard
        case "doctor":
            from callgate.cli import doctor  # lazy: this command alone  # noqa: PLC0415

            return doctor
        case "events":
            from callgate.cli import events  # lazy: this command alone  # noqa: PLC0415

            return events
        case "host":
            from callgate.cli import host  # lazy: this command alone  # noqa: PLC0415

            return host
        case "hosts":
            from callgate.cli import hosts  # lazy: this command alone  # noqa: PLC0415

            return hosts
        case "init":
            from callgate.cli import init  # lazy: this command alone  # noqa: PLC0415

            return init
        case "keys":
            from callgate.cli import keys  # lazy: this command alone  # noqa: PLC0415

            return keys
        case "mcp":
            from callgate.cli import mcp  # lazy: this command alone  # noqa: PLC0415

            return mcp
        case "parse":
            from callgate.cli import parse  # lazy: this command alone  # noqa: PLC0415

            return parse
        case "policy":
            from callgate.cli import policy  # lazy: this command alone  # noqa: PLC0415

            return policy
        case "preview":
            from callgate.cli import preview  # lazy: this command alone  # noqa: PLC0415

            return preview
        case "run":
            from callgate.cli import run  # lazy: this command alone  # noqa: PLC0415

            return run
        case "serve":
            from callgate.cli import serve  # lazy: this command alone  # noqa: PLC0415

            return serve
        case "sessions":
            from callgate.cli import sessions  # lazy: this command alone  # noqa: PLC0415

            return sessions
        case "skills":
            from callgate.cli import skills  # lazy: this command alone  # noqa: PLC0415

            return skills
        case "status":
            from callgate.cli import status  # lazy: this command alone  # noqa: PLC0415

            return status
        case "stop":
            from callgate.cli import stop  # lazy: this command alone  # noqa: PLC0415

            return stop
        case "tools":
            from callgate.cli import tools  # lazy: this command alone  # noqa: PLC0415

            return tools
        case "trust":
            from callgate.cli import trust  # lazy: this command alone  # noqa: PLC0415

            return trust
        case "undo":
            from callgate.cli import undo  # lazy: this command alone  # noqa: PLC0415

            return undo
        case "watch":
            from callgate.cli import watch  # lazy: this command alone  # noqa: PLC0415

            return watch
    raise ValueError(first)
