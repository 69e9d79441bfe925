"""The three named jails: `read`, `workspace`, `open`.

    read        reads the system, the workspace and tool chains; changes nothing, no network
    workspace   as `read`, and writes in the workspace; a private /tmp; network only on request
    open        everything that the user may do, except access to callgate's home

The last two have a variant `without_writes`, for hosts and servers whose calls may change nothing.

`SandboxPaths` is the input of a profile. The module accesses files only to resolve links.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from callgate.core.sessions import Root
from callgate.sandbox import sight
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.jails import (
    NO_LIMITS,
    Jail,
    Limits,
    Names,
    Network,
    Replacement,
    below_any,
    is_below,
)
from callgate.sandbox.jails import Profile as Profile

SECRETS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".oci",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/glab-cli",
    ".config/doctl",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".config/age",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".git-credentials",
    ".config/git/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".mysql_history",
    ".node_repl_history",
    ".local/share/fish",
    "Library/Keychains",
    "Library/Cookies",
    ".claude/.credentials.json",
    ".claude.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".config/github-copilot",
    ".config/containers/auth.json",
    ".databrickscfg",
    ".snowflake",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".config/discord",
    ".config/Slack",
    ".config/Signal",
    ".config/keepassxc",
    ".config/1Password",
    "snap",
    ".var/app",
    ".local/share/flatpak",
    ".cache/huggingface/token",
    ".huggingface",
    ".fly",
    ".vercel",
    ".local/share/com.vercel.cli",
    ".config/netlify",
    ".netlify",
    ".config/heroku",
    ".heroku",
    ".s3cfg",
    ".boto",
    ".config/gsutil",
    ".config/wrangler",
    ".wrangler",
    ".supabase",
    ".railway",
    ".render",
    ".config/stripe",
    ".config/ngrok",
    ".ngrok2",
    ".config/pip",
    ".pip",
    ".config/pypoetry",
    ".bundle/config",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".nuget/NuGet",
    ".config/NuGet",
    ".pub-cache/credentials.json",
    ".config/dart",
    ".lesshst",
    ".viminfo",
    ".irb_history",
    ".pry_history",
    ".sqlite_history",
    ".rediscli_history",
    ".mongo",
    ".dbshell",
    ".histfile",
    ".zhistory",
    ".history",
    ".ash_history",
    ".sh_history",
    ".ksh_history",
    ".tcsh_history",
    ".local/state/bash",
    ".local/share/zsh",
    ".local/share/nushell",
    ".config/nushell/history.txt",
    ".local/share/atuin",
    ".config/atuin",
    ".local/share/powershell",
    ".julia/logs",
    ".octave_hist",
    ".Rhistory",
    ".gdb_history",
    ".ipython",
    ".jupyter",
    ".config/zed",
    ".config/Code",
    ".config/Cursor",
    ".config/Bitwarden",
    ".config/Element",
    ".config/TelegramDesktop",
    ".local/share/TelegramDesktop",
    ".purple",
    ".config/evolution",
    ".local/share/evolution",
    ".pki",
    ".gnome2/keyrings",
    ".rhosts",
    ".terraformrc",
    ".config/helm",
    ".config/argocd",
    ".config/linode-cli",
    ".config/hcloud",
    ".aliyun",
    ".tccli",
    ".ibmcloud",
    ".config/kaggle",
    ".kaggle",
    ".openai",
    ".anthropic",
    ".config/openai",
    ".config/anthropic",
    ".wandb",
    ".config/wandb",
    ".config/sentry",
    ".sentryclirc",
    ".config/doppler",
    ".doppler",
    ".config/infisical",
    ".infisical",
)
"""Credentials and histories, below a home directory. The list matters if a home is visible as a
whole; otherwise only tool chains of a home are visible."""

_SYSTEM_SECRETS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/krb5.keytab",
    "/etc/security/opasswd",
    "/etc/NetworkManager/system-connections",
    "/etc/wpa_supplicant",
    "/etc/ppp/chap-secrets",
    "/etc/ppp/pap-secrets",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/letsencrypt",
    "/etc/cni",
    "/etc/netplan",
    "/etc/iwd",
    "/var/lib/docker",
    "/var/lib/containers",
    "/var/lib/kubelet",
    "/var/lib/NetworkManager",
    "/var/lib/iwd",
    "/run/docker.sock",
    "/run/containerd",
)
"""Secrets of the system, in addition to files that other users cannot read."""

_TMP = "/tmp"  # noqa: S108 compared with, not written to


class SandboxPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The input paths of a profile, which resolves their links."""

    workspace: str
    home: str
    """The user's home directory."""
    callgate_home: str
    read_roots: tuple[str, ...] = ()
    write_roots: tuple[str, ...] = ()
    """Roots that were granted in addition to the workspace."""
    program_roots: tuple[str, ...] = ()
    """Writable for one host or server only, even if the workspace is not."""
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Hidden paths in addition to callgate's home and the built-in secrets."""
    shown: tuple[str, ...] = ()
    """Secrets that the user made visible to commands."""
    revealed: tuple[Root, ...] = ()
    """Paths that one program sees although they are secret or in callgate's home, such as its
    installation."""
    tools: tuple[str, ...] = ()
    """Visible parts of a home, and of other directories that are not visible as a whole."""
    private: tuple[str, ...] = ()
    """Directories of which only explicitly granted parts are visible, in addition to the home."""
    names: Names | None = None
    """Names that a command may not create in the workspace and the granted roots."""
    code: tuple[str, ...] = ()
    """Directories of callgate's code: a command that changed them would escape the jail."""


