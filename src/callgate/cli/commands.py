"""Which commands there are and what each takes. Light to import: no command is loaded here.

Options end at the first `--`. Everything behind it is a word, whatever it looks like, so a
name or a value that came from elsewhere can never become an option (`read`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from callgate.cli import options
from callgate.cli.exits import described
from callgate.cli.options import MODES, Option
from callgate.cli.problems import CliError

CALLERS = (
    "cli", "plugin", "agent", "llm", "acp", "http", "mcp", "library", "renderer", "internal",
)  # fmt: skip
DECISIONS = ("allow", "deny")
SCOPES = ("once", "session", "always")
FORMATS = ("markdown", "json")
OUTPUTS = ("text", "json", "stream-json")
SHELLS = ("bash", "zsh", "fish")
LANGUAGES = ("python", "node", "bash")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in our words and with our exit code."""

    def error(self, message: str) -> NoReturn:
        raise CliError(message, hint=f"See {self.prog} --help.")


class Adds(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *flags: str, **said: Any) -> Any: ...


class Command(NamedTuple):
    summary: str
    usage: str
    """What follows the command's name."""
    describe: Callable[[Parser], None]
    """Adds the options."""
    more: str = ""


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count < 1 << 31:
        raise ValueError
    return count


def _positive(text: str) -> int:
    count = _count(text)
    if not count:
        raise ValueError
    return count


# argparse puts these into words
_count.__name__, _positive.__name__ = "count", "number"


def _add(parser: Adds, *added: Option) -> None:
    for each in added:
        parser.add_argument(*each.flags, **each.for_argparse)


def _json(parser: Parser) -> None:
    _add(parser, options.JSON)


def _place(parser: Parser) -> None:
    _add(parser, options.WORKSPACE, options.MODE)


def _tools(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="also those not visible, and why")
    parser.add_argument("--names", action="store_true", help="names only, one a line")
    _json(parser)
    _place(parser)
    _add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _call(parser: Parser) -> None:
    _add(parser, *options.CALL)
    _add(parser.add_mutually_exclusive_group(), *options.TARGETS)


def _explain(parser: Parser) -> None:
    _add(parser, options.ARGS)
    _place(parser)
    parser.add_argument("--caller", choices=CALLERS, default="cli", help="who calls; default cli")
    _json(parser)


def _policy_test(parser: Parser) -> None:
    parser.add_argument(
        "--since", metavar="WHEN", default="7d",
        help="2026-01-31, 2026-01-31T12:00, or 90s, 15m, 2h, 7d ago; default 7d",
    )  # fmt: skip
    parser.add_argument("--limit", metavar="N", type=_positive, help="only the last N of them")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if any decision is loosened"
    )
    _add(parser, options.WORKSPACE)
    _json(parser)


def _trust(parser: Parser) -> None:
    parser.add_argument("--list", action="store_true", help="print the trusted directories")
    parser.add_argument("--remove", action="store_true", help="take the trust back")
    _json(parser)


def _tail(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=_count, default=20, help="how many; default 20")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new ones")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _search(parser: Parser) -> None:
    parser.add_argument("--text", metavar="T", help="found anywhere in the record")
    parser.add_argument("--tool", metavar="NAME")
    parser.add_argument("--session", metavar="ID")
    parser.add_argument("--decision", choices=DECISIONS)
    parser.add_argument("--error", metavar="CLASS", help="the class it ended in, such as timeout")
    parser.add_argument(
        "--since", metavar="WHEN", help="2026-01-31, 2026-01-31T12:00, or 90s, 15m, 2h, 7d ago"
    )
    parser.add_argument("-n", metavar="N", type=_count, help="only the last N that match")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _init(parser: Parser) -> None:
    parser.add_argument(
        "--workspace", action="store_true", help="settings for this directory instead"
    )
    _json(parser)


