"""What `settings.toml` may say. Unknown keys are errors: a misspelt rule must not be no rule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.mcp_servers import EnclosureTable, McpName, McpTable
from callgate.core.sessions import Mode
from callgate.models.tables import ModelTable
from callgate.policy.rules import Outcome
from callgate.shipped import PACKS
from callgate.tools.tables import DocumentsTable, GoogleTable, MemoryTable, WebTable

Count = Annotated[int, msgspec.Meta(ge=1)]
HostName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
PackName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
ModelName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z")]
SecretsVariable = Annotated[str, msgspec.Meta(pattern=r"^CALLGATE_SECRETS_[A-Z0-9_]{1,64}\Z")]
TargetName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z")]
Limit = Annotated[int, msgspec.Meta(ge=0)] | Literal["none"]
Amount = Annotated[int, msgspec.Meta(ge=0)]
Days = Annotated[float, msgspec.Meta(ge=0, le=36_500)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RuleTable(_Table, frozen=True):
    """`[[policy.rules]]`: every condition given must hold."""

    decision: Outcome
    """Of the rules that match a call, deny beats ask beats allow."""
    tool: str | None = None
    """A glob over the tool's name."""
    path: str | None = None
    """A glob over the files that the call touches; relative to the workspace, or absolute."""
    command: str | None = None
    """A pattern of words, for each command of a command line."""
    caller: CallerKind | None = None
    """Who calls."""
    arguments: dict[str, str] = {}
    """Argument to glob."""
    without: list[str] = []
    """Arguments that the call must not have, or have empty, such as `["cc", "bcc"]`."""
    arguments_sha256: str | None = None
    """Exactly these arguments: the hash that a question shows."""
    workspace: str | None = None
    """The directory in which the session works."""
    network: bool | list[str] | None = None
    """Whether the command asks for the network; a list names the hosts that it gets."""
    untrusted_destinations: bool = False
    """Whether an allow holds also for destinations that untrusted content brought in."""


class GuardTable(_Table, frozen=True):
    """`[policy.guard]`: what may leave a session that has read untrusted content."""

    enabled: bool = True
    """Whether such a session asks before anything goes where the user did not say."""
    destinations: list[str] = []
    """Globs of mail addresses, hosts and accounts to which anything may go."""
    untrusted: list[str] = []
    """Globs of tools whose output strangers can have written, beside those that declare it."""
    private: list[str] = []
    """Globs of tools whose output is private, beside those that declare it."""
    vouched: list[str] = []
    """Globs of tools whose output is as good as the user's words, such as an address book."""
    parameters: dict[str, list[str]] = {}
    """Tool to the parameters that say where its effect goes, where their names do not tell."""
    without_conversation: bool = False
    """Whether sessions are guarded in which nobody tells what the user wrote."""


class AmountsTable(_Table, frozen=True):
    """How much may happen before a person is asked about each further call. Absent: without limit;
    0: each is asked about."""

    calls: Amount | None = None
    """Calls that were let run."""
    bytes_out: Amount | None = None
    """Bytes of the arguments of calls that use the network."""
    destinations: Amount | None = None
    """Different recipients, hosts and other destinations of calls that use the network."""


class ToolBudgetsTable(_Table, frozen=True):
    session: AmountsTable = AmountsTable()
    """Of this tool in one session."""
    day: AmountsTable = AmountsTable()
    """Of this tool on one day."""


class BudgetsTable(_Table, frozen=True):
    """`[policy.budgets]`: how much may happen before a person is asked about each further call, in
    every mode and whatever rules and earlier answers say."""

    session: AmountsTable = AmountsTable()
    """In one session, with those of its sub-agents."""
    day: AmountsTable = AmountsTable()
    """On one day (UTC), in all sessions of one person."""
    tools: dict[str, ToolBudgetsTable] = {}
    """The same for one tool: `session` and `day`."""


class PolicyTable(_Table, frozen=True):
    """`[policy]`: what runs, what asks, what never runs."""

    default: dict[str, str] = {}
    """Effect class (none, read, write, network, execute) to auto, prompt, prompt_once, deny."""
    per_tool: dict[str, str] = {}
    """Tool to auto, prompt, prompt_once or deny, before its class is looked at."""
    trusted_workspaces: list[str] = []
    """Directories in which writes need no question."""
    trusted_workspace_overrides: dict[str, str] = {}
    """Effect class to auto, prompt, prompt_once or deny, in these."""
    rules: list[RuleTable] = []
    guard: GuardTable = GuardTable()
    confirm_destructive: bool = False
    """Whether mode write asks before a destructive tool all the same."""
    budgets: BudgetsTable = BudgetsTable()


