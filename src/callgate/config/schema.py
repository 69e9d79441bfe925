"""The keys of `settings.toml`. Unknown keys are errors: a misspelt rule must not be ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from callgate.config.problems import Path
from callgate.core.calls import CallerKind
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.feature import FEATURES, PACKS, load, load_entry
from callgate.policy.rules import Outcome

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


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables: an unknown key is an error."""


class SettingsPart(Table, frozen=True):
    """Base of the top-level tables of one feature, or of one built-in package."""

    owner: ClassVar[str]
    """Name of the feature or package."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """Yield the path and problem of each value that has the right type but is invalid."""
        yield from ()


Part = TypeVar("Part", bound=SettingsPart)


def table_owner(name: str) -> str | None:
    """Return the feature or package that owns a top-level table; None: the kernel."""
    if any(name == each.name for each in PACKS):
        return name
    return next((each.name for each in FEATURES if name in each.tables), None)


TABLES = (*(name for each in FEATURES for name in each.tables), *(each.name for each in PACKS))
"""Top-level keys of the file that features and packages own."""


def part_type(owner: str) -> type[SettingsPart] | None:
    """Return the tables of a feature or package; None if it is not installed or has none."""
    for pack in PACKS:
        if pack.name == owner:
            return None if pack.settings is None else load_entry(pack.settings)
    feature = load(owner)
    return None if feature is None else feature.settings()


class RuleTable(Table, frozen=True):
    """`[[policy.rules]]`: all given conditions must hold."""

    decision: Outcome
    """The decision; of all matching rules, deny beats ask beats allow."""
    tool: str | None = None
    """A glob over the name of the tool."""
    path: str | None = None
    """A glob over the files of the call; relative to the workspace, or absolute."""
    command: str | None = None
    """A pattern of words, for each command of a command line."""
    caller: CallerKind | None = None
    """The kind of caller."""
    arguments: dict[str, str] = {}
    """Argument names, each with a glob over its value."""
    without: list[str] = []
    """Arguments that must be absent or empty, such as `["cc", "bcc"]`."""
    arguments_sha256: str | None = None
    """The exact arguments, as the hash that a question shows."""
    workspace: str | None = None
    """The workspace directory of the session."""
    network: bool | list[str] | None = None
    """Whether the command requests network access; a list names the permitted hosts."""
    reversible: bool | None = None
    """Whether `callgate undo` can revert all effects of the call."""
    untrusted_destinations: bool = False
    """Whether an allow also covers destinations from untrusted content."""


class GuardTable(Table, frozen=True):
    """`[policy.guard]`: data flow out of a session that has read untrusted content."""

    enabled: bool = True
    """Whether such a session needs approval for destinations that the user did not name."""
    destinations: list[str] = []
    """Globs of mail addresses, hosts and accounts that are always permitted destinations."""
    untrusted: list[str] = []
    """Globs of tools whose output third parties may have written, besides the declared ones."""
    private: list[str] = []
    """Globs of tools whose output is private, besides the declared ones."""
    vouched: list[str] = []
    """Globs of tools whose output is trusted like the user's words, such as an address book."""
    parameters: dict[str, list[str]] = {}
    """Tool to the parameters that name its destination, if their names do not show it."""
    without_conversation: bool = False
    """Whether to guard sessions whose conversation is not known to callgate."""


class AmountsTable(Table, frozen=True):
    """Limits beyond which each further call needs approval. Absent: no limit; 0: each call needs
    approval.
    """

    calls: Amount | None = None
    """Number of calls that were allowed to run."""
    bytes_out: Amount | None = None
    """Bytes of the arguments of calls that use the network."""
    destinations: Amount | None = None
    """Different recipients, hosts and other destinations of calls that use the network."""


class ToolBudgetsTable(Table, frozen=True):
    session: AmountsTable = AmountsTable()
    """Limits for this tool in one session."""
    day: AmountsTable = AmountsTable()
    """Limits for this tool on one day."""


class BudgetsTable(Table, frozen=True):
    """`[policy.budgets]`: limits beyond which each further call needs approval, in every mode
    and despite rules and earlier answers.
    """

    session: AmountsTable = AmountsTable()
    """Limits for one session, including its sub-agents."""
    day: AmountsTable = AmountsTable()
    """Limits for one day (UTC), in all sessions of one person."""
    tools: dict[str, ToolBudgetsTable] = {}
    """Limits for single tools: `session` and `day`."""