def read(paths: SandboxPaths, *, limits: Limits = NO_LIMITS) -> Jail:
    named = (paths.workspace, *paths.read_roots, *paths.write_roots, *_tools(paths))
    visible = _plain(*named)
    opaque = sight.opaque((paths.home, _TMP, *paths.private), visible)
    return Jail(
        hidden=_hidden(paths, opaque, visible),
        opaque=opaque,
        links=sight.links(named, opaque, visible),
        readable=tuple(sorted({"/", *visible})),
        limits=limits,
        bounded=True,  # commands run in it without approval
    )


def workspace(
    paths: SandboxPaths,
    *,
    network: Network = Network.NONE,
    hosts: tuple[AllowedHost, ...] = (),
    limits: Limits = NO_LIMITS,
) -> Jail:
    seen, changeable = _revealed(paths)
    writable = _plain(paths.workspace, *paths.write_roots, *paths.program_roots, *changeable)
    shown = (*paths.read_roots, *_tools(paths), *seen)
    readable = _plain(*shown)
    visible = (*readable, *writable)
    opaque = sight.opaque((paths.home, *paths.private), visible)
    own_roots = tuple(root.path for root in paths.revealed)
    named = (paths.workspace, *paths.write_roots, *paths.program_roots, *shown, *own_roots)
    hidden = _hidden(paths, opaque, visible)
    return Jail(
        readable=tuple(sorted({"/", *readable})),
        opaque=opaque,
        links=sight.links(named, opaque, visible),
        writable=writable,
        protected=tuple(
            sorted(
                {
                    *_unlinked(paths, writable),
                    *_movable(hidden, writable),
                    *_movable(_plain(*paths.code), writable),
                }
            )
        ),
        hidden=hidden,
        revealed=_visible_in(hidden, paths, (*seen, *changeable)),
        network=network,
        hosts=hosts,
        names=_names(paths),
        fresh_tmp=not any(is_below(_TMP, root) for root in writable),
        pid_namespace=True,
        limits=limits,
    )


def open(paths: SandboxPaths, *, limits: Limits = NO_LIMITS) -> Jail:
    home = _plain(paths.callgate_home)
    hidden = tuple(sorted({*home, *_plain(*paths.hidden)}))
    seen, changeable = _revealed(paths)
    return Jail(
        readable=("/", *seen),
        writable=("/", *changeable),
        protected=tuple(sorted({*home, *_movable((*hidden, *_plain(*paths.code)), ("/",))})),
        hidden=hidden,
        revealed=tuple(path for path in (*seen, *changeable) if below_any(path, hidden)),
        network=Network.ALL,
        unix_sockets=True,
        limits=limits,
    )


def without_writes(jail: Jail, paths: SandboxPaths) -> Jail:
    """Return the jail with the workspace and the granted roots read-only. Revealed paths, and
    program roots outside the others, stay writable; in an open jail, everything else does. A
    workspace that is itself revealed is read-only."""
    roots = _plain(paths.workspace, *paths.write_roots)
    writable = jail.writable
    if "/" not in writable or "/" in roots:
        extra = (path for path in _plain(*paths.program_roots) if not below_any(path, roots))
        writable = tuple(sorted({*extra, *_revealed(paths)[1]} - {*roots}))
    protected = {*jail.protected, *roots}
    return msgspec.structs.replace(
        jail,
        readable=tuple(sorted({*jail.readable, *roots})),
        writable=writable,
        protected=tuple(sorted(each for each in protected if _is_inside(each, writable))),
        write_watch=roots,
    )


def without_service_sockets(paths: SandboxPaths) -> SandboxPaths:
    """Return paths without the directories in which services of this machine listen."""
    return msgspec.structs.replace(
        paths,
        private=(*paths.private, *sight.service_directories()),
        read_roots=(*paths.read_roots, *sight.shown_of_services()),
    )


def _names(paths: SandboxPaths) -> Names | None:
    if paths.names is None:
        return None
    roots = _plain(paths.workspace, *paths.write_roots, *paths.program_roots)
    home = os.path.realpath(paths.callgate_home)
    private = (path for path in _revealed(paths)[1] if is_below(path, home) and path not in roots)
    return msgspec.structs.replace(paths.names, roots=roots, private=tuple(private))


