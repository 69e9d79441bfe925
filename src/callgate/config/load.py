"""From files to settings and a policy, each part of which knows where it was written."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from callgate.config.home import Home, workspace_settings
from callgate.config.lines import Path, key_lines, line_of, read_path
from callgate.config.schema import (
    AmountsTable,
    BudgetsTable,
    GuardTable,
    PolicyTable,
    RuleTable,
    SandboxLimitsTable,
    SandboxTable,
    SavedRules,
    Settings,
    StoreTable,
    WorkspaceSettings,
)
from callgate.core.content import Label
from callgate.core.effects import SideEffects
from callgate.core.mcp_servers import NOT_FOR_A_WORKSPACE, McpTable
from callgate.core.sessions import pool_workspace
from callgate.core.text.spelling import nearest
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
from callgate.sandbox.launch import SECRETS_PREFIX
from callgate.tools.tables import WebTable

T = TypeVar("T", Settings, WorkspaceSettings, SavedRules)

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")


class SettingsError(ValueError):
    """A settings file that is not used, and why: `file:line: what is wrong`."""

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(f"{Origin(file, line)}: {problem}")
        self.file, self.line, self.problem = file, line, problem


class _File(msgspec.Struct, frozen=True):
    path: str
    lines: dict[Path, int]

    def origin(self, *path: str | int) -> Origin:
        return Origin(self.path, line_of(self.lines, path))

    def error(self, path: Path, problem: str) -> SettingsError:
        return SettingsError(self.path, line_of(self.lines, path), problem)


def load_user(home: Home) -> tuple[Settings, Policy]:
    """The user's settings and policy, saved answers included. Missing files say nothing."""
    return _user(home, *_read(home.settings, Settings))


def load_changed(home: Home, data: bytes, name: str) -> tuple[Settings, Policy]:
    """The same with other settings in place of the user's: a text, and what it is called."""
    return _user(home, *_parse(data, name, Settings))


