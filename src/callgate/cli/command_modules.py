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
            from callgate.cli.editor import acp  # lazy: this command alone  # noqa: PLC0415

            return acp
        case "audit":
            from callgate.cli.commands import audit  # lazy: this command alone  # noqa: PLC0415

            return audit
        case "call":
            from callgate.cli.commands import call  # lazy: this command alone  # noqa: PLC0415

            return call
        case "chat":
            from callgate.cli.commands import chat  # lazy: this command alone  # noqa: PLC0415

            return chat
        case "completion":
            from callgate.cli.commands import completion  # lazy: this command alone  # noqa: PLC0415

            return completion
        case "confirmations":
            from callgate.cli.commands import confirmations  # lazy: this command alone  # noqa: PLC0415

            return confirmations
        case "dashboard":
            from callgate.cli.serving import dashboard  # lazy: this command alone  # noqa: PLC0415

            return dashboard
        case "doctor":
            from callgate.cli.commands import doctor  # lazy: this command alone  # noqa: PLC0415

            return doctor
        case "events":
            from callgate.cli.commands import events  # lazy: this command alone  # noqa: PLC0415

            return events
        case "host":
            from callgate.cli.hosts import host  # lazy: this command alone  # noqa: PLC0415

            return host
        case "hosts":
            from callgate.cli.hosts import hosts  # lazy: this command alone  # noqa: PLC0415

            return hosts
        case "init":
            from callgate.cli.setup import init  # lazy: this command alone  # noqa: PLC0415

            return init
        case "keys":
            from callgate.cli.commands import keys  # lazy: this command alone  # noqa: PLC0415

            return keys
        case "mcp":
            from callgate.cli.mcp import subcommands  # lazy: this command alone  # noqa: PLC0415

            return subcommands
        case "parse":
            from callgate.cli.commands import parse  # lazy: this command alone  # noqa: PLC0415

            return parse
        case "policy":
            from callgate.cli.commands import policy  # lazy: this command alone  # noqa: PLC0415

            return policy
        case "preview":
            from callgate.cli.commands import preview  # lazy: this command alone  # noqa: PLC0415

            return preview
        case "run":
            from callgate.cli.commands import run  # lazy: this command alone  # noqa: PLC0415

            return run
        case "serve":
            from callgate.cli.serving import serve  # lazy: this command alone  # noqa: PLC0415

            return serve
        case "sessions":
            from callgate.cli.commands import sessions  # lazy: this command alone  # noqa: PLC0415

            return sessions
        case "skills":
            from callgate.cli.commands import skills  # lazy: this command alone  # noqa: PLC0415

            return skills
        case "status":
            from callgate.cli.serving import status  # lazy: this command alone  # noqa: PLC0415

            return status
        case "stop":
            from callgate.cli.serving import stop  # lazy: this command alone  # noqa: PLC0415

            return stop
        case "tools":
            from callgate.cli.commands import tools  # lazy: this command alone  # noqa: PLC0415

            return tools
        case "trust":
            from callgate.cli.commands import trust  # lazy: this command alone  # noqa: PLC0415

            return trust
        case "undo":
            from callgate.cli.commands import undo  # lazy: this command alone  # noqa: PLC0415

            return undo
        case "watch":
            from callgate.cli.commands import watch  # lazy: this command alone  # noqa: PLC0415

            return watch
    raise ValueError(first)