class PolicyTable(Table, frozen=True):
    """`[policy]`: calls that run, need approval, or never run."""

    default: dict[str, str] = {}
    """For each effect class (none, read, write, network, execute): auto, prompt, prompt_once or
    deny."""
    per_tool: dict[str, str] = {}
    """For each tool: auto, prompt, prompt_once or deny. Overrides the tool's effect class."""
    trusted_workspaces: list[str] = []
    """Directories in which writes need no approval."""
    trusted_workspace_overrides: dict[str, str] = {}
    """As `default`, for trusted workspaces."""
    rules: list[RuleTable] = []
    guard: GuardTable = GuardTable()
    confirm_destructive: bool = False
    """Whether a destructive tool needs approval even in mode write."""
    read_commands: Literal["allow", "ask"] | None = None
    """Whether commands that only read (ls, git status, grep, ...) run without approval, in the
    read-only sandbox without network. Default: allow in mode guarded, ask in mode ask."""
    guarded_rules: list[Literal["localhost", "git_fetch"]] | None = None
    """Rules about connections that mode guarded contains: `localhost` allows services of this
    machine, `git_fetch` allows `git fetch` from the repository's remotes. Default: both."""
    reversible: Literal["allow", "ask"] | None = None
    """Whether calls that `callgate undo` can revert run without approval in mode ask: changes by
    file tools, and sandboxed commands without network. Default: ask."""
    budgets: BudgetsTable = BudgetsTable()


class ExtraRoot(Table, frozen=True):
    """`[[workspace.extra_roots]]`: directories in addition to the workspace."""

    path: str
    """A directory."""
    access: Literal["read", "write"] = "read"
    """Access of tools to it."""


class WorkspaceTable(Table, frozen=True):
    extra_roots: list[ExtraRoot] = []


class LimitsTable(Table, frozen=True):
    """`[limits]`: times and sizes of calls."""

    concurrency: Count = 4
    """Maximum concurrent calls of a session; further ones wait."""
    confirmation_timeout_s: Seconds = 300.0
    """How long a question waits for its answer."""
    max_questions: Count = 20
    """Maximum pending questions of a session; a further call that needs approval is refused."""
    max_timeout_s: Seconds = 3600.0
    """Upper limit for the time limit of every call."""
    cancel_grace_s: Seconds = 0.5
    """Time for a cancelled tool to check its `cancel_event`; after it, its task is cancelled."""
    abandon_s: Seconds = 30.0
    """Time for a cancelled tool to finish; after it, the tool is abandoned."""
    max_argument_bytes: Count = 8 * 1024 * 1024
    """Maximum size of a call's arguments as JSON."""
    stall_s: Seconds = 5.0
    """Time without progress of the event loop until its stack is logged."""
    stop_s: Seconds = 30.0
    """Time for the process to end after a signal, before it is killed."""


class AuditTable(Table, frozen=True):
    """`[audit]`: the size of the audit log."""

    max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 64 * 1024 * 1024
    """Size at which the file is closed and a new one started."""
    keep: Count = 8
    """Number of closed files to retain."""


class DurabilityTable(Table, frozen=True):
    """`[durability]`: the data that is durable before a call returns."""

    files: Literal["synced", "fast"] = "synced"
    """`"synced"`: files that a tool wrote, large output of calls with effects, and undo data
    survive a power failure once the call has returned. `"fast"`: they survive a crash of
    callgate, but a power failure may lose the last half minute. Audit log and store are synced
    in both cases.
    """