def _sessions_list(parser: Parser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--workspace", metavar="DIR", default=".", help="default: here")
    place.add_argument("--all", action="store_true", help="those of every workspace")
    parser.add_argument("-n", metavar="N", type=_positive, default=20, help="how many; default 20")
    parser.add_argument("--cursor", metavar="C", help="go on where a list ended")
    parser.add_argument("--workers", action="store_true", help="also the sessions of workers")
    _json(parser)


def _sessions_export(parser: Parser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="markdown")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: stdout")


def _sessions_fork(parser: Parser) -> None:
    parser.add_argument("--turn", metavar="T", help="the last turn to copy, by id or number")
    parser.add_argument("--title", metavar="TEXT", help="default: that of the original")
    _json(parser)


def _sessions_delete(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _json(parser)


def _events(parser: Parser) -> None:
    parser.add_argument("--session", metavar="ID", help="of this session only")
    parser.add_argument("--since", metavar="CURSOR", help="only what came after it")
    parser.add_argument("--type", metavar="T", action="append", help="of this type; repeatable")
    parser.add_argument("-n", metavar="N", type=_count, help="only the last N of those there are")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new ones")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _watch(parser: Parser) -> None:
    parser.add_argument("--session", metavar="ID", help="only calls of this session")
    parser.add_argument("--tool", metavar="NAME", help="only calls of this tool")
    parser.add_argument("--errors", action="store_true", help="only calls that end badly")
    parser.add_argument("--answer", action="store_true", help="ask here what is to be asked")
    parser.add_argument("--json", action="store_true", help="the events, one JSON object a line")


def _confirmations(parser: Parser) -> None:
    parser.add_argument("--session", metavar="ID", help="of this session only")
    _json(parser)


def _answer(parser: Parser) -> None:
    parser.add_argument("--scope", choices=SCOPES, default="once", help="default once")
    parser.add_argument("--reason", metavar="TEXT", help="told to the agent with a no")
    _json(parser)


def _undo(parser: Parser) -> None:
    parser.add_argument("--session", metavar="S", help="undo in this session, with --to")
    parser.add_argument("--to", metavar="TURN", help="what was done after the end of this turn")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.add_argument("--workspace", metavar="DIR", help="default: that of the changes")
    parser.add_argument("--mode", choices=MODES, help="ceiling of what may run")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--no-input", action="store_true", help="ask nothing: refuse instead")
    _json(parser)


def _preview(parser: Parser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--apply", action="store_true", help="make the changes without asking")
    chosen.add_argument("--discard", action="store_true", help="only show them")
    _place(parser)
    _add(parser, options.TIMEOUT)
    parser.add_argument("--yes", action="store_true", help="allow what the policy would ask about")
    parser.add_argument("--no-input", action="store_true", help="ask nothing: refuse instead")
    _json(parser)


def _serve(parser: Parser) -> None:
    parser.add_argument(
        "--workspace", metavar="DIR", dest="workspaces", action="append",
        help="serve this directory and what lies in it; may be repeated; default: here",
    )  # fmt: skip
    parser.add_argument("--socket", metavar="PATH", help="default: run/callgate.sock in the home")
    parser.add_argument("--label", metavar="NAME", help="by which others may name it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--foreground", action="store_true", help="stay here: the default")
    where.add_argument("--detach", action="store_true", help="return once it is ready")
    http = parser.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="default: 127.0.0.1:4177, or any port")
    http.add_argument("--no-http", action="store_true", help="the socket alone")
    parser.add_argument(
        "--http-allow-remote", action="store_true", help="--http may be seen by other machines"
    )
    parser.add_argument(
        "--dev", action="store_true", help="take over what changes in the plugins of hosts, unasked"
    )
    parser.add_argument("--mode", choices=MODES, help="ceiling of what may run")


def _dashboard(parser: Parser) -> None:
    parser.add_argument("--no-open", action="store_true", help="print the link, open no browser")
    parser.add_argument("--rotate", action="store_true", help="void every token and cookie first")
    parser.add_argument("--instance", metavar="PID|LABEL", help="default: the newest")
    _json(parser)


def _skills_list(parser: Parser) -> None:
    parser.add_argument("--names", action="store_true", help="names only, one a line")
    _add(parser, options.WORKSPACE)
    _json(parser)


def _skills_show(parser: Parser) -> None:
    _add(parser, options.WORKSPACE)
    _json(parser)


def _skills_new(parser: Parser) -> None:
    parser.add_argument(
        "--workspace", action="store_true", help="for everyone who works in this directory"
    )
    _json(parser)


def _memory(parser: Parser) -> None:
    _add(parser, options.WORKSPACE)
    _json(parser)


def _memory_list(parser: Parser) -> None:
    parser.add_argument("--scope", choices=("user", "workspace"), help="only these")
    _memory(parser)


def _memory_forget(parser: Parser) -> None:
    parser.add_argument("--for-good", action="store_true", help="also what it said before")
    _memory(parser)


def _host(parser: Parser) -> None:
    parser.add_argument("--script", action="store_true", help="of executables, not of Python")


def _host_new(parser: Parser) -> None:
    parser.add_argument("--lang", choices=LANGUAGES, default="python", help="default python")
    parser.add_argument("--dir", metavar="D", default=".", help="where; default: here")
    _json(parser)


def _host_check(parser: Parser) -> None:
    parser.add_argument(
        "--call", nargs="+", metavar=("TOOL", "key=value"), help="also run one of its tools"
    )
    parser.add_argument("--config", metavar="JSON", help="for its init; default {}")
    parser.add_argument(
        "--timeout", metavar="S", type=options.seconds, default=5.0,
        help="how long it may take to answer; default 5",
    )  # fmt: skip
    _json(parser)


def _hosts_logs(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=_count, default=20, help="lines; default 20")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new ones")


def _hosts_reload(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add(parser, options.WORKSPACE)
    _json(parser)


def _mcp_approve(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add(parser, options.WORKSPACE)
    _json(parser)


def _mcp_login(parser: Parser) -> None:
    _add(parser, options.WORKSPACE)


def _mcp_add(parser: Parser) -> None:
    parser.add_argument("--url", metavar="URL", help="reach it by HTTP, and start nothing")
    parser.add_argument("--header", metavar="NAME:VALUE", action="append",
                        help="with --url; ${NAME} stands for a variable; repeatable")  # fmt: skip
    parser.add_argument("--env", metavar="NAME[=VALUE]", action="append",
                        help="a variable that it sees: passed on, or set; repeatable")  # fmt: skip
    parser.add_argument("--network", metavar="none|loopback|all|HOST,...",
                        help="default none; all for programs that fetch it first")  # fmt: skip
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    parser.add_argument("--effect", choices=("none", "read", "write", "network", "execute"),
                        help="the most that its tools can do; default execute")  # fmt: skip
    parser.add_argument("--trusted", action="store_true",
                        help="believe what it says of its tools' effects")  # fmt: skip
    parser.add_argument("--no-start", action="store_true", help="approve it another time")
    _mcp_approve(parser)


def _mcp_import(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _json(parser)


def _parse(parser: Parser) -> None:
    parser.add_argument("--strict", action="store_true", help="take the format to the letter")
    _json(parser)


def _talk(parser: Parser) -> None:
    parser.add_argument("--model", metavar="NAME", help="one of the settings, or KIND/MODEL")
    _place(parser)
    before = parser.add_mutually_exclusive_group()
    before.add_argument(
        "--continue", dest="go_on", action="store_true",
        help="go on with the newest conversation here",
    )  # fmt: skip
    before.add_argument("--resume", metavar="ID", help="go on with this session")
    parser.add_argument("--allow", metavar="TOOL", action="append",
                        help="say yes to what is asked about it; repeatable")  # fmt: skip


def _chat(parser: Parser) -> None:
    _talk(parser)
    parser.add_argument(
        "--plain", action="store_true", help="no colours, and the cursor stays where it is"
    )


def _run(parser: Parser) -> None:
    _talk(parser)
    parser.add_argument(
        "--output-format", choices=OUTPUTS, default="text",
        help="what the model says; its end as JSON; or events, one a line, then the end",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the same as stream-json")
    _add(parser, options.NO_INPUT)
    parser.add_argument("--max-turns", metavar="N", type=_positive, help="requests to the model")
    parser.add_argument("--max-tokens", metavar="N", type=_positive, help="of all requests")
    parser.add_argument("--time-limit", metavar="S", type=options.seconds,
                        help="stop after S seconds")  # fmt: skip


def _acp(parser: Parser) -> None:
    _add(parser, *options.ACP)


def _mcp_serve(parser: Parser) -> None:
    _place(parser)
    parser.add_argument(
        "--no-elicit", action="store_true",
        help="ask in the dashboard or a terminal only, never through the client",
    )  # fmt: skip


def _mcp_wrap(parser: Parser) -> None:
    parser.add_argument("--name", metavar="NAME", help="in rules: mcp.NAME/TOOL")
    parser.add_argument("--env", metavar="NAME", action="append",
                        help="a variable that is passed on to it; repeatable")  # fmt: skip
    parser.add_argument("--network", choices=("none", "loopback", "all"),
                        help="default none; all for programs that fetch it first")  # fmt: skip
    parser.add_argument("--profile", choices=("workspace", "open"), help="default workspace")
    parser.add_argument("--effect", choices=("none", "read", "write", "network", "execute"),
                        help="the most that its tools can do; default execute")  # fmt: skip
    parser.add_argument("--trusted", action="store_true",
                        help="believe what it says of its tools' effects")  # fmt: skip
    parser.add_argument("--sampling", action="store_true", help="it may ask a model")
    parser.add_argument("--approve", action="store_true",
                        help="look at what it says of its tools now, and accept it")  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="with --approve: do not ask")
    _mcp_serve(parser)


def _auth_google(parser: Parser) -> None:
    parser.add_argument("--account", metavar="NAME", help="which; default: the usual one")
    parser.add_argument(
        "--client-file", metavar="FILE", help="login: as Google's console gives it out"
    )
    parser.add_argument("--read-only", action="store_true", help="login: change nothing at Google")
    parser.add_argument(
        "--scope", metavar="SCOPE", action="append", help="login: ask for this too; repeatable"
    )
    parser.add_argument("--no-open", action="store_true", help="login: print the link only")
    parser.add_argument(
        "--port", metavar="N", type=_positive, help="login: where the browser comes back to"
    )
    _json(parser)


def _nothing(parser: Parser) -> None:
    """No options of its own."""


_PAIRS = """\
key=value is read by the tool's schema: limit=20 is a number where the schema says number and
a text where it says text; true and false are booleans; a list is a repeated key or JSON; an
object is JSON. Everything behind -- is taken as it is, never as an option."""

_ENVIRONMENT = """\
environment:
  CALLGATE_HOME   where settings and records lie; default ~/.callgate
  CALLGATE_LOG    error, warning, info, debug or trace, on stderr
  NO_COLOR, FORCE_COLOR"""

_IDS = """\
The beginning or the end of an id is enough, if no other begins or ends like it."""

_SCOPES = f"""\
once covers this call alone, session the same tool for the rest of the session, and always
saves a rule. {_IDS}"""

_ENDS = """\
Exits with 0 if the model came to its end, 1 if it did not answer, 3 if it declined or a limit
was reached, 130 if Ctrl-C stopped it. What was said is kept: --continue goes on."""

COMMANDS: Mapping[str, Command] = {
    "chat": Command(
        "talk to a model that works with the tools", "[PROMPT]", _chat,
        "Ctrl-C stops the model, and leaves at the prompt. /help says what else there is.",
    ),
    "run": Command(
        "let a model do one thing, for scripts", "PROMPT|-", _run,
        "Only what the model says goes to stdout. Stdin, where it is no terminal, is added to\n"
        "the prompt. Where nobody can be asked, what must be asked is refused.\n\n" + _ENDS,
    ),
    "tools": Command("list the tools", "", _tools),
    "call": Command("run one tool once", "NAME [key=value ...]", _call, _PAIRS),
    "undo": Command(
        "put files back to what they were before a call", "[CALL_ID]", _undo,
        "Without a call it lists the last calls that changed files.",
    ),
    "preview": Command(
        "show what a command would change, then apply it or not", "-- COMMAND ...", _preview,
        "The command runs without network over an overlay of the workspace. A single word behind\n"
        "-- is a command line. Without a terminal nothing is applied unless --apply is given.",
    ),
    "policy explain": Command(
        "say what would be decided about a call, and by which rule",
        "TOOL [key=value ...]",
        _explain,
        f"{_PAIRS}\n\nExits with 0 whatever the decision is.",
    ),
    "policy test": Command(
        "say which calls on record other settings would decide otherwise", "FILE|-", _policy_test,
        "FILE is checked and read as settings.toml would be. Nothing is run: each call is judged\n"
        "by what its record says, and paths by their text, without a look at the disk.",
    ),
    "trust": Command(
        "let a directory bring settings of its own, which may only narrow",
        "[DIR]",
        _trust,
    ),
    "audit tail": Command("show the last calls on record", "", _tail),
    "audit search": Command("find calls on record", "", _search),
    "audit verify": Command("check that the record was not changed", "", _json),
    "sessions list": Command("list the sessions of this directory, newest first", "",
                             _sessions_list),
    "sessions show": Command("say what is known of a session", "ID", _json, _IDS),
    "sessions export": Command("print a session to read, or as lines of JSON", "ID",
                               _sessions_export, _IDS),
    "sessions fork": Command("copy a session", "ID", _sessions_fork, _IDS),
    "sessions rename": Command("give a session a title", "ID TITLE", _json, _IDS),
    "sessions delete": Command("delete sessions for good", "ID ...", _sessions_delete, _IDS),
    "events": Command("show what happened in the sessions", "", _events),
    "watch": Command("show every call of every client as it happens", "", _watch),
    "confirmations": Command("list the questions that wait for an answer", "", _confirmations),
    "confirmations list": Command("the same", "", _confirmations),
    "confirmations allow": Command("let a call run that waits for it", "ID", _answer, _SCOPES),
    "confirmations deny": Command("refuse a call that waits for an answer", "ID", _answer,
                                  _SCOPES),
    "serve": Command("run an instance that others reach through a socket", "", _serve),
    "acp": Command(
        "be the agent of an editor, over stdin and stdout", "", _acp,
        "An editor starts it, and speaks the Agent Client Protocol with it. --print-config says\n"
        "what to write into the editor's settings.",
    ),
    "dashboard": Command(
        "open the page of an instance in a browser", "", _dashboard,
        "The link logs a browser in once, within a minute.",
    ),
    "status": Command("show the instances that run", "", _json),
    "stop": Command("stop an instance", "[PID|LABEL]", _json),
    "host": Command(
        "run the tools of a file, for whoever is at the other end of stdin and stdout",
        "FILE_OR_MODULE | --script PATH ...", _host,
        "FILE_OR_MODULE has @tool functions, or a plugin. Each PATH is an executable that\n"
        "answers schema, preview NAME and run NAME on its command line.",
    ),
    "host new": Command("write a plugin to begin with, and a test of it", "NAME", _host_new),
    "host check": Command(
        "check that a program does what every tool host has to do", "-- COMMAND ...",
        _host_check,
        "The program runs as you would run it, without a sandbox. No tool is run unless --call\n"
        "names it. Exits with 0 if all that is required is there, else with 1.",
    ),
    "hosts list": Command("list the hosts of the settings, and how each is", "", _json),
    "hosts logs": Command("show what a host wrote to stderr, and what happened to it", "NAME",
                          _hosts_logs),
    "hosts reload": Command(
        "start hosts anew, and accept what changed in their tools", "[NAME]", _hosts_reload,
        "What changed is shown, and pinned after a yes. A running instance takes it over; calls\n"
        "under way finish as they began.",
    ),
    "hosts restart": Command(
        "have a running instance end a host, and start it again with its next call", "NAME",
        _json, "Also one that was given up because it kept dying.",
    ),
    "skills list": Command(
        "list the skills: instructions that are asked for by name", "", _skills_list,
        "In a chat, a run or an editor, /NAME asks a model to follow one.",
    ),
    "skills show": Command("show what a skill says", "NAME", _skills_show),
    "skills new": Command("write a skill to begin with", "NAME", _skills_new),
    "memory list": Command("list what agents noted for later, newest first", "", _memory_list),
    "memory edit": Command(
        "put an entry right", "ID [TEXT]", _memory,
        "Without a TEXT it is read from stdin; at a terminal your EDITOR opens.",
    ),
    "memory forget": Command("have entries forgotten", "ID ...", _memory_forget),
    "mcp serve": Command(
        "offer the tools to an MCP client, over stdin and stdout", "", _mcp_serve,
        "A client starts it. Where a person must be asked, the client shows the question if it\n"
        "can; callgate confirmations and the dashboard can answer it as well.",
    ),
    "mcp wrap": Command(
        "put the gate before one MCP server, for an MCP client", "-- COMMAND ...", _mcp_wrap,
        "A client starts it in place of COMMAND. Its tools keep their names; each call is judged\n"
        "by the policy and recorded, and the server runs in the sandbox.",
    ),
    "mcp list": Command("list the MCP servers of the settings, and how each is", "", _json),
    "mcp add": Command(
        "add an MCP server to your settings, and approve its tools", "NAME [-- COMMAND ...]",
        _mcp_add, "It is started once; what it says of its tools is shown, and pinned after a yes.",
    ),
    "mcp remove": Command("take an MCP server out of your settings", "NAME", _json),
    "mcp import": Command(
        "add the MCP servers of another program's configuration", "FILE", _mcp_import,
        "FILE is JSON as Claude Desktop, Cursor, VS Code or Zed have it. What would be added is\n"
        "shown, and written after a yes; nothing is started.",
    ),
    "mcp approve": Command(
        "start MCP servers anew, and accept what they say of their tools", "[NAME]", _mcp_approve,
        "A tool that is new or has changed is not offered before. A running instance takes over\n"
        "what is accepted; calls under way finish as they began.",
    ),
    "mcp login": Command("log in at an MCP server that wants to know who you are", "NAME",
                         _mcp_login),
    "mcp logs": Command("show what an MCP server wrote to stderr, and what happened to it", "NAME",
                        _hosts_logs),
    "mcp restart": Command(
        "have a running instance end an MCP server, and start it again with its next call", "NAME",
        _json, "Also one that was given up because it kept dying.",
    ),
    "parse": Command(
        "show the tool calls that a model wrote as text; run none", "FILE|-", _parse,
        "Exits with 0 if there is something to run or nothing to do, with 2 if nothing could be\n"
        "read.",
    ),
    "keys set": Command(
        "store the key of a model or provider", "NAME", _json,
        "NAME is that of a [models.NAME], or anthropic, or openai. The key is typed without being\n"
        "shown, or comes on stdin; it is never a word of the command line.",
    ),
    "keys list": Command("say for which models there is a key, and where it comes from", "", _json),
    "keys delete": Command("forget a key that was stored", "NAME", _json),
    "auth google": Command(
        "log in to Google, for mail, files, calendar, documents, sheets and tasks",
        "login [SERVICE ...] | status | logout", _auth_google,
        "A SERVICE is one of gmail, drive, calendar, docs, sheets, tasks; without one it is all.\n"
        "What was allowed before stays allowed. logout takes the leave back at Google too.",
    ),
    "doctor": Command("check the installation, one line a check", "", _json),
    "init": Command("write commented settings and a sample tool", "", _init),
    "completion": Command("print a completion script", "|".join(SHELLS), _nothing),
}  # fmt: skip

GROUPS = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS if " " in name))


def parser_of(name: str) -> Parser:
    command = COMMANDS[name]
    usage = " ".join(filter(None, [f"callgate {name}", "[options]", command.usage]))
    parser = Parser(
        prog=f"callgate {name}",
        usage=usage,
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=command.more or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    command.describe(parser)
    _add(parser, options.DEBUG)
    return parser


def read(name: str, given: Sequence[str]) -> argparse.Namespace:
    """The options of a command, and its `words`: what stands beside them and behind `--`."""
    end = given.index("--") if "--" in given else len(given)
    chosen = parser_of(name).parse_intermixed_args(list(given[:end]))
    chosen.words += given[end + 1 :]
    return chosen


def split(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the command's name off the front; None where there is none."""
    if not given:
        return None, []
    first, rest = given[0], list(given[1:])
    if rest and f"{first} {rest[0]}" in COMMANDS:
        return f"{first} {rest[0]}", rest[1:]
    if first in COMMANDS:
        return first, rest
    if first in GROUPS:
        if rest and rest[0] in ("-h", "--help"):
            return None, rest
        known = ", ".join(name.split()[1] for name in COMMANDS if name.startswith(f"{first} "))
        raise CliError(f"{first} needs one of: {known}", hint="See callgate --help.")
    kind = "option" if first.startswith("-") else "command"
    raise CliError(f"there is no {kind} {first!r}", hint="See callgate --help.")


def help_text() -> str:
    rows = [f"  {name:<21}{command.summary}" for name, command in COMMANDS.items()]
    parts = [
        "usage: callgate [--version] [--help] [--debug] COMMAND ...",
        "Every tool call of an AI agent through one guarded door.",
        "\n".join(["commands:", *rows]),
        described(),
        _ENVIRONMENT,
        "callgate COMMAND --help says more.",
    ]
    return "\n\n".join(parts)
