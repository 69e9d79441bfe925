"""Reading of settings files: parsed settings and a policy, with the location of each part."""

from __future__ import annotations

import os
import re
import tomllib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from callgate.config.home import Home, workspace_settings
from callgate.config.problems import Path, explain, key_lines, line_of
from callgate.config.schema import (
    TABLES,
    AmountsTable,
    BudgetsTable,
    GuardTable,
    PolicyTable,
    RuleTable,
    SandboxTable,
    SavedRules,
    Settings,
    SettingsPart,
    StoreTable,
    ToolsTable,
    WorkspaceSettings,
    part_type,
    table_owner,
)
from callgate.core.content import Label
from callgate.core.effects import SideEffects
from callgate.core.sessions import pool_workspace
from callgate.core.texts import nearest
from callgate.policy.rules import (
    BUILT_IN,
    Budget,
    GuardSettings,
    Origin,
    Outcome,
    Policy,
    PolicyMode,
    Rule,
    Setting,
    compile_glob,
)
from callgate.policy.shell_patterns import parse_pattern
from callgate.sandbox import allowed_hosts
from callgate.sandbox.plans import SECRETS_PREFIX

T = TypeVar("T", Settings, WorkspaceSettings, SavedRules)

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class SettingsError(ValueError):
    """An unusable settings file, with the reason: `file:line: problem`."""

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(f"{Origin(file, line)}: {problem}")
        self.file, self.line, self.problem = file, line, problem


class File(msgspec.Struct, frozen=True):
    path: str
    lines: dict[Path, int]

    def origin(self, *path: str | int) -> Origin:
        return Origin(self.path, line_of(self.lines, path))

    def error(self, path: Path, problem: str) -> SettingsError:
        return SettingsError(self.path, line_of(self.lines, path), problem)


def load_user(home: Home) -> tuple[Settings, Policy]:
    """Return the user's settings and policy, including saved answers. Missing files count as
    empty.
    """
    return _user(home, *_read(home.settings, Settings))


def load_changed(home: Home, data: bytes, name: str) -> tuple[Settings, Policy]:
    """Like `load_user`, with other settings: `data` is their text, `name` names them in errors."""
    return _user(home, *_parse(data, name, Settings))


