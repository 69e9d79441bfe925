"""Every decision of a large grid of calls, as one text: `decisions.txt` next to this file.

    rule book x containment x variant x tool x mode x caller --> a decision each

A cell goes through the same functions as a call: `decide`, then the rules that cannot bind a command
of another agent, then the doubt about what such a command does. All cells of a rule book share one
`Rulebook`, so that remembered decisions are compared too.

The text has one line for each distinct decision, named by a hash of its content, and one line for
each rule book and its containments: a hash of the cells in their order, and how many cells have
each decision. A change of one decision changes the text.

    python -m tests.kernel.policy.decision_snapshot            rewrite decisions.txt
    python -m tests.kernel.policy.decision_snapshot --cells    print every cell, to compare two commits
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from callgate.core.budgets import Amount, Overrun
from callgate.core.calls import AGENTS_PROCESS, BY_ITS_AGENT, CallerKind, ToolCall
from callgate.core.content import Label
from callgate.core.effects import Capability, SideEffects
from callgate.core.schemas import Checked
from callgate.core.sessions import Mode, ResolvedPath, Session
from callgate.core.tools import ToolDefinition
from callgate.dispatch.command_paths import CommandRules
from callgate.dispatch.commands.sandboxes import EDITORS_TERMINAL, Enclosure, outside
from callgate.dispatch.permission.deciding import Authority, decide
from callgate.dispatch.sites.examine import Consultations, restricted
from callgate.dispatch.sites.here import Here, Outside
from callgate.dispatch.subjects import Subject
from callgate.dispatch.tools.checks import Registered, examine
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import SourceTool
from callgate.features.fleet.worker.calls import WorkerRulebook
from callgate.policy.budgets import budget_unknown, over_budget
from callgate.policy.commands import parse_pattern
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision, Reason, refuse_effects
from callgate.policy.provenance.sources import NOWHERE, UNKNOWN, Flow, Source, SourceKind, Trace
from callgate.policy.rules import Budget, Origin, Outcome, Policy, PolicyMode, Rule, Setting
from callgate.sandbox.jails import Network, Profile

STORED = Path(__file__).with_name("decisions.txt")
WORKSPACE = "/code/app"
ALLOW, ASK, DENY = Outcome.ALLOW, Outcome.ASK, Outcome.DENY
NONE, READ, WRITE, NETWORK, EXECUTE = SideEffects
USER_FILE, WORKSPACE_FILE, RULES_FILE = "settings.toml", ".callgate/settings.toml", "rules.toml"


# --- tools ------------------------------------------------------------------------------------


class AnyTool:
    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition

    async def execute(self, input: Any, context: Any) -> Any: ...

    async def cancel(self) -> None: ...


def tool(name: str, effect: SideEffects, *capabilities: Capability, always_ask: bool = False) -> Registered:
    definition = ToolDefinition(
        name=name,
        description=name,
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
        side_effects=effect,
        capabilities=frozenset(capabilities),
        aliases=(f"{name}_alias",),
        sandboxed=effect is EXECUTE,
        always_ask=always_ask,
    )
    return examine(SourceTool(factory=lambda: AnyTool(definition)))


def tools(always_ask: bool) -> tuple[Registered, ...]:
    destructive, sends = Capability.DESTRUCTIVE, Capability.MUTATES_EXTERNAL
    return (
        tool("add", NONE, always_ask=always_ask),
        tool("read_file", READ, always_ask=always_ask),
        tool("write_file", WRITE, always_ask=always_ask),
        tool("delete_file", WRITE, destructive, always_ask=always_ask),
        tool("upload", NETWORK, sends, always_ask=always_ask),
        tool("wipe_account", NETWORK, sends, destructive, always_ask=always_ask),
        tool("shell", EXECUTE, always_ask=always_ask),
        tool("purge", EXECUTE, destructive, always_ask=always_ask),
    )


TOOLS = {always_ask: tools(always_ask) for always_ask in (False, True)}


# --- containments -----------------------------------------------------------------------------

CONTAINMENTS: dict[str, Enclosure | None] = {
    "no enclosure": None,
    "sandbox off": Enclosure(None, Network.ALL),
    "read-only sandbox": Enclosure(Profile.READ, read_only=True),
    "reading sandbox": Enclosure(Profile.READ, read_only=True, reading=True),
    "no network": Enclosure(Profile.WORKSPACE),
    "loopback": Enclosure(Profile.WORKSPACE, Network.LOOPBACK),
    "network": Enclosure(Profile.WORKSPACE, Network.ALL),
    "widened": Enclosure(Profile.WORKSPACE, Network.ALL, widened=True),
    "client's terminal": EDITORS_TERMINAL,
    "agent": outside(AGENTS_PROCESS),
}


# --- rule books -------------------------------------------------------------------------------


def stated(mode: PolicyMode, line: int = 1, file: str = USER_FILE) -> Setting:
    return Setting(mode, Origin(file, line))


def rule(decision: Outcome, line: int = 1, command: str | None = None, file: str = RULES_FILE, **more: Any) -> Rule:
    pattern = None if command is None else parse_pattern(command)
    return Rule(decision=decision, command=pattern, origin=Origin(file, line), **more)


def rules(*each: Rule) -> Rulebook:
    return Rulebook(Policy(rules=each))


def narrowing(user: Policy = Policy(), **more: Any) -> Rulebook:
    return Rulebook(user, Policy(**more))


def own(mode: PolicyMode, line: int = 1) -> Setting:
    return stated(mode, line, WORKSPACE_FILE)


AUTO, ONCE, PROMPT, DENIED = PolicyMode
TRUSTED: dict[str, Any] = {"trusted_workspaces": ("/code",), "trusted_origin": Origin(USER_FILE, 9)}
EVERY_TOOL = ("add", "read_file", "write_file_alias", "delete_file", "upload", "wipe_account", "shell", "purge")
BUDGETS = (
    Budget(amount="calls", per="day", tool="shell", limit=3, origin=Origin(USER_FILE, 20)),
    Budget(amount="bytes_out", per="session", limit=9),
)
_SETTINGS = refuse_effects("line 3 is not TOML", Origin(USER_FILE, 3))

BOOKS: dict[str, Callable[[], Rulebook]] = {
    "empty": lambda: Rulebook(Policy()),
    "settings refused": lambda: Rulebook(Policy(), None, None, _SETTINGS),
    "settings refused, with a rule": lambda: Rulebook(Policy(rules=(rule(ASK, tool="*"),)), None, None, _SETTINGS),
    **{
        f"per_tool {mode}": lambda mode=mode: Rulebook(Policy(per_tool=dict.fromkeys(EVERY_TOOL, stated(mode))))
        for mode in PolicyMode
    },
    "per_tool name and alias": lambda: Rulebook(
        Policy(per_tool={"shell": stated(AUTO), "shell_alias": stated(ONCE, 2), "upload_alias": stated(DENIED, 3)})
    ),
    **{
        f"class {mode}": lambda mode=mode: Rulebook(Policy(default=dict.fromkeys(SideEffects, stated(mode))))
        for mode in PolicyMode
    },
    "class network auto": lambda: Rulebook(Policy(default={NETWORK: stated(AUTO)})),
    "class network deny": lambda: Rulebook(Policy(default={NETWORK: stated(DENIED)})),
    "class execute auto": lambda: Rulebook(Policy(default={EXECUTE: stated(AUTO)})),
    "trusted": lambda: Rulebook(Policy(**TRUSTED)),
    "trusted elsewhere": lambda: Rulebook(Policy(trusted_workspaces=("/other",))),
    "trusted by its real directory": lambda: Rulebook(Policy(trusted_workspaces=("/real",)), None, "/real/app"),
    **{
        f"trusted, overrides {mode}": lambda mode=mode: Rulebook(
            Policy(**TRUSTED, trusted_workspace_overrides=dict.fromkeys(SideEffects, stated(mode, 10)))
        )
        for mode in PolicyMode
    },
    "trusted, class write deny": lambda: Rulebook(Policy(**TRUSTED, default={WRITE: stated(DENIED)})),
    "trusted, per_tool write_file": lambda: Rulebook(Policy(**TRUSTED, per_tool={"write_file": stated(PROMPT)})),
    "allow all": lambda: rules(rule(ALLOW, tool="*")),
    "ask all": lambda: rules(rule(ASK, tool="*")),
    "deny by alias": lambda: rules(rule(DENY, tool="*_ALIAS")),
    "allow all with network": lambda: rules(rule(ALLOW, tool="*", network=True)),
    "allow some hosts": lambda: rules(rule(ALLOW, tool="shell", network=("pypi.org",))),
    "ask with network": lambda: rules(rule(ASK, tool="*", network=True)),
    "deny without network": lambda: rules(rule(DENY, tool="shell", network=False)),
    "two host lists": lambda: rules(
        rule(ALLOW, 1, "git *", network=("github.com",)), rule(ALLOW, 2, "*", network=("pypi.org", "*.example"))
    ),
    "allow to untrusted destinations": lambda: rules(rule(ALLOW, tool="*", network=True, untrusted_destinations=True)),
    "allow a command to untrusted destinations": lambda: rules(
        rule(ALLOW, 1, "curl *", network=True, untrusted_destinations=True)
    ),
    "paths: allow src": lambda: rules(rule(ALLOW, path="src/**")),
    "paths: ask about .env": lambda: rules(rule(ASK, path="**/.env")),
    "paths: deny .env to read_file": lambda: rules(rule(DENY, tool="read_file", path="**/.env")),
    "paths: deny, absolute": lambda: rules(rule(DENY, path="/code/app/.ENV"), rule(ALLOW, 2, tool="*")),
    "commands: allow git": lambda: rules(rule(ALLOW, 1, "git *")),
    "commands: ask git push, allow git": lambda: rules(rule(ASK, 1, "git push *"), rule(ALLOW, 2, "git *")),
    "commands: deny curl": lambda: rules(rule(DENY, 1, "curl *")),
    "commands: ask ls": lambda: rules(rule(ASK, 1, "ls *"), rule(ALLOW, 2, "cat *")),
    "callers": lambda: rules(
        rule(ALLOW, 1, caller=CallerKind.AGENT), rule(ASK, 2, caller=CallerKind.MCP), rule(DENY, 3, tool="add")
    ),
    "callers: internal is asked": lambda: rules(rule(ASK, 1, caller=CallerKind.INTERNAL)),
    "arguments": lambda: rules(rule(ALLOW, 1, arguments={"path": "src/*"}), rule(ASK, 2, without=("path",))),
    "workspace of a rule": lambda: rules(rule(ALLOW, 1, workspace="/code"), rule(DENY, 2, workspace="/other")),
    "rule and per_tool deny": lambda: Rulebook(
        Policy(rules=(rule(ALLOW, tool="*"),), per_tool={"shell": stated(DENIED), "upload": stated(PROMPT, 2)})
    ),
    "read_commands auto": lambda: Rulebook(Policy(read_commands=stated(AUTO, 30))),
    "read_commands prompt": lambda: Rulebook(Policy(read_commands=stated(PROMPT, 30))),
    "read_commands auto, read_file asks": lambda: Rulebook(
        Policy(read_commands=stated(AUTO, 30), per_tool={"read_file": stated(PROMPT)})
    ),
    "read_commands auto, rule asks ls": lambda: Rulebook(
        Policy(read_commands=stated(AUTO, 30), rules=(rule(ASK, 1, "ls *"),))
    ),
    "read_commands auto, workspace prompts": lambda: narrowing(
        Policy(read_commands=stated(AUTO, 30)), read_commands=own(PROMPT)
    ),
    "read_commands auto, workspace denies reads": lambda: narrowing(
        Policy(read_commands=stated(AUTO, 30)), default={READ: own(DENIED)}
    ),
    "confirm_destructive": lambda: Rulebook(Policy(confirm_destructive=True)),
    "confirm_destructive of the workspace": lambda: narrowing(confirm_destructive=True),
    "confirm_destructive, class auto": lambda: Rulebook(
        Policy(confirm_destructive=True, default=dict.fromkeys(SideEffects, stated(AUTO)))
    ),
    "workspace allows": lambda: narrowing(default=dict.fromkeys(SideEffects, own(AUTO))),
    "workspace prompts": lambda: narrowing(
        Policy(default=dict.fromkeys(SideEffects, stated(AUTO))), default=dict.fromkeys(SideEffects, own(PROMPT))
    ),
    "workspace prompts once per tool": lambda: narrowing(per_tool=dict.fromkeys(EVERY_TOOL, own(ONCE))),
    "workspace denies network": lambda: narrowing(default={NETWORK: own(DENIED)}, hosts=("github.com",)),
    "workspace trusts itself": lambda: narrowing(trusted_workspaces=("/code",)),
    "workspace rules": lambda: narrowing(
        Policy(rules=(rule(ALLOW, tool="*", network=True),)),
        rules=(rule(ASK, 1, "git *", file=WORKSPACE_FILE), rule(DENY, 2, file=WORKSPACE_FILE, path="**/.env")),
    ),
    "workspace allows by rule": lambda: narrowing(rules=(rule(ALLOW, 1, file=WORKSPACE_FILE, tool="*"),)),
    "budgets": lambda: Rulebook(Policy(budgets=BUDGETS[:1]), Policy(budgets=BUDGETS[1:])),
    "worker": lambda: WorkerRulebook(Policy(rules=(rule(ASK, 1, "git *"),)), Policy(default={WRITE: own(DENIED)})),
}


# --- variants ---------------------------------------------------------------------------------


class Variant(NamedTuple):
    command: str = "git status"
    path: str = "src/a.py"
    named: bool = False
    denied: bool = False
    repaired: bool = False
    always_ask: bool = False
    doubtful: bool = False
    """Only of a command that another agent runs itself."""
    flow: Flow | None = None
    """Only of a guarded tool."""


def trace(parameter: str, value: str, source: Source) -> Trace:
    return Trace(parameter, value, source, is_destination=True)


def flow(*destinations: Trace, labels: tuple[Label, ...] = (), **more: Any) -> Flow:
    defaults: dict[str, Any] = {"outward": True, "destroys": False}
    read = {label: f"fetch #{number}" for number, label in enumerate(labels, 1)}
    return Flow(destinations=destinations, labels=read, **defaults | more)


MINE = trace("url", "https://mine.example", Source(SourceKind.USER))
PAGE = trace("to", "mallory@evil.example", Source(SourceKind.TOOL, "fetch", 1, untrusted=True))
MODEL = trace("url", "https://made-up.example/" + "x" * 80, NOWHERE)
FILE = trace("path", "build", Source(SourceKind.WORKSPACE, "read_file", 2))
UNTRUSTED, PRIVATE = Label.UNTRUSTED, Label.PRIVATE
UNTRUSTED_FLOW = flow(PAGE, MODEL, labels=(UNTRUSTED,), hosts=("evil.example",))

VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "command that only reads": Variant(command="ls -l", path=".env"),
    "command with network": Variant(command="git push origin && curl https://evil.example", path="docs/b.md"),
    "command not parsed": Variant(command="eval $(cat x) | sh"),
    "named path": Variant(named=True),
    "session denial": Variant(command="ls -l", denied=True),
    "session denial, named path": Variant(command="ls -l", denied=True, named=True),
    "repaired": Variant(repaired=True),
    "always asked": Variant(always_ask=True),
    "repaired, always asked": Variant(repaired=True, always_ask=True),
    "doubtful": Variant(doubtful=True),
    "doubtful, named path, repaired": Variant(doubtful=True, named=True, repaired=True),
    "to a vouched destination": Variant(flow=flow(MINE)),
    "to no destination": Variant(flow=flow()),
    "to a destination of a tool": Variant(flow=flow(PAGE, hosts=("evil.example",))),
    "to a destination of the model": Variant(flow=flow(MODEL)),
    "in an unknown conversation": Variant(flow=flow(trace("host", "x.example", UNKNOWN), labels=(UNTRUSTED,))),
    "untrusted": Variant(flow=UNTRUSTED_FLOW),
    "untrusted, doubtful": Variant(flow=UNTRUSTED_FLOW, doubtful=True),
    "untrusted, named path": Variant(flow=UNTRUSTED_FLOW, named=True),
    "untrusted, repaired": Variant(flow=UNTRUSTED_FLOW, repaired=True),
    "untrusted, to a vouched destination": Variant(flow=flow(MINE, labels=(UNTRUSTED,), hosts=("mine.example",))),
    "destroys what a file names": Variant(flow=flow(FILE, outward=False, destroys=True)),
    "untrusted, destroys": Variant(flow=flow(FILE, outward=False, destroys=True, labels=(UNTRUSTED,))),
    "private": Variant(flow=flow(takes_destinations=False, labels=(UNTRUSTED, PRIVATE))),
    "private, answered": Variant(flow=flow(takes_destinations=False, labels=(UNTRUSTED, PRIVATE), is_answered=True)),
    "private, always asked": Variant(flow=flow(takes_destinations=False, labels=(UNTRUSTED, PRIVATE)), always_ask=True),
    "secret": Variant(flow=flow(MINE, MODEL, carries_secret=True)),
    "secret to no destination": Variant(flow=flow(carries_secret=True, takes_destinations=False)),
}


# --- cells ------------------------------------------------------------------------------------


class Cell(NamedTuple):
    variant: str
    tool: str
    mode: Mode
    caller: CallerKind
    decision: Decision

    def __str__(self) -> str:
        return f"{self.variant}: {self.tool}, mode {self.mode}, caller {self.caller}"


class Grid(NamedTuple):
    """The cells of one rule book and one containment."""

    book: str
    containment: str
    cells: tuple[Cell, ...]


class FixedFlow:
    def __init__(self, flow: Flow | None) -> None:
        self.flow = flow

    def of(self, call: Any, subject: Any, guard: Any) -> Flow | None:
        return self.flow

    def copied(self, call: Any, subject: Any) -> str:
        return ""


class Denials:
    def __init__(self, denied: bool) -> None:
        self.denied = denied

    def denies(self, session: Any, tool: str, sha256: str) -> bool:
        return self.denied


def resolved(relative: str) -> ResolvedPath:
    return ResolvedPath(
        given=relative,
        real=f"{WORKSPACE}/{relative}",
        root=WORKSPACE,
        relative=relative,
        exists=True,
        protected=False,
        writable=True,
    )


SESSIONS = {mode: Session(workspace=WORKSPACE, mode=mode, id=f"s_{mode}") for mode in Mode}
PATHS = {path: (resolved(path),) for path in ("src/a.py", "docs/b.md", ".env")}


def files() -> Registry:
    registry = Registry()
    for each in TOOLS[False][1:3]:
        registry.register(each.factory)
    return registry


REGISTRY = files()


@cache
def call(mode: Mode, caller: CallerKind, repaired: bool) -> ToolCall:
    return ToolCall(tool="t", arguments={}, session=SESSIONS[mode], caller=caller, repaired=repaired)


@cache
def checked(command: str | None, path: str) -> Checked:
    arguments = {"path": path} if command is None else {"command": command}
    return Checked(arguments, b"", sha256(repr(arguments).encode()).hexdigest(), 0)


def callers(variant: str, mode: Mode) -> tuple[CallerKind, ...]:
    """All of them where little else varies; mode none refuses all calls alike."""
    if variant == "plain" and mode is Mode.ASK:
        return tuple(CallerKind)
    if mode is Mode.NONE and variant not in ("plain", "untrusted"):
        return ()
    is_about_caller = VARIANTS[variant].flow in (None, UNTRUSTED_FLOW)
    return (CallerKind.AGENT, CallerKind.INTERNAL) if is_about_caller else (CallerKind.AGENT,)


def cells(book: Rulebook, around: Enclosure | None) -> Iterator[Cell]:
    policies = lambda workspace: book  # noqa: E731
    rules = CommandRules(policies, REGISTRY)
    unset: Any = None
    site = Outside(Here(None, unset, unset, rules, Consultations(policies, unset)))
    for name, variant in VARIANTS.items():
        is_handed_over = around is not None and around.place == AGENTS_PROCESS
        if variant.doubtful and not is_handed_over:
            continue
        if variant.named and (around is None or not book.has_rules):
            continue
        grants: Any = Denials(variant.denied)
        flows: Any = FixedFlow(variant.flow)
        authority = Authority(
            policies=policies, grants=grants, flows=flows, confirmations=unset, preview=unset, save=unset
        )
        for tool in TOOLS[variant.always_ask]:
            if around is not None and tool.effect is not EXECUTE:
                continue
            if variant.flow is not None and not tool.is_guarded:
                continue
            is_command = tool.effect is EXECUTE
            arguments = checked(variant.command if is_command else None, variant.path)
            places = () if is_command and around is None else PATHS[variant.path]
            named = PATHS[".env"] if variant.named else ()
            subject = Subject(tool, arguments, places, around, named)
            for mode in Mode:
                for caller in callers(name, mode):
                    asked = call(mode, caller, variant.repaired)
                    decision = decide(asked, subject, authority)
                    if is_handed_over:
                        handover = msgspec.structs.replace(BY_ITS_AGENT, is_understood=not variant.doubtful)
                        handed_over = msgspec.structs.replace(asked, handover=handover)
                        decision = restricted(handed_over, subject, site, decision)
                    yield Cell(name, tool.name, mode, caller, decision)


def grids() -> Iterator[Grid]:
    for book_name, make in BOOKS.items():
        book = make()
        for containment, around in CONTAINMENTS.items():
            yield Grid(book_name, containment, tuple(cells(book, around)))


# --- text -------------------------------------------------------------------------------------


def described(decision: Decision) -> str:
    """A decision without its provenance, on one line."""
    flags = ("remember", "explicit", "counts_once", "any_destination", "is_read_command")
    details = [name for name in flags if getattr(decision, name)]
    details += [f"hosts {' & '.join(map(','.join, decision.hosts))}"] if decision.hosts else []
    details += [f"budgets {','.join(each.amount for each in decision.budgets)}"] if decision.budgets else []
    text = f"{decision.outcome} {decision.policy_reason}: {decision.sentence}"
    return text if not details else f"{text} [{'; '.join(details)}]"


def sources(decision: Decision) -> str:
    return "; ".join(f"{each.parameter} {each.value[:30]} from {each.source}" for each in decision.provenance)


@cache
def short(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:6] if text else ""


def over_budgets(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Each decision to which budgets may be applied, in ledgers that are full or cannot be read."""
    passed = Overrun(ledger="day/local", tool="shell", amount=Amount.CALLS, used=3, limit=3)
    sent = Overrun(ledger="session/s", tool="", amount=Amount.BYTES_OUT, used=9, limit=9)
    for each in decisions:
        if each.outcome is not DENY:
            counted = msgspec.structs.replace(each, budgets=BUDGETS)
            yield over_budget(counted, (passed,), ("shell",))
            yield over_budget(counted, (sent, passed), ("shell",))
            yield budget_unknown(counted, "the store is closed")