class ExtraRoot(_Table, frozen=True):
    """`[[workspace.extra_roots]]`: directories beside the workspace."""

    path: str
    """A directory."""
    access: Literal["read", "write"] = "read"
    """What tools may do there."""


class WorkspaceTable(_Table, frozen=True):
    extra_roots: list[ExtraRoot] = []


class LimitsTable(_Table, frozen=True):
    """`[limits]`: times and sizes of calls."""

    concurrency: Count = 4
    """Calls of a session that run at once; further ones wait."""
    confirmation_timeout_s: Seconds = 300.0
    """How long a question waits for its answer."""
    max_timeout_s: Seconds = 3600.0
    """The longest that any call may take, whatever its tool says."""
    cancel_grace_s: Seconds = 0.5
    """How long a cancelled tool that does not react is left to itself."""
    abandon_s: Seconds = 30.0
    """How long a cancelled tool that reacts may take to finish."""
    max_argument_bytes: Count = 8 * 1024 * 1024
    """The size of a call's arguments as JSON."""
    stall_s: Seconds = 5.0
    """How long the event loop may stand still before its stack is logged."""
    stop_s: Seconds = 30.0
    """How long a process may take to end after a signal, before it is ended by force."""


class AuditTable(_Table, frozen=True):
    """`[audit]`: the size of the audit log."""

    max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 64 * 1024 * 1024
    """At this size the file is closed, and a new one begun."""
    keep: Count = 8
    """How many closed files are kept."""


class DurabilityTable(_Table, frozen=True):
    """`[durability]`: what is waited for before a call is answered."""

    files: Literal["synced", "fast"] = "synced"
    """`"synced"`: a file that a tool wrote, output of a call with effects that was too large to
    show, and what undo keeps outlive a power cut once the call is answered. `"fast"`: they outlive
    the end of callgate, and a power cut may lose or empty what was written in the last half
    minute; audit log and store are synced all the same."""


class StoreTable(_Table, frozen=True):
    """`[store]`: where sessions and all that belongs to them are kept."""

    url: str | None = None
    """Absent: in a file of the home. `postgresql://...`: in a database that several servers share.
    `sqlite:///DIRECTORY`: in another directory of this machine, which several homes may share."""
    url_env: str | None = None
    """The name of an environment variable that has it, with the password in it, say."""
    listen_url: str | None = None
    """A direct connection to the same database, where `url` leads to a pooler (PgBouncer in
    transaction mode); `"none"`: there is none, changes are looked for ten times a second."""
    schema: Annotated[str, msgspec.Meta(pattern="^[a-z_][a-z0-9_]{0,40}$")] = "callgate"
    """In which the tables are; made if it is not there."""
    readers: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    """Connections that only read. A server has two more: one writes, one listens."""
    answer_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=300)] = 10
    """How long the database may take to answer before it counts as away; half of it is how long
    one statement waits for a lock. One that takes connections and answers nothing is noticed by
    writes after this and 5 seconds more, in which they try a new connection."""

    lost_after_minutes: Annotated[float, msgspec.Meta(ge=0, le=10_080)] = 15
    """How long a server that died is waited for: it alone knows how its last calls without effects
    ended. After that they count as interrupted."""

    @property
    def is_shared(self) -> bool:
        """Whether servers of other homes use it too."""
        return self.url is not None or self.url_env is not None


class RetentionTable(_Table, frozen=True):
    """`[retention]`: how long records are kept. A session that a process has open, or with a
    question or a call that has not ended, is kept in any case."""

    sessions_days: Days = 90
    """Sessions that were not used for so long are deleted, with all of theirs; 0: never."""
    events_days: Days = 90
    """Older events and calls of sessions that stay are deleted; 0: never."""
    artifacts_days: Days = 90
    """Older output that was too large to show is deleted; 0: with its session only."""
    audit_days: Days = 0
    """Files of the audit log whose every line is older are dropped; 0: by `[audit] keep` only."""
    store_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 * 1024 * 1024 * 1024
    """Beyond this size the sessions that were not used for the longest are deleted; 0: never."""


class InstanceTable(_Table, frozen=True):
    """`[instance]`: when instances start and end, and where others find them."""

    on_demand_minutes: Annotated[float, msgspec.Meta(ge=0, le=1440)] = 0
    """A call that finds no instance starts one in the background, for those that follow; it ends
    after so many minutes in which nobody used it. 0: none is started."""
    advertise_url: str | None = None
    """Where other servers of the same store reach this one, such as
    `"https://gate-1.example:4177"`; default: the address that it listens on."""
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 25.0
    """How long `callgate serve` lets calls and turns go on after SIGTERM, while it takes no new
    ones. A second signal ends it at once. 0: what runs is stopped at once."""
    public_url: str | None = None
    """Where people and programs reach this instance through a load balancer, such as
    `"https://callgate.example"`: requests with this host, and pages of this origin, are let in."""