def check_rule(rule: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a rule that could not be loaded after saving."""
    try:
        table = msgspec.convert(rule, RuleTable)
    except msgspec.ValidationError as error:
        raise SettingsError("the rule", None, str(error)) from None
    _rule(table, File("the rule", {}), ("rules", 0))


def read_saved_rules(path: str) -> list[dict[str, Any]]:
    """Return the rules of a file such as `rules.toml`, as written. Raises `SettingsError`."""
    saved, _ = _read(path, SavedRules)
    return [_given(rule) for rule in saved.rules]


def _given(rule: RuleTable) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(rule)
    plain = msgspec.to_builtins(RuleTable(decision=rule.decision))
    return {
        name: value for name, value in fields.items() if name == "decision" or value != plain[name]
    }


def _user(home: Home, settings: Settings, file: File) -> tuple[Settings, Policy]:
    if isinstance(settings.sandbox, SandboxTable):
        _check_sandbox(settings.sandbox, file)
    _check_store(settings.store, file)
    _check_parts(settings, file)
    _check_secrets(settings, file)
    policy = _policy(settings.policy, file, ("policy",))
    saved, saved_file = _read(home.saved_rules, SavedRules)
    rules = tuple(
        _rule(rule, saved_file, ("rules", index)) for index, rule in enumerate(saved.rules)
    )
    return settings, msgspec.structs.replace(policy, rules=policy.rules + rules)


def is_database(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def _is_directory(url: str) -> bool:
    return url.startswith("sqlite:///") and len(url) > len("sqlite:///")


def _check_store(table: StoreTable, file: File) -> None:
    if table.url is not None and table.url_env is not None:
        raise file.error(("store", "url_env"), "one of url and url_env is enough")
    if table.url is not None and not is_database(table.url) and not _is_directory(table.url):
        problem = "such as postgresql://host/database, or sqlite:///srv/callgate for a directory"
        raise file.error(("store", "url"), problem)
    if table.listen_url not in (None, "none") and not is_database(str(table.listen_url)):
        raise file.error(("store", "listen_url"), 'begins with postgresql://, or is "none"')


def load_workspace(workspace: str) -> Policy | None:
    """Return the narrowing by a workspace, if it has one. Only for trusted workspaces."""
    path = workspace_settings(workspace)
    if not os.path.lexists(path):
        return None
    settings, file = _read(path, WorkspaceSettings)
    _check_parts(settings, file)
    if settings.tools.load:
        raise file.error(("tools", "load"), "a workspace may not load tools")
    if settings.tools.search_above != ToolsTable().search_above:
        raise file.error(("tools", "search_above"), "a workspace may not set search_above")
    if settings.policy.guard != GuardTable():
        raise file.error(("policy", "guard"), "a workspace may not set guard")
    for key in ("trusted_workspaces", "trusted_workspace_overrides"):
        if getattr(settings.policy, key):
            raise file.error(("policy", key), f"a workspace may not set {key}")
    if settings.policy.read_commands == "allow":
        problem = 'a workspace can set "ask", not "allow"'
        raise file.error(("policy", "read_commands"), problem)
    policy = _policy(settings.policy, file, ("policy",))
    named = settings.sandbox.network
    hosts = None if named is None else _hosts(named, file, ("sandbox", "network"))
    disabled = Setting(PolicyMode.DENY, file.origin("tools", "disable"))
    per_tool = {**policy.per_tool, **dict.fromkeys(settings.tools.disable, disabled)}
    return msgspec.structs.replace(policy, per_tool=per_tool, hosts=hosts)


def read_workspace(workspace: str) -> tuple[WorkspaceSettings, File]:
    """Return the settings of a trusted workspace, for features whose tables it may have."""
    return _read(workspace_settings(workspace), WorkspaceSettings)


def _check_parts(settings: Settings | WorkspaceSettings, file: File) -> None:
    for part in settings.parts.values():
        for path, problem in part.problems():
            raise file.error(path, f"{'.'.join(map(str, path))}: {problem}")


def _check_secrets(settings: Settings, file: File) -> None:
    """Check that no request and no process receives the key of `[secrets]`."""
    named = {"hosts": settings.hosts, "packs": settings.packs}
    for part in settings.parts.values():
        named |= {key: getattr(part, key) for key in part.__struct_fields__}
    for name, value in named.items():
        tables = msgspec.to_builtins(value, enc_hook=repr)
        if any(SECRETS_PREFIX in text for text in _texts(tables)):
            raise file.error((name,), f"{name}: variables {SECRETS_PREFIX}* are only for [secrets]")
    if settings.secrets.key_command is not None:
        import shlex  # lazy: few settings name a command  # noqa: PLC0415

        try:
            words = shlex.split(settings.secrets.key_command)
        except ValueError as error:
            raise file.error(("secrets", "key_command"), f"secrets.key_command: {error}") from None
        if not words:
            raise file.error(("secrets", "key_command"), "secrets.key_command: names no program")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def address_problem(text: str) -> str | None:
    """Return why a text is not the address of a server."""
    try:
        url = urllib.parse.urlsplit(text)
        is_one = url.scheme in ("http", "https") and url.hostname and "@" not in url.netloc
    except ValueError:
        is_one = False
    return None if is_one else "must be http://HOST or https://HOST"


def hosts_problem(texts: list[str]) -> str | None:
    """Return why a list does not name hosts."""
    try:
        for text in texts:
            allowed_hosts.parse(text)
    except ValueError as error:
        return str(error)
    return None


def _read(path: str, kind: type[T]) -> tuple[T, File]:
    try:
        with open(path, "rb") as opened:
            data = opened.read()
    except FileNotFoundError:
        return kind(), File(path, {})
    except OSError as error:
        raise SettingsError(path, None, f"cannot be read: {error.strerror}") from None
    return _parse(data, path, kind)


def _parse(data: bytes, path: str, kind: type[T]) -> tuple[T, File]:
    try:
        text = data.decode("utf-8")
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(path, line, "is not UTF-8") from None
    except RecursionError:
        raise SettingsError(path, None, "is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise SettingsError(path, line, f"not valid TOML: {error}") from None
    except ValueError:  # the interpreter does not parse such an integer
        raise SettingsError(path, None, "has an integer with too many digits") from None
    file = File(path, key_lines(text))
    by_owner = {} if kind is SavedRules else _feature_tables(tree, kind, file)
    kernel_tables = {key: value for key, value in tree.items() if table_owner(key) not in by_owner}
    if "parts" in kernel_tables:
        raise file.error(("parts",), "unknown key 'parts'")
    try:
        settings = msgspec.convert(kernel_tables, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, kernel_tables, kind, file) from None
    return (msgspec.structs.replace(settings, parts=by_owner) if by_owner else settings), file


_FOR_WORKSPACES = frozenset({"mcp"})
"""Features whose tables a workspace may have, too."""


def _feature_tables(tree: Mapping[str, Any], kind: type[T], file: File) -> dict[str, SettingsPart]:
    """Return the tables of features and packages, each parsed by its owner."""
    by_owner: dict[str, SettingsPart] = {}
    owned: dict[str, dict[str, Any]] = {}
    for key, value in tree.items():
        owner = table_owner(key)
        if owner is not None and (kind is Settings or owner in _FOR_WORKSPACES):
            owned.setdefault(owner, {})[key] = value
    for owner, tables in owned.items():
        part = part_type(owner)
        if part is None:
            key = next(iter(tables))
            raise file.error((key,), f"unknown key {key!r}: {owner!r} is not installed")
        try:
            by_owner[owner] = msgspec.convert(tables, part, strict=True)
        except msgspec.ValidationError as error:
            raise _explain(error, tables, part, file) from None
    return by_owner


def _explain(
    error: msgspec.ValidationError,
    tree: Mapping[str, Any],
    kind: type[msgspec.Struct],
    file: File,
) -> SettingsError:
    path, problem = explain(error, tree, kind, TABLES if kind is Settings else ())
    key = path[-1] if path else ""
    is_known = key in Settings.__struct_fields__ or key in TABLES
    if kind in (WorkspaceSettings, SavedRules) and is_known and "unknown key" in problem:
        problem = f"unknown key {key!r}; it is allowed only in your own settings"
    return file.error(path, problem)


def _check_sandbox(table: SandboxTable, file: File) -> None:
    if isinstance(table.network, list):
        _hosts(table.network, file, ("sandbox", "network"))
    for key in ("readable", "writable", "hidden"):
        for text in getattr(table, key):
            _directory(text, file, ("sandbox", key))
    for text in table.protected:
        path = os.path.normpath(text)
        if os.path.isabs(path) or path.split("/")[0] in ("..", ".", "~") or "\0" in text:
            raise file.error(
                ("sandbox", "protected"), f"{text!r} must be relative to the workspace, and in it"
            )


def _policy(table: PolicyTable, file: File, at: Path) -> Policy:
    return Policy(
        default=_classes(table.default, file, (*at, "default")),
        per_tool={
            name: _setting(word, file, (*at, "per_tool", name))
            for name, word in table.per_tool.items()
        },
        trusted_workspaces=tuple(
            _directory(each, file, (*at, "trusted_workspaces")) for each in table.trusted_workspaces
        ),
        trusted_origin=file.origin(*at, "trusted_workspaces")
        if table.trusted_workspaces
        else BUILT_IN,
        trusted_workspace_overrides=_classes(
            table.trusted_workspace_overrides, file, (*at, "trusted_workspace_overrides")
        ),
        rules=tuple(
            _rule(rule, file, (*at, "rules", index)) for index, rule in enumerate(table.rules)
        ),
        confirm_destructive=table.confirm_destructive,
        read_commands=_opt_in(table.read_commands, file, (*at, "read_commands")),
        reversible=_opt_in(table.reversible, file, (*at, "reversible")),
        guarded_rules=None if table.guarded_rules is None else tuple(table.guarded_rules),
        budgets=tuple(_budgets(table.budgets, file, (*at, "budgets"))),
        guard=_guard(table.guard),
    )


def _opt_in(word: str | None, file: File, at: Path) -> Setting | None:
    if word is None:
        return None
    mode = PolicyMode.AUTO if word == "allow" else PolicyMode.PROMPT
    return Setting(mode, file.origin(*at))


def _guard(table: GuardTable) -> GuardSettings:
    labels = {
        Label.UNTRUSTED: tuple(table.untrusted),
        Label.PRIVATE: tuple(table.private),
        Label.VOUCHED: tuple(table.vouched),
    }
    return GuardSettings(
        enabled=table.enabled,
        destinations=tuple(table.destinations),
        labels={label: tools for label, tools in labels.items() if tools},
        parameters={tool: tuple(names) for tool, names in table.parameters.items()},
        without_conversation=table.without_conversation,
    )


def _budgets(table: BudgetsTable, file: File, at: Path) -> Iterator[Budget]:
    tools = ((name, each, (*at, "tools", name)) for name, each in table.tools.items())
    for tool, limits, where in ((None, table, at), *tools):
        for per in ("session", "day"):
            for amount in AmountsTable.__struct_fields__:
                limit = getattr(getattr(limits, per), amount)
                if limit is not None:
                    origin = file.origin(*where, per, amount)
                    yield Budget(amount=amount, per=per, tool=tool, limit=limit, origin=origin)


def _setting(word: str, file: File, at: Path) -> Setting:
    try:
        return Setting(PolicyMode(word), file.origin(*at))
    except ValueError:
        near = nearest(word, PolicyMode)
        problem = f"{word!r} is not one of {', '.join(PolicyMode)}"
        problem += f"; did you mean '{near}'?" if near else ""
        raise file.error(at, f"{'.'.join(map(str, at))}: {problem}") from None


def _classes(table: Mapping[str, str], file: File, at: Path) -> dict[SideEffects, Setting]:
    settings: dict[SideEffects, Setting] = {}
    for name, word in table.items():
        try:
            effect = SideEffects.parse(name)
        except ValueError as error:
            raise file.error((*at, name), str(error)) from None
        if effect in settings:
            raise file.error((*at, name), f"effect {effect} is set twice")
        settings[effect] = _setting(word, file, (*at, name))
    return settings


def _rule(table: RuleTable, file: File, at: Path) -> Rule:
    conditions = (
        table.tool,
        table.path,
        table.command,
        table.caller,
        table.arguments_sha256,
        table.workspace,
        table.arguments or None,
        table.without or None,
        table.network,
        table.reversible,
    )
    if all(each is None for each in conditions):
        raise file.error(at, "a rule needs at least one condition (tool, path, command, ...)")
    try:
        command = None if table.command is None else parse_pattern(table.command)
    except ValueError as error:
        raise file.error((*at, "command"), f"command pattern: {error}") from None
    if table.arguments_sha256 is not None and not _SHA256.match(table.arguments_sha256):
        raise file.error((*at, "arguments_sha256"), "is not a SHA-256 in hexadecimal")
    return Rule(
        decision=table.decision,
        tool=table.tool,
        path=None if table.path is None else _path_glob(table.path, file, (*at, "path")),
        command=command,
        caller=table.caller,
        arguments=table.arguments,
        without=tuple(table.without),
        arguments_sha256=table.arguments_sha256,
        workspace=None
        if table.workspace is None
        else _directory(table.workspace, file, (*at, "workspace")),
        network=_network(table, file, (*at, "network")),
        reversible=table.reversible,
        untrusted_destinations=table.untrusted_destinations,
        origin=file.origin(*at),
    )


def _network(table: RuleTable, file: File, at: Path) -> bool | tuple[str, ...] | None:
    if not isinstance(table.network, list):
        return table.network
    if table.decision is Outcome.DENY:
        raise file.error(at, "a deny covers the whole network: write true, not a list of hosts")
    if not table.network:
        raise file.error(at, "names no host")
    return _hosts(table.network, file, at)


def _hosts(texts: list[str], file: File, at: Path) -> tuple[str, ...]:
    """Return the hosts in canonical form."""
    try:
        return tuple(str(allowed_hosts.parse(text)) for text in texts)
    except ValueError as error:
        raise file.error(at, f"{'.'.join(map(str, at))}: {error}") from None


def _directory(text: str, file: File, at: Path) -> str:
    """Resolve a directory; relative ones are refused, because they depend on the working
    directory.
    """
    if pool_workspace(text) is not None:
        return text
    path = os.path.expanduser(text)
    if not os.path.isabs(path):
        raise file.error(at, f"{text!r} must be an absolute path or begin with ~")
    return os.path.realpath(path)


def _path_glob(text: str, file: File, at: Path) -> str:
    """Return a glob over real paths: links before the first wildcard are resolved."""
    glob = os.path.expanduser(text) if text.startswith("~") else text.removeprefix("./")
    if not glob.strip("/"):
        raise file.error(at, "is empty")
    if glob.endswith("/"):  # a directory means its contents
        glob += "**"
    try:
        compile_glob(glob, paths=True)
    except ValueError as error:
        raise file.error(at, str(error)) from None
    if not glob.startswith("/"):
        return glob
    names = glob.split("/")
    plain = next((n for n, name in enumerate(names) if set(name) & set("*?")), len(names))
    real = os.path.realpath("/".join(names[:plain]) or "/")
    return os.path.join(real, *names[plain:])