def snapshot() -> str:
    seen: dict[Decision, tuple[str, str]] = {}
    """By decision: the hash of its text, and the hash of its provenance."""
    lines: dict[tuple[str, str], list[str]] = {}
    """By rule book and what is decided: the containments that have it."""
    for book, containment, all_cells in grids():
        found: list[tuple[str, str]] = []
        for cell in all_cells:
            if cell.decision not in seen:
                seen[cell.decision] = (short(described(cell.decision)), short(sources(cell.decision)))
            found.append(seen[cell.decision])
        counts = sorted(Counter(name for name, _ in found).items())
        listed = " ".join(f"{name}*{count}" for name, count in counts)
        digest = sha256(repr(found).encode()).hexdigest()[:12]
        lines.setdefault((book, f"{digest} = {listed}"), []).append(containment)
    counted = "\n".join(f"{described(each)} {sources(each)}" for each in over_budgets(seen))
    a_few = over_budgets(
        [Decision(outcome=each, reason=Reason.RULE, sentence="Rule.", remember=True) for each in Outcome]
    )
    sections = {
        "Decisions": sorted({f"{name} {described(each)}" for each, (name, _) in seen.items()}),
        "Provenance": sorted({f"{name} {sources(each)}" for each, (_, name) in seen.items() if name}),
        "Over a budget": [f"all: {short(counted)}", *map(described, a_few)],
        "Rule books": [f"{book} | {', '.join(where)}: {what}" for (book, what), where in lines.items()],
    }
    return "\n".join(f"## {title}\n\n" + "\n".join(each) + "\n" for title, each in sections.items())


def main(words: list[str]) -> None:
    if words == ["--cells"]:
        for grid in grids():
            for cell in grid.cells:
                where = f"{grid.book} | {grid.containment} | {cell}"
                print(f"{where} -> {described(cell.decision)} {sources(cell.decision)}")
        return
    STORED.write_text(snapshot())


if __name__ == "__main__":
    main(sys.argv[1:])
