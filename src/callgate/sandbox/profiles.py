"""The three jails that people speak of: `read`, `workspace`, `open`.

    read        reads the system, the workspace and tool chains; changes nothing, no network
    workspace   the same, and writes in the workspace; a /tmp of its own; no network unless asked
    open        everything that the user may do, except to reach us

The last two can be `without_writes`, for hosts and servers whose calls may change nothing.

`SandboxPaths` is what they are made from. Nothing here looks at a file except to follow links.
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
"""Below a home directory: what proves who someone is, and what they typed. It matters where a
home is shown as a whole; elsewhere nothing but tool chains is shown of it."""

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
"""Beside what the system itself keeps from other users."""

_TMP = "/tmp"  # noqa: S108 compared with, not written to


class SandboxPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that a profile is made from. Links are followed when it is made."""

    workspace: str
    home: str
    """The user's home directory."""
    callgate_home: str
    read_roots: tuple[str, ...] = ()
    write_roots: tuple[str, ...] = ()
    """Roots that were granted beside the workspace."""
    program_roots: tuple[str, ...] = ()
    """Writable for one host or server alone, also where the workspace is not."""
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Beside our own home and what is a secret anyway."""
    shown: tuple[str, ...] = ()
    """The secrets that the user wants commands to see."""
    revealed: tuple[Root, ...] = ()
    """What one program sees, although it is a secret or in our own home: its installation there."""
    tools: tuple[str, ...] = ()
    """What is shown of a home, and of other directories that are not shown as a whole."""
    private: tuple[str, ...] = ()
    """Directories of which nothing is shown unless it is named. The user's home is one anyway."""
    names: Names | None = None
    """Names that a command may not create in the workspace and the roots beside it."""
    code: tuple[str, ...] = ()
    """Where our own program is: whoever changes it there is no longer in a jail."""


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
        bounded=True,  # nobody is asked about it
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
    own = tuple(root.path for root in paths.revealed)
    named = (paths.workspace, *paths.write_roots, *paths.program_roots, *shown, *own)
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
        revealed=tuple(path for path in (*seen, *changeable) if below_any(path, hidden)),
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
    """The same jail with the workspace and the roots beside it read-only. What is left are roots of
    its own that are no part of them, and what is revealed; in an open jail, all but them."""
    roots = _plain(paths.workspace, *paths.write_roots)
    writable = jail.writable
    if "/" not in writable:
        extra = (path for path in _plain(*paths.program_roots) if not below_any(path, roots))
        writable = tuple(sorted({*extra, *_revealed(paths)[1]}))
    protected = {*jail.protected, *roots}
    return msgspec.structs.replace(
        jail,
        readable=tuple(sorted({*jail.readable, *roots})),
        writable=writable,
        protected=tuple(sorted(each for each in protected if below_any(each, writable))),
        write_watch=roots,
    )


def _names(paths: SandboxPaths) -> Names | None:
    if paths.names is None:
        return None
    roots = _plain(paths.workspace, *paths.write_roots, *paths.program_roots)
    return msgspec.structs.replace(paths.names, roots=roots)


def with_replacements(jail: Jail, replacements: Iterable[Replacement]) -> Jail:
    """The jail with other files in the place of some, in directories that it shows."""
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
    """The revealed paths: readable ones, and writable ones."""
    by_access = {
        writable: [root.path for root in paths.revealed if root.writable is writable]
        for writable in (False, True)
    }
    return _plain(*by_access[False]), _plain(*by_access[True])


def _tools(paths: SandboxPaths) -> tuple[str, ...]:
    """The tool paths that no command can have replaced by a link to something else."""
    writable = (paths.workspace, *paths.write_roots, *paths.program_roots)
    real = _plain(*writable)
    return tuple(p for p in paths.tools if not below_any(p, writable) and not below_any(p, real))


def _hidden(
    paths: SandboxPaths, opaque: tuple[str, ...], visible: tuple[str, ...]
) -> tuple[str, ...]:
    """A secret in a root that was granted is hidden all the same, unless it is `shown`, or is
    one of the program for which the root is `revealed`. What is in an opaque directory is not
    there, unless it is visible."""
    home = os.path.realpath(paths.home)
    secrets = (os.path.join(home, name) for name in SECRETS)
    revealed = tuple(root.path for root in paths.revealed)
    own = _plain(*revealed)
    known = [_real_if_there(path) for path in (*secrets, *_SYSTEM_SECRETS)]
    hidden = (*(p for p in known if not below_any(p, own)), *_plain(*paths.hidden))
    secret = set(hidden).difference(_plain(*paths.shown, *revealed))
    wanted = {*secret, *_plain(paths.callgate_home)}
    return tuple(sorted(p for p in wanted if not below_any(p, opaque) or below_any(p, visible)))


def _movable(paths: tuple[str, ...], writable: tuple[str, ...]) -> list[str]:
    """The paths that a command could change or move. A hidden path that was moved would be found
    by the next command where nothing is hidden; moving a directory that it is in is enough."""
    inside = (path for path in paths if below_any(path, writable) and path not in writable)
    return [path for path in inside if os.path.lexists(path)]


def _unlinked(paths: SandboxPaths, writable: tuple[str, ...]) -> tuple[str, ...]:
    """The protected paths, as they are written below their root.

    Only the root's own links are followed: a link inside can be replaced by the command, so
    it is the place itself that must be kept. A home of ours in there must not be moved away.
    """
    roots = (paths.workspace, *paths.write_roots, *paths.program_roots)
    found = [home for home in _plain(paths.callgate_home) if below_any(home, writable)]
    for path in paths.protected:
        for root in roots:
            inside = os.path.relpath(path, root)
            if inside != ".." and not inside.startswith("../"):
                found.append(os.path.normpath(os.path.join(os.path.realpath(root), inside)))
                break
        else:
            raise ValueError(f"a protected path is outside every writable root: {path}")
    return tuple(sorted(set(found)))


def _real_if_there(path: str) -> str:
    """Most of what we know by name is not there, and following links takes time."""
    return os.path.realpath(path) if os.path.lexists(path) else path


def _plain(*paths: str) -> tuple[str, ...]:
    return tuple(sorted({os.path.realpath(path) for path in paths}))