def with_replacements(jail: Jail, replacements: Iterable[Replacement]) -> Jail:
    """Return a jail in which other files replace some, in directories that it shows."""
    given = tuple(replacements)
    readable = {each.path for each in given if not each.writable}
    writable = {each.path for each in given if each.writable}
    return msgspec.structs.replace(
        jail,
        readable=tuple(sorted({*jail.readable, *readable})),
        writable=tuple(sorted({*jail.writable, *writable} - readable)),
        replacements=tuple((each.path, each.source) for each in given if each.source != each.path),
    )


def _revealed(paths: SandboxPaths) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the revealed paths: readable ones, and writable ones."""
    by_access = {
        writable: [root.path for root in paths.revealed if root.writable is writable]
        for writable in (False, True)
    }
    return _plain(*by_access[False]), _plain(*by_access[True])


def _visible_in(
    hidden: tuple[str, ...], paths: SandboxPaths, revealed: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the visible paths below hidden ones: revealed paths, and granted roots in them. Such
    a root is a separate mount, because its rules differ from the directory around it."""
    roots = _plain(paths.workspace, *paths.write_roots, *paths.program_roots)
    granted = (path for path in roots if below_any(path, revealed))
    return tuple(sorted(p for p in {*revealed, *granted} if below_any(p, hidden)))


def _tools(paths: SandboxPaths) -> tuple[str, ...]:
    """Return the tool paths, except those in writable roots, where a command could replace them."""
    writable = (paths.workspace, *paths.write_roots, *paths.program_roots)
    real = _plain(*writable)
    return tuple(p for p in paths.tools if not below_any(p, writable) and not below_any(p, real))


def _hidden(
    paths: SandboxPaths, opaque: tuple[str, ...], visible: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the hidden paths. A secret in a granted root is hidden, unless it is `shown`, or
    belongs to the program for which the root is `revealed`. Paths in an opaque directory are
    omitted unless they are visible. A root that was granted in callgate's home does not show it."""
    home = os.path.realpath(paths.home)
    secrets = (os.path.join(home, name) for name in SECRETS)
    revealed = tuple(root.path for root in paths.revealed)
    shown = _plain(*revealed)
    known = [_real_if_there(path) for path in (*secrets, *_SYSTEM_SECRETS)]
    hidden = (*(p for p in known if not below_any(p, shown)), *_plain(*paths.hidden))
    secret = set(hidden).difference(_plain(*paths.shown, *revealed))
    ours = os.path.realpath(paths.callgate_home)
    granted = _plain(paths.workspace, *paths.write_roots, *paths.program_roots)
    if any(is_below(root, ours) and not below_any(root, shown) for root in granted):
        visible = (*visible, ours)
    wanted = {*secret, ours}
    return tuple(sorted(p for p in wanted if not below_any(p, opaque) or below_any(p, visible)))


def _movable(paths: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """Return the paths that a command could change or move. A hidden path must not move, because
    the next command would see it at its new place. The same applies to its parent directories."""
    inside = (path for path in paths if below_any(path, writable) and path not in writable)
    return [path for path in inside if os.path.lexists(path)]


def _is_inside(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is below one of the roots, and is not the root itself."""
    return any(is_below(path, root) for root in roots if root != path)


def _unlinked(paths: SandboxPaths, writable: tuple[str, ...]) -> tuple[str, ...]:
    """Return the protected paths, relative to the resolved root.

    The function resolves only links of the root itself. A command can replace a link inside, so
    the path in the root must be protected. A home of callgate in there must not be moved away.

    The revealed paths are the only visible ones in callgate's home. Paths in it are protected only
    for a root that is in there itself, because the home stays writable for its program.
    """
    roots = (paths.workspace, *paths.write_roots, *paths.program_roots)
    revealed = _plain(*(root.path for root in paths.revealed))
    home = os.path.realpath(paths.callgate_home)
    found = [home] if _is_inside(home, writable) else []
    for path in paths.protected:
        for root in roots:
            inside = os.path.relpath(path, root)
            if inside != ".." and not inside.startswith("../"):
                real = os.path.realpath(root)
                target = os.path.normpath(os.path.join(real, inside))
                if not is_below(target, home) or below_any(real, revealed):
                    found.append(target)
                break
        else:
            raise ValueError(f"a protected path is outside every writable root: {path}")
    return tuple(sorted(set(found)))


def _real_if_there(path: str) -> str:
    """Resolve the links of a path if it exists. Most known paths do not, and resolving is slow."""
    return os.path.realpath(path) if os.path.lexists(path) else path


def _plain(*paths: str) -> tuple[str, ...]:
    return tuple(sorted({os.path.realpath(path) for path in paths}))