class SecretsTable(_Table, frozen=True):
    """`[secrets]`: the key with which model keys and logins are encrypted where they are kept.
    Without one, they lie in files that only their owner may open."""

    key_env: SecretsVariable | None = None
    """The variable that holds the key. Its name begins with CALLGATE_SECRETS_: no process that
    callgate starts gets such a variable."""
    key_command: str | None = None
    """A command that prints the key, where the variable holds none. It is run once, without a
    shell, and has ten seconds."""
    previous_key_env: SecretsVariable | None = None
    """The variable of the key before this one: what it encrypted can still be read."""
    plain_files: Literal["read", "refuse"] = "read"
    """`"read"`: a file that is not encrypted yet is read, and encrypted when it is next written.
    `"refuse"`: it is not read."""


class ToolsTable(_Table, frozen=True):
    """`[tools]`: which tools there are."""

    load: list[str] = []
    """Python files or modules whose `@tool` functions are registered."""
    disable: list[str] = []
    """Names of tools that are registered but not offered."""


class SandboxLimitsTable(_Table, frozen=True):
    """What is not here is as this machine suggests; 0 or "none": no limit."""

    cpu_seconds: Limit | None = None
    """Processor time of each process."""
    memory_bytes: Limit | None = None
    """Memory of a command with everything that it started."""
    processes: Limit | None = None
    """Processes and threads, of all that it started."""
    open_files: Limit | None = None
    """Files that each process has open."""
    file_bytes: Limit | None = None
    """The size of each file that is written."""
    output_bytes: Limit | None = None
    """What a command prints, on both streams."""


class SandboxTable(_Table, frozen=True):
    """`[sandbox]`: what is around the commands that callgate starts."""

    profile: Literal["workspace", "open"] = "workspace"
    """For modes ask and write; mode read has a profile of its own."""
    network: Literal["none", "loopback", "all"] | list[str] = "none"
    """In the profile `workspace`; a list names the hosts that every command reaches."""
    readable: list[str] = []
    """Secrets that commands may see, and places in /tmp that stay there."""
    writable: list[str] = []
    """Directories beside the workspace that commands may write."""
    hidden: list[str] = []
    """What commands may not see, beside what is hidden anyway."""
    protected: list[str] = []
    """Beside what is protected anyway; relative to the workspace."""
    limits: SandboxLimitsTable = SandboxLimitsTable()


class HostTable(_Table, frozen=True):
    """`[hosts.NAME]`: a process that brings tools."""

    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    """The program and its arguments."""
    cwd: str = "."
    """Counts from the workspace."""
    env: list[str] = []
    """Names of variables that are passed on, beside the harmless ones."""
    set_env: dict[str, str] = {}
    """Variables with their values."""
    config: dict[str, Any] = {}
    """Handed to the host's `init`, checked against the host's own schema first."""
    trusted: bool = False
    """Whether what it claims of the effects of its tools counts."""
    effect: SideEffects = SideEffects.EXECUTE
    """The most that its tools can do, where `effects` does not name them."""
    effects: dict[str, SideEffects] = {}
    """By tool."""
    network: Literal["none", "loopback", "all"] | list[str] = "none"
    """What the host may reach; a list names hosts."""
    timeout_s: Seconds | None = None
    """Of one call, where the tool says nothing."""
    start_timeout_s: Seconds = 30.0
    """Until its tools are known."""
    max_in_flight: Count | None = None
    """Calls that it is given at once."""


class AgentTable(_Table, frozen=True):
    """`[agent]`: how a model works with the tools."""

    instructions: str = ""
    """What the model is told beside what we tell it."""
    cycles: Count = 20
    """Requests to the model in one turn."""
    calls_per_cycle: Count = 20
    """Calls in one reply of the model."""
    calls_per_turn: Count = 50
    """Calls in one turn."""
    result_chars: Annotated[int, msgspec.Meta(ge=200)] = 8_000
    """Of one result that the model is shown."""
    tokens_per_turn: Count | None = None
    """Tokens in one turn; absent: no limit."""
    turn_time_s: Seconds | None = None
    """The time of one turn; absent: no limit."""
    speak: bool | Literal["client"] = False
    """Whether what a model says aloud is heard from this machine; `client`: from whoever shows
    the conversation. A model is told of speech only where it is heard."""
    unknown_slash: Literal["error", "pass"] = "error"
    """What becomes of a prompt `/NAME` where no skill has that name."""