class StoreTable(Table, frozen=True):
    """`[store]`: location of sessions and all their data."""

    url: str | None = None
    """Absent: a file of the home. `postgresql://...`: a database that several servers share.
    `sqlite:///DIRECTORY`: another directory of this machine, which several homes can share.
    """
    url_env: str | None = None
    """Name of an environment variable with the address, for example if it has a password."""
    listen_url: str | None = None
    """A direct connection to the same database, if `url` is a pooler (PgBouncer in transaction
    mode). `"none"`: no direct connection; changes are polled ten times a second.
    """
    schema: Annotated[str, msgspec.Meta(pattern="^[a-z_][a-z0-9_]{0,40}$")] = "callgate"
    """Database schema of the tables; created if needed."""
    readers: Annotated[int, msgspec.Meta(ge=1, le=32)] = 2
    """Number of read-only connections. A server has two more: one writes, one listens."""
    answer_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=300)] = 10
    """Time without an answer after which the database counts as unreachable. A statement waits
    half of it for a lock. If the database accepts connections but does not answer, writes fail
    after this time and 5 seconds for a new connection.
    """

    lost_after_minutes: Annotated[float, msgspec.Meta(ge=0, le=10_080)] = 15
    """How long to wait for a dead server, which alone knows how its last calls without effects
    ended. After that they count as interrupted.
    """

    @property
    def is_shared(self) -> bool:
        """Whether servers of other homes use the store too."""
        return self.url is not None or self.url_env is not None


class RetentionTable(Table, frozen=True):
    """`[retention]`: storage periods. A session that is open in a process, or has an unanswered
    question or an unfinished call, is always retained.
    """

    sessions_days: Days = 90
    """Sessions unused for longer are deleted with all their data; 0: never."""
    events_days: Days = 90
    """Older events and calls of retained sessions are deleted; 0: never."""
    artifacts_days: Days = 90
    """Older files with large output are deleted; 0: only with their session."""
    audit_days: Days = 0
    """Audit log files with only older lines are deleted; 0: only `[audit] keep` applies."""
    undo_days: Days = 30
    """Changes that are older can no longer be undone; 0: never deleted."""
    undo_bytes: Annotated[int, msgspec.Meta(ge=0)] = 512 * 1024 * 1024
    """Above this size of all stored files, the oldest changes are deleted; 0: never."""
    store_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 * 1024 * 1024 * 1024
    """Above this size the least recently used sessions are deleted; 0: never."""


class UndoTable(Table, frozen=True):
    """`[undo]`: the files that commands may change, and `callgate undo` can restore."""

    file_bytes: Count = 16 * 1024 * 1024
    """Maximum size of a file that is copied before a change. Removed files are stored as hard
    links, without a limit, and holes do not count."""
    call_bytes: Count = 512 * 1024 * 1024
    """Maximum size of all stored files of one command."""
    exclude: list[str] = []
    """Names of directories, such as `"node_modules"`, in which files are not stored."""
    unstorable: Literal["allow", "refuse"] = "allow"
    """Whether a command may change a file that is not stored: too large, excluded or unreadable.
    `"allow"`: the result names it. `"refuse"`: the command gets the error EDQUOT.
    """
    full_disk: Literal["allow", "refuse"] = "refuse"
    """The same for a file that is not stored because the disk of the home is full. If the change
    cannot even be noted, it is refused in both cases.
    """


class InstanceTable(Table, frozen=True):
    """`[instance]`: start, end and addresses of instances."""

    on_demand_minutes: Annotated[float, msgspec.Meta(ge=0, le=1440)] | None = None
    """`callgate call` without a running instance starts one in the background, for the next calls
    from the same environment. It ends after this number of minutes without use, and when the user
    logs out. 0: none is started. Default: 10 if the operating system removes `XDG_RUNTIME_DIR`
    at the end of the login, as systemd does, and the store is not shared; else 0.
    """
    advertise_url: str | None = None
    """Address of this server for other servers of the same store, such as
    `"https://gate-1.example:4177"`. Default: the address it listens on.
    """
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 25.0
    """How long running calls and turns may continue after SIGTERM, while `callgate serve`
    accepts no new ones. A second signal ends it immediately. 0: running work is stopped
    immediately.
    """
    public_url: str | None = None
    """Address of this instance behind a load balancer, such as `"https://callgate.example"`.
    Requests with this host, and pages of this origin, are accepted.
    """


class SecretsTable(Table, frozen=True):
    """`[secrets]`: the key that encrypts stored model keys and logins. If there is none, they are
    stored unencrypted, in files that only their owner can read.
    """

    key_env: SecretsVariable | None = None
    """Environment variable with the key. Its name begins with CALLGATE_SECRETS_: callgate does
    not pass such variables to processes that it starts.
    """
    key_command: str | None = None
    """Command that prints the key, if the variable is not set. It runs once, without a shell,
    for at most ten seconds.
    """
    previous_key_env: SecretsVariable | None = None
    """Environment variable with the previous key, for reading data that it encrypted."""
    plain_files: Literal["read", "refuse"] = "read"
    """`"read"`: unencrypted files are read, and encrypted with their next write. `"refuse"`:
    they are not read.
    """