def check_rule(rule: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a rule that could not be read again once it is saved."""
    try:
        table = msgspec.convert(rule, RuleTable)
    except msgspec.ValidationError as error:
        raise SettingsError("the rule", None, str(error)) from None
    _rule(table, _File("the rule", {}), ("rules", 0))


def read_saved_rules(path: str) -> list[dict[str, Any]]:
    """The rules of a file such as `rules.toml`, as they are written. `SettingsError`."""
    saved, _ = _read(path, SavedRules)
    return [_given(rule) for rule in saved.rules]


def _given(rule: RuleTable) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(rule)
    plain = msgspec.to_builtins(RuleTable(decision=rule.decision))
    return {
        name: value for name, value in fields.items() if name == "decision" or value != plain[name]
    }


def _user(home: Home, settings: Settings, file: _File) -> tuple[Settings, Policy]:
    if isinstance(settings.sandbox, SandboxTable):
        _check_sandbox(settings.sandbox, file)
    _check_store(settings.store, file)
    _check_mcp(settings.mcp, file)
    if isinstance(settings.acp.mcp.network, list):
        _hosts(settings.acp.mcp.network, file, ("acp", "mcp", "network"))
    if isinstance(settings.acp.proxy.network, list):
        _hosts(settings.acp.proxy.network, file, ("acp", "proxy", "network"))
    _check_web(settings.web, file)
    for name, target in settings.notify.targets.items():
        if (problem := target.problem()) is not None:
            where = ("notify", "targets", name, problem[0])
            raise file.error(where, f"{'.'.join(where)}: {problem[1]}")
    if settings.notify.link is not None:
        _check_address(settings.notify.link, file, ("notify", "link"))
    _check_secrets(settings, file)
    if settings.documents.embeddings is not None:
        _check_address(
            settings.documents.embeddings.endpoint, file, ("documents", "embeddings", "endpoint")
        )
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


def _check_store(table: StoreTable, file: _File) -> None:
    if table.url is not None and table.url_env is not None:
        raise file.error(("store", "url_env"), "one of url and url_env is enough")
    if table.url is not None and not is_database(table.url) and not _is_directory(table.url):
        problem = "such as postgresql://host/database, or sqlite:///srv/callgate for a directory"
        raise file.error(("store", "url"), problem)
    if table.listen_url not in (None, "none") and not is_database(str(table.listen_url)):
        raise file.error(("store", "listen_url"), 'begins with postgresql://, or is "none"')


def load_workspace(workspace: str) -> Policy | None:
    """A workspace's own narrowing, if it has any. Ask only for a workspace the user trusts."""
    path = workspace_settings(workspace)
    if not os.path.lexists(path):
        return None
    settings, file = _read(path, WorkspaceSettings)
    if settings.tools.load:
        raise file.error(("tools", "load"), "a workspace may not load tools")
    if settings.policy.guard != GuardTable():
        raise file.error(("policy", "guard"), "a workspace may not set guard")
    for key in ("trusted_workspaces", "trusted_workspace_overrides"):
        if getattr(settings.policy, key):
            raise file.error(("policy", key), f"a workspace may not set {key}")
    _check_mcp(settings.mcp, file)
    policy = _policy(settings.policy, file, ("policy",))
    named = settings.sandbox.network
    hosts = None if named is None else _hosts(named, file, ("sandbox", "network"))
    disabled = Setting(PolicyMode.DENY, file.origin("tools", "disable"))
    per_tool = {**policy.per_tool, **dict.fromkeys(settings.tools.disable, disabled)}
    return msgspec.structs.replace(policy, per_tool=per_tool, hosts=hosts)


def load_workspace_mcp(workspace: str) -> Mapping[str, McpTable]:
    """The MCP servers that a workspace brings. Ask only for a workspace the user trusts."""
    settings, file = _read(workspace_settings(workspace), WorkspaceSettings)
    _check_mcp(settings.mcp, file)
    plain = McpTable()
    for name, table in settings.mcp.items():
        for key in NOT_FOR_A_WORKSPACE:
            if getattr(table, key) != getattr(plain, key):
                raise file.error(("mcp", name, key), f"a workspace may not set {key} of a server")
        if any("${" in text for text in (*table.set_env.values(), *table.headers.values())):
            raise file.error(("mcp", name), "a workspace may not use variables of the user")
    return settings.mcp


def _check_mcp(tables: Mapping[str, McpTable], file: _File) -> None:
    for name, table in tables.items():
        problem = table.problem()
        if problem is not None:
            raise file.error(("mcp", name, problem[0]), f"mcp.{name}.{problem[0]}: {problem[1]}")
        if isinstance(table.network, list):
            _hosts(table.network, file, ("mcp", name, "network"))


def _check_web(table: WebTable, file: _File) -> None:
    for key, entries in (("allow", table.allow), ("only", table.only or [])):
        for text in entries:
            try:
                if key == "allow" and "/" in text:
                    ipaddress.ip_network(text)
                else:
                    allowed_hosts.parse(text)
            except ValueError as error:
                raise file.error(("web", key), f"web.{key}: {error}") from None
    if table.search_url:
        _check_address(table.search_url, file, ("web", "search_url"))


def _check_secrets(settings: Settings, file: _File) -> None:
    """The key of `[secrets]` is sent to nobody, and no process is given it."""
    for name in ("hosts", "mcp", "models", "packs", "google", "web", "documents", "notify"):
        tables = msgspec.to_builtins(getattr(settings, name), enc_hook=repr)
        if any(SECRETS_PREFIX in text for text in _texts(tables)):
            raise file.error(
                (name,), f"{name}: variables {SECRETS_PREFIX}* are for [secrets] and nobody else"
            )
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


def _check_address(text: str, file: _File, at: Path) -> None:
    try:
        url = urllib.parse.urlsplit(text)
        is_one = url.scheme in ("http", "https") and url.hostname and "@" not in url.netloc
    except ValueError:
        is_one = False
    if not is_one:
        raise file.error(at, f"{'.'.join(map(str, at))}: must be http://HOST or https://HOST")


def _read(path: str, kind: type[T]) -> tuple[T, _File]:
    try:
        with open(path, "rb") as opened:
            data = opened.read()
    except FileNotFoundError:
        return kind(), _File(path, {})
    except OSError as error:
        raise SettingsError(path, None, f"cannot be read: {error.strerror}") from None
    return _parse(data, path, kind)


def _parse(data: bytes, path: str, kind: type[T]) -> tuple[T, _File]:
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
        raise SettingsError(path, int(found[1]) if found else None, str(error)) from None
    except ValueError:  # the interpreter does not read such an integer
        raise SettingsError(path, None, "has an integer with too many digits") from None
    file = _File(path, key_lines(text))
    try:
        return msgspec.convert(tree, kind, strict=True), file
    except msgspec.ValidationError as error:
        raise _explain(error, file) from None


def _explain(error: msgspec.ValidationError, file: _File) -> SettingsError:
    message, _, location = str(error).partition(" - at `")
    path = read_path(location.rstrip("`"))
    unknown = _UNKNOWN.search(message)
    if unknown is None:
        where = ".".join(map(str, path))
        return file.error(path, f"{where}: {message}" if where else message)
    key = unknown[1]
    if key == "tool_confirmation":
        return file.error((key,), "unknown key 'tool_confirmation': the key is [policy]")
    near = nearest(key, _known_keys(path))
    hint = f"; did you mean {near!r}?" if near else ""
    if near == key:  # it is one, but not here
        hint = "; only your own settings may have it"
    where = ".".join(map(str, path))
    return file.error((*path, key), f"unknown key {key!r}{f' in {where}' if where else ''}{hint}")


def _known_keys(path: Path) -> list[str]:
    kinds = {
        (): Settings,
        ("policy",): PolicyTable,
        ("policy", "guard"): GuardTable,
        ("policy", "rules"): RuleTable,
        ("rules",): RuleTable,
        ("sandbox", "limits"): SandboxLimitsTable,
    }
    names = tuple(step for step in path if isinstance(step, str))
    if names in kinds:
        return list(kinds[names].__struct_fields__)
    table = getattr(Settings(), names[0], None) if names else None
    return list(getattr(table, "__struct_fields__", ()))


def _check_sandbox(table: SandboxTable, file: _File) -> None:
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


def _policy(table: PolicyTable, file: _File, at: Path) -> Policy:
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
        budgets=tuple(_budgets(table.budgets, file, (*at, "budgets"))),
        guard=_guard(table.guard),
    )


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