class ProxyTable(_Table, frozen=True):
    """`[acp.proxy]`: what is around an agent that `callgate acp-proxy` starts."""

    network: Literal["agent", "none", "loopback", "all"] | list[str] = "agent"
    """What it may reach; a list names hosts. `agent`: what is known of where its model is, and
    the address in a variable such as `ANTHROPIC_BASE_URL`."""
    profile: Literal["workspace", "open"] = "workspace"
    """`open`: no walls but the system's."""
    writable: list[str] = []
    """Directories beside the workspace in which it may write, such as a cache."""
    readable: list[str] = []
    """Directories beside the workspace that it sees."""
    env: list[str] = []
    """Names of variables that are passed on, beside harmless ones and those of known agents."""
    extensions: list[str] = []
    """Extension methods of the agent that are passed to the editor, such as `_goose/*`. callgate
    does not check what the editor does with them."""
    start_timeout_s: Seconds = 120.0
    """For it to answer the greeting; some fetch what they need first."""
    cancel_patience_s: Seconds = 30.0
    """For it to end its turn after a cancel, before it is ended."""


class AcpTable(_Table, frozen=True):
    """`[acp]`: how we work inside an editor."""

    delegate_terminal: bool = True
    """Whether commands run in the editor's terminal, outside the sandbox, where it offers one."""
    modes: Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1)] = (
        Mode.NONE,
        Mode.READ,
        Mode.ASK,
        Mode.WRITE,
    )
    """Those that a session in an editor may have."""
    cancel_latch_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """How long a cancel that came while nothing was under way stops the next prompt."""
    longest_arguments: Annotated[int, msgspec.Meta(ge=1024, le=256 * 1024)] = 64 * 1024
    """Characters of arguments that a question shows in an editor; a longer call is refused."""
    mcp: EnclosureTable = EnclosureTable()
    proxy: ProxyTable = ProxyTable()


class HooksTable(_Table, frozen=True):
    """`[hooks]`: other agents, whose calls are judged here before they run them."""

    wait_s: Annotated[float, msgspec.Meta(gt=0, le=100)] = 65.0
    """How long a hook waits for a person's answer; then the call is refused."""
    report_s: Seconds = 3600.0
    """How long an agent may take to report the end of a call."""
    shell: Literal["agent", "sandbox"] = "agent"
    """`"agent"`: commands run in the agent's own process, outside the sandbox. `"sandbox"`: an
    agent that lets a hook rewrite them (Claude Code, Codex) runs them in our sandbox."""
    tools: dict[str, SideEffects] = {}
    """Classes of tools that are none of ours, by the agent's name for them; others ask as execute
    does."""
    home: Literal["read", "write", "none"] = "write"
    """Which of its directories in the user's home an agent in `callgate sandbox --` has. `write`:
    its sessions and its login are saved; `read`: only its login; `none`: it has none."""
    network: Literal["none", "all"] | list[str] = "all"
    """What an agent in `callgate sandbox --` reaches; a list names hosts, such as its model's."""


class PermissionsTable(_Table, frozen=True):
    """`[permissions]`: another spelling of `[acp] modes`."""

    enabled: Annotated[tuple[Mode, ...], msgspec.Meta(min_length=1)] | None = None
    """Of `[acp] modes`, only these."""


class PacksTable(_Table, frozen=True):
    """`[packs]`: packages of tools that are installed beside ours."""

    enable: list[PackName] = []
    """Those that are used. None is before it is named here."""
    settings: dict[PackName, dict[str, Any]] = {}
    """What a package is told, by its name."""


class NoticeTarget(_Table, frozen=True):
    """`[notify.targets.NAME]`: somewhere to send notices."""

    kind: Literal["webhook", "slack", "teams", "email", "command"]
    """`webhook`: plain JSON; `slack`, `teams`: what the incoming webhooks of these take."""
    url: str | None = None
    """Of a webhook."""
    url_env: str | None = None
    """The variable that has it, where the address itself is a secret, as Slack's and Teams' are."""
    token_env: str | None = None
    """The variable with a bearer token for a webhook."""
    command: list[str] = []
    """A program and its arguments. It gets the notice as JSON on stdin, and has ten seconds."""
    host: str | None = None
    """Of the mail server."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """Default: 587, 465 with `tls`, 25 with `none`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """Of the connection to the mail server; `none` sends no password."""
    user: str | None = None
    """The name at the mail server."""
    password_env: str | None = None
    """The variable with the password."""
    sender: str | None = None
    """The address that a mail comes from."""
    to: list[str] = []
    """The addresses that it goes to."""

    def problem(self) -> tuple[str, str] | None:
        """The key that is wrong, and why."""
        is_http = self.kind in ("webhook", "slack", "teams")
        if is_http and (self.url is None) == (self.url_env is None):
            return "url", "exactly one of url and url_env is needed"
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            return "url", "must be http://HOST or https://HOST"
        if self.kind == "command" and not (self.command and self.command[0]):
            return "command", "names no program"
        if self.kind == "email":
            if not self.host:
                return "host", "is needed for e-mail"
            if not self.sender or not self.to:
                return "to", "sender and to are needed for e-mail"
            if not all("@" in each and each.isprintable() for each in (self.sender, *self.to)):
                return "to", "is no list of mail addresses"
            if self.security == "none" and self.password_env is not None:
                return "password_env", "a password is not sent without tls"
        return None