class ToolsTable(Table, frozen=True):
    """`[tools]`: available tools."""

    load: list[str] = []
    """Python files or modules whose `@tool` functions are registered."""
    disable: list[str] = []
    """Names of registered tools that are not offered."""
    search_above: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 100
    """MCP clients (`callgate mcp serve`, `/mcp`) with more tools than this get `find_tools` and
    `call_tool` instead of the list. 0: every tool is listed.
    """


class SandboxLimitsTable(Table, frozen=True):
    """`[sandbox.limits]`: unset keys have defaults for this machine; 0 or "none": no limit."""

    cpu_seconds: Limit | None = None
    """Processor time of each process."""
    memory_bytes: Limit | None = None
    """Memory of a command with all its descendants."""
    processes: Limit | None = None
    """Number of processes and threads of a command with all its descendants."""
    open_files: Limit | None = None
    """Open files of each process."""
    file_bytes: Limit | None = None
    """Size of each written file."""
    output_bytes: Limit | None = None
    """Output of a command, on both streams."""


OptionalGuarantee = Literal[
    "fresh_tmp",
    "pid_namespace",
    "own_loopback",
    "no_local_services",
    "no_process_details",
    "no_shared_memory",
    "limits",
]
"""All other guarantees are always required."""


class SandboxTable(Table, frozen=True):
    """`[sandbox]`: isolation of the commands that callgate starts."""

    profile: Literal["workspace", "open"] = "workspace"
    """Profile for modes ask, guarded and write; mode read has a separate one."""
    network: Literal["none", "loopback", "ask", "all"] | list[str] | None = None
    """Network access in the profile `workspace`. A list names the hosts that every command can
    reach; "ask" requests approval for each host on first contact. Default: "ask" in mode
    guarded, else "none".
    """
    local_services: list[str] = []
    """Services on this machine's loopback that processes with the whole network can reach, such as
    `localhost:5432`."""
    readable: list[str] = []
    """Secrets that commands can read, and paths in /tmp that they share with the machine."""
    writable: list[str] = []
    """Directories that commands can write, in addition to the workspace."""
    hidden: list[str] = []
    """Paths that are hidden from commands, in addition to the built-in ones."""
    protected: list[str] = []
    """Protected paths, in addition to the built-in ones; relative to the workspace."""
    on_failure: Literal["keep", "discard"] = "keep"
    """`"discard"`: the changes of a command that fails, exceeds a limit or is stopped are reverted.
    The result has a line about it. `shell` with `discard_changes` reverts them in any case.
    """
    require: list[OptionalGuarantee] = []
    """Guarantees that every command requires. If a machine cannot enforce one that is not
    listed, the command runs, and its question and record mention it.
    """
    limits: SandboxLimitsTable = SandboxLimitsTable()


class HostTable(Table, frozen=True):
    """`[hosts.NAME]`: a process that provides tools."""

    command: Annotated[list[str], msgspec.Meta(min_length=1)]
    """The program and its arguments."""
    cwd: str = "."
    """Working directory, relative to the workspace."""
    env: list[str] = []
    """Names of environment variables to pass on, in addition to the harmless ones."""
    set_env: dict[str, str] = {}
    """Variables with their values."""
    config: dict[str, Any] = {}
    """Argument of the host's `init`, validated against the host's schema."""
    trusted: bool = False
    """Whether the effects that it declares for its tools are trusted."""
    effect: SideEffects = SideEffects.EXECUTE
    """Effect of its tools that `effects` does not name."""
    effects: dict[str, SideEffects] = {}
    """Effect by tool."""
    network: Literal["none", "loopback", "ask", "all"] | list[str] = "none"
    """Network access of the host; a list names hosts, "ask" requests approval for each on first
    contact.
    """
    timeout_s: Seconds | None = None
    """Time limit of a call, if the tool declares none."""
    start_timeout_s: Seconds = 30.0
    """Time limit for starting and listing its tools."""
    max_in_flight: Count | None = None
    """Maximum number of concurrent calls to it."""