def _budgets(table: BudgetsTable, file: _File, at: Path) -> Iterator[Budget]:
    tools = ((name, each, (*at, "tools", name)) for name, each in table.tools.items())
    for tool, limits, where in ((None, table, at), *tools):
        for per in ("session", "day"):
            for amount in AmountsTable.__struct_fields__:
                limit = getattr(getattr(limits, per), amount)
                if limit is not None:
                    origin = file.origin(*where, per, amount)
                    yield Budget(amount=amount, per=per, tool=tool, limit=limit, origin=origin)


def _setting(word: str, file: _File, at: Path) -> Setting:
    try:
        return Setting(PolicyMode(word), file.origin(*at))
    except ValueError:
        known = ", ".join(PolicyMode)
        raise file.error(at, f"{'.'.join(map(str, at))}: {word!r} is not one of {known}") from None


def _classes(table: Mapping[str, str], file: _File, at: Path) -> dict[SideEffects, Setting]:
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


def _rule(table: RuleTable, file: _File, at: Path) -> Rule:
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
        untrusted_destinations=table.untrusted_destinations,
        origin=file.origin(*at),
    )


def _network(table: RuleTable, file: _File, at: Path) -> bool | tuple[str, ...] | None:
    if not isinstance(table.network, list):
        return table.network
    if table.decision is Outcome.DENY:
        raise file.error(at, "a deny covers the whole network: write true, not a list of hosts")
    if not table.network:
        raise file.error(at, "names no host")
    return _hosts(table.network, file, at)


def _hosts(texts: list[str], file: _File, at: Path) -> tuple[str, ...]:
    """Hosts in their one spelling."""
    try:
        return tuple(str(allowed_hosts.parse(text)) for text in texts)
    except ValueError as error:
        raise file.error(at, f"{'.'.join(map(str, at))}: {error}") from None


def _directory(text: str, file: _File, at: Path) -> str:
    """A directory as it really is; a relative one would depend on where someone stands."""
    if pool_workspace(text) is not None:
        return text
    path = os.path.expanduser(text)
    if not os.path.isabs(path):
        raise file.error(at, f"{text!r} must be an absolute path or begin with ~")
    return os.path.realpath(path)


def _path_glob(text: str, file: _File, at: Path) -> str:
    """A glob over real paths: links in the part before the first wildcard are resolved."""
    glob = os.path.expanduser(text) if text.startswith("~") else text.removeprefix("./")
    if not glob.strip("/"):
        raise file.error(at, "is empty")
    if glob.endswith("/"):  # a directory means what is in it
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
