"""Commands for third-party agents: `protect`, `hook`, `sandbox` and `acp-proxy`.

The agents' hooks run `hook_client`.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from callgate.cli.command import Command, add, deferred, takes
from callgate.cli.options import EDITORS, JSON, MODES, WORKSPACE, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from callgate.cli.parsers import Parser

_DRY_RUN = Option("--dry-run", help="show the change without writing it")
_PROJECT = Option("--project", help="use the agent's settings in the workspace")
_AGENT = "claude|codex|gemini|cursor|opencode|qwen|vibe|kimi|copilot|cline"


def _protect(parser: Parser) -> None:
    for name, about in (
        ("trust", "trust this directory, so that the agent may work here"),
        ("service", "start callgate at each login, by a systemd user service"),
    ):
        group = parser.add_mutually_exclusive_group()
        group.add_argument(f"--{name}", action="store_true", default=None, help=about)
        group.add_argument(
            f"--no-{name}", dest=name, action="store_false", help="do not do so, and do not ask"
        )
    parser.add_argument("--yes", action="store_true", help="answer every question with yes")
    parser.add_argument(
        "--undo", action="store_true", help="remove the hook; with the last hook, also the service"
    )
    add(parser, WORKSPACE, JSON)


def _hook_install(parser: Parser) -> None:
    parser.add_argument("--form", choices=("http", "command"), help="only command is supported")
    parser.add_argument(
        "--managed", action="store_true", help="print the settings for an administrator to install"
    )
    add(parser, _PROJECT, WORKSPACE, _DRY_RUN, JSON)


def _acp_proxy(parser: Parser) -> None:
    parser.add_argument(
        "--network",
        metavar="agent|none|loopback|all|HOST,...",
        help="network access; default agent: the hosts of its model",
    )
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    for name, about in (
        ("--env", "environment variable to pass on; may be repeated"),
        ("--writable", "additional writable directory; may be repeated"),
        ("--readable", "additional readable directory; may be repeated"),
    ):
        metavar = "NAME" if name == "--env" else "DIR"
        parser.add_argument(name, metavar=metavar, action="append", default=[], help=about)
    parser.add_argument(
        "--workspace",
        metavar="DIR",
        help="workspace of the process before a session; default: this directory",
    )
    add(parser, Option("--mode", choices=MODES, help="initial mode of sessions"))
    parser.add_argument(
        "--unstable", action="store_true", help="also support proxy chains, an ACP draft"
    )
    parser.add_argument(
        "--print-config", choices=EDITORS, help="print the configuration for an editor"
    )


def _sandbox(parser: Parser) -> None:
    parser.add_argument(
        "--network",
        metavar="none|ask|all|HOST,...",
        help="network access; default: [hooks] network",
    )
    parser.add_argument("--no-hooks", action="store_true", help="install no hooks for this run")
    add(parser, WORKSPACE)


def _module(name: str) -> ModuleType:
    module: ModuleType
    match name.split():
        case ["acp-proxy"]:
            from callgate.features.agents.commands import acp_proxy as module  # lazy: when it runs
        case ["hook", _]:
            from callgate.features.agents.commands import hook as module  # lazy: when it runs
        case ["protect"]:
            from callgate.features.agents.commands import protect as module  # lazy: when it runs
        case ["sandbox"]:
            from callgate.features.agents.commands import sandbox as module  # lazy: when it runs
        case _:
            raise ValueError(name)
    return module


_DECLARED = {
    "acp-proxy": Command(
        "check calls between an editor and ACP agent",
        "-- AGENT ...",
        _acp_proxy,
        "An editor starts this command in place of AGENT, which runs in the sandbox. The policy\n"
        "checks its file accesses, terminals and questions, and the audit log records them. The\n"
        "editor and the other surfaces can approve them. The options add to [acp.proxy] in the\n"
        "settings.",
        reports_settings=True,
    ),
    "protect": Command(
        "protect an agent with callgate and test it",
        "[AGENT ...]",
        _protect,
        f"AGENT: {_AGENT}. Without one, callgate offers the\n"
        "installed agents. The command installs the hook, starts an instance, asks whether to\n"
        "trust this directory, and tests the hook. It is safe to repeat: it does the missing\n"
        "steps.\n\n"
        "Exit codes: 0: protected here; 1: not protected, for the printed reason; 3: this\n"
        "directory is not trusted, so the agent's calls are refused here.",
        is_local=True,
    ),
    "hook install": Command(
        "install callgate's hook in an agent's settings",
        _AGENT,
        _hook_install,
        "Adds hooks to the agent's settings, and shows the change. callgate protect also starts\n"
        "an instance and tests the hook. If callgate fails, the call is refused.",
        is_local=True,
    ),
    "hook remove": Command(
        "remove callgate's hook from an agent's settings",
        _AGENT,
        takes(_PROJECT, WORKSPACE, _DRY_RUN, JSON),
        "An otherwise unchanged file is restored byte for byte.",
        is_local=True,
    ),
    "hook status": Command(
        "show which agents are protected, and why not",
        "[AGENT]",
        takes(JSON),
        "Prints a verdict for each agent, then each reason and its fix.\n"
        "Exit code 1: a hook is installed, but its agent is not protected or is blocked here.",
        is_local=True,
    ),
    "hook test": Command(
        "test that an agent's hook denies a call",
        _AGENT,
        takes(JSON),
        "Runs the hook, then the agent's own program with a scripted model on this machine. The\n"
        "instance refuses the test's call without a question, and the agent must obey.",
        is_local=True,
    ),
    "hook run": Command(
        "run the hook of an agent over stdio",
        "AGENT [pre|post|prompt]",
        takes(),
        is_local=True,
    ),
    "sandbox": Command(
        "run a program or agent in the sandbox",
        "-- COMMAND ...",
        _sandbox,
        "The workspace is writable; callgate's home is masked. A known agent gets its hooks for\n"
        "this run. [hooks] and [sandbox] in the settings control its access.",
        is_local=True,
    ),
}

COMMANDS = deferred(_DECLARED, _module)