class NotifyTable(_Table, frozen=True):
    """`[notify]`: who is told of a question that nobody has answered yet. An instance does it."""

    after_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    """How long a question waits before a notice of it is sent, once."""
    details: bool = False
    """Whether a notice has the redacted summary of the arguments, and the workspace."""
    link: str | None = None
    """Where people find the dashboard; default: `[instance] public_url`, or the instance itself."""
    targets: dict[TargetName, NoticeTarget] = {}


class TelemetryTable(_Table, frozen=True):
    """`[telemetry]`: spans and metrics of calls, for an OpenTelemetry collector. It needs the extra
    `otel`. Where they go, and how, the usual `OTEL_*` variables say."""

    enabled: bool = False
    """Whether spans and metrics are sent."""
    arguments: bool = False
    """Whether spans have the redacted summary of the arguments."""
    flush_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """How long the end of a process may take to send what is left. The rest is sent by the next."""


class Settings(_Table, frozen=True):
    mode: Mode = Mode.ASK
    """The ceiling of what may run, where a command or a client names no other."""
    tags: list[str] = []
    """Of every session, beside those of hosts and of its model: which tools it sees."""
    policy: PolicyTable = PolicyTable()
    workspace: WorkspaceTable = WorkspaceTable()
    limits: LimitsTable = LimitsTable()
    audit: AuditTable = AuditTable()
    durability: DurabilityTable = DurabilityTable()
    store: StoreTable = StoreTable()
    retention: RetentionTable = RetentionTable()
    instance: InstanceTable = InstanceTable()
    tools: ToolsTable = ToolsTable()
    sandbox: SandboxTable | Literal["off"] = SandboxTable()
    """`"off"`: commands run with nothing around them, and mode read has no shell."""
    hosts: dict[HostName, HostTable] = {}
    mcp: dict[McpName, McpTable] = {}
    agent: AgentTable = AgentTable()
    acp: AcpTable = AcpTable()
    permissions: PermissionsTable = PermissionsTable()
    notify: NotifyTable = NotifyTable()
    telemetry: TelemetryTable = TelemetryTable()
    hooks: HooksTable = HooksTable()
    packs: PacksTable = PacksTable()
    google: GoogleTable = GoogleTable()
    web: WebTable = WebTable()
    memory: MemoryTable = MemoryTable()
    documents: DocumentsTable = DocumentsTable()
    model: str | None = None
    """The model to use where none is named: one of `models`, or kind and model at once."""
    models: dict[ModelName, ModelTable] = {}
    secrets: SecretsTable = SecretsTable()

    def of_pack(self, name: str) -> Any:
        """Packages that we ship have tables of their own, others `[packs.settings.NAME]`."""
        if name in (each.name for each in PACKS):
            return getattr(self, name, None)
        return self.packs.settings.get(name, {})

    @property
    def editor_modes(self) -> tuple[Mode, ...]:
        """The modes that a session in an editor may have."""
        enabled = self.permissions.enabled
        modes = self.acp.modes
        return modes if enabled is None else tuple(mode for mode in modes if mode in enabled)


class WorkspaceSandboxTable(_Table, frozen=True):
    network: list[str] | None = None
    """Of the hosts that a command may reach otherwise, only these."""


class WorkspaceSettings(_Table, frozen=True):
    """`.callgate/settings.toml` in a workspace: it may only narrow, so it says less; and add MCP
    servers, each of which a person has to approve."""

    policy: PolicyTable = PolicyTable()
    tools: ToolsTable = ToolsTable()
    sandbox: WorkspaceSandboxTable = WorkspaceSandboxTable()
    mcp: dict[McpName, McpTable] = {}


class SavedRules(_Table, frozen=True):
    rules: list[RuleTable] = []