class PacksTable(Table, frozen=True):
    """`[packs]`: installed packages of tools, other than the built-in ones."""

    enable: list[PackName] = []
    """Packages to use; no other package is loaded."""
    settings: dict[PackName, dict[str, Any]] = {}
    """Settings by package."""


class EmbeddingsTable(Table, frozen=True):
    """`[documents.embeddings]`: embedding provider for semantic search.

    It receives the texts of files and documents, so a workspace cannot configure it.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """Name of the model on the server."""
    endpoint: str
    """Base URL including the version, such as `http://127.0.0.1:11434/v1`."""
    insecure_http: bool = False
    """Allow http:// to other machines, where the network can read the key and the texts."""
    key_env: str | None = None
    """Environment variable with the key."""
    key_command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    """Program that prints the key; it runs without a shell."""
    timeout_s: Seconds = 15.0
    """How long the server may be silent."""
    refresh_s: Seconds = 20.0
    """How long a search waits for vectors; the next search continues."""
    max_new: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2_000
    """Maximum passages that one search sends."""
    max_passages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100_000
    """Maximum passages of a workspace; others are found by their words only."""
    min_similarity: Annotated[float, msgspec.Meta(ge=-1, le=1)] = 0.25
    """Minimum similarity of a result; the right value depends on the model."""
    query_prefix: str = ""
    """Prefix that the model expects before a query, such as `search_query:` and a space."""
    document_prefix: str = ""
    """Prefix that the model expects before a passage."""


class Settings(Table, frozen=True):
    mode: Mode = Mode.ASK
    """Default mode, if a command or client names no other."""
    tags: list[str] = []
    """Tags of every session, besides the tags of its hosts and model. They select its tools."""
    policy: PolicyTable = PolicyTable()
    workspace: WorkspaceTable = WorkspaceTable()
    limits: LimitsTable = LimitsTable()
    audit: AuditTable = AuditTable()
    durability: DurabilityTable = DurabilityTable()
    store: StoreTable = StoreTable()
    retention: RetentionTable = RetentionTable()
    undo: UndoTable = UndoTable()
    instance: InstanceTable = InstanceTable()
    tools: ToolsTable = ToolsTable()
    sandbox: SandboxTable | Literal["off"] = SandboxTable()
    """`"off"`: commands run without isolation, and mode read has no shell."""
    hosts: dict[HostName, HostTable] = {}
    packs: PacksTable = PacksTable()
    secrets: SecretsTable = SecretsTable()

    parts: dict[str, SettingsPart] = {}
    """Tables of features and built-in packages, by owner; missing ones have defaults. Not a key
    of the file.
    """

    def of(self, kind: type[Part]) -> Part:
        """Return the tables of one feature."""
        found = self.parts.get(kind.owner)
        return found if isinstance(found, kind) else kind()

    def table(self, name: str) -> Any:
        """Return a table of any feature or package by its key; None if the file has no table of its
        owner.

        For the kernel, which does not import the types of features.
        """
        return getattr(self.parts.get(table_owner(name) or ""), name, None)

    def of_pack(self, name: str) -> Any:
        """Return the settings of a package of tools: from its tables if it is built in,
        otherwise from `[packs.settings.NAME]`.
        """
        if name in (each.name for each in PACKS):
            kind = part_type(name)
            return None if kind is None else getattr(self.of(kind), name)
        return self.packs.settings.get(name, {})


class WorkspaceSandboxTable(Table, frozen=True):
    network: list[str] | None = None
    """Only these of the otherwise permitted hosts can be reached."""


class WorkspaceSettings(Table, frozen=True):
    """`.callgate/settings.toml` in a workspace. It can only narrow, and add MCP servers, each of
    which a person must approve.
    """

    policy: PolicyTable = PolicyTable()
    tools: ToolsTable = ToolsTable()
    sandbox: WorkspaceSandboxTable = WorkspaceSandboxTable()
    parts: dict[str, SettingsPart] = {}
    """As in `Settings`, for features whose tables a workspace can have."""

    def of(self, kind: type[Part]) -> Part:
        """Return the tables of one feature."""
        found = self.parts.get(kind.owner)
        return found if isinstance(found, kind) else kind()


class SavedRules(Table, frozen=True):
    rules: list[RuleTable] = []
