"""Visible and hidden parts of the machine for a command, besides the paths of its jail.

    opaque directories    homes and other people's data: empty, except for their visible parts
    private places        files that the system hides from other users are hidden from commands

So an unknown secret is hidden if it is in a home or if only we may read it. `unseen` finds hidden
existing paths in a command's text and errors.

Commands see the tools that people install in a home. This is an allow list, because no list of
secrets is complete. A tool chain with credentials next to its programs is visible in part. The
directories of PATH, and of variables that locate a tool chain, are visible too.

    shown(home, environ)                   for every command
    of_program(argv, cwd, environ, home)   for a host or server: the origin of its program
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from callgate.sandbox.jails import Jail, below_any, is_below

DATA = (
    "/home",
    "/root",
    "/Users",
    "/mnt",
    "/media",
    "/srv",
    "/lost+found",
    "/var/mail",
    "/var/spool",
    "/var/backups",
    "/var/lib/private",
    "/run/user",
    "/run/secrets",
    "/run/credentials",
    "/run/media",
    "/run/screen",
)
"""Directories that no tool needs, unless they are explicitly visible."""

_SERVICES = ("/run", "/var/run")
"""Directories in which services of this machine listen at Unix sockets."""
_SHOWN_OF_SERVICES = (
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/current-system",
    "/run/booted-system",
    "/run/opengl-driver",
)
"""Programs and files in those directories that a command needs; no service listens at them."""
_SOCKETS = "/proc/net/unix"
_OWN_IN_A_JAIL = ("/tmp", "/proc", "/dev", "/sys")  # noqa: S108 compared with, not written to

_PRIVATE_IN = {
    "/": 1,
    "/etc": 3,
    "/opt": 2,
    "/usr/local": 2,
    "/var/lib": 2,
    "/var/cache": 2,
    "/var/log": 2,
    "/run": 1,
}
"""Directories to search for private entries, with the depth of the search."""
_MOST_PRIVATE = 500
_FRESH_S = 600.0
_MOST_LINKS = 40
_LONGEST_TEXT = 64 * 1024
_MOST_WORDS, _MOST_NAMED = 200, 5
_PATH = re.compile(r"(?:~|\$HOME|\$\{HOME\})?/[^\s'\"`;|&<>()\[\]{}:,*?$\\]*")


def opaque(directories: Iterable[str], visible: Iterable[str]) -> tuple[str, ...]:
    """Return the outermost of these directories that no visible path covers."""
    shown = [path for path in visible if path != "/"]
    real = {os.path.realpath(path) for path in directories if os.path.isdir(path)} - {"/"}
    wanted = {path for path in real if not below_any(path, shown)}
    return tuple(sorted(p for p in wanted if not below_any(p, wanted - {p})))


def links(
    paths: Iterable[str], inside: Iterable[str], visible: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return the symbolic links on the way to paths, each with its target: links below `inside`,
    without the links in visible directories."""
    roots, shown = tuple(inside), [path for path in visible if path != "/"]
    found = {link for path in paths for link in _links(path, _MOST_LINKS)}
    return tuple(
        sorted((at, to) for at, to in found if below_any(at, roots) and not below_any(at, shown))
    )


def _links(path: str, most: int) -> Iterator[tuple[str, str]]:
    step = "/"
    for name in path.strip("/").split("/"):
        step = os.path.join(step, name)
        if os.path.islink(step) and most:
            target = os.readlink(step)
            yield step, target
            following = os.path.normpath(os.path.join(os.path.dirname(step), target))
            yield from _links(following, most - 1)
            step = os.path.realpath(step)


def service_directories() -> tuple[str, ...]:
    """Return the directories in which services listen: the usual ones, and those in use now."""
    found = {*_SERVICES}
    try:
        with open(_SOCKETS, encoding="utf-8", errors="surrogateescape") as file:
            for line in itertools.islice(file, 1, None):
                _, slash, path = line.rstrip("\n").partition(" /")
                if slash and not below_any(f"/{path}", _OWN_IN_A_JAIL):
                    found.add(os.path.dirname(f"/{path}"))
    except OSError:
        pass  # not Linux
    return tuple(sorted(found - {"/"}))


def shown_of_services() -> tuple[str, ...]:
    return tuple(path for path in _SHOWN_OF_SERVICES if os.path.exists(path))


def private_paths() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return directories and files of the system that we may read and other users may not."""
    return _private_paths(int(time.monotonic() / _FRESH_S))


@functools.lru_cache(maxsize=1)
def _private_paths(moment: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    groups = {os.getegid(), *os.getgroups()}
    directories: list[str] = []
    files: list[str] = []
    for root, depth in _PRIVATE_IN.items():
        for entry in _private(root, depth, os.geteuid(), groups):
            (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.path)
    return tuple(directories[:_MOST_PRIVATE]), tuple(files[:_MOST_PRIVATE])


def _private(root: str, depth: int, user: int, groups: set[int]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(root) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(facts.st_mode)
        if not is_directory and not stat.S_ISREG(facts.st_mode):
            continue
        needed = 0o5 if is_directory else 0o4
        if facts.st_mode & needed != needed:
            if facts.st_uid == user or facts.st_gid in groups:
                yield entry
        elif is_directory and depth > 1:
            yield from _private(entry.path, depth - 1, user, groups)


# --- hidden paths that a command named ------------------------------------------------------


def unseen(jail: Jail, home: str, text: str) -> tuple[str, ...]:
    """Return the existing paths in a text that are hidden from a command in this jail."""
    named: dict[str, None] = {}
    for match in itertools.islice(_PATH.finditer(text[-_LONGEST_TEXT:]), _MOST_WORDS):
        word = match.group().rstrip("./")
        path = re.sub(r"^(?:~|\$HOME|\$\{HOME\})", lambda _: home, word)
        if path and is_out_of_sight(jail, path):
            named[path] = None
            if len(named) == _MOST_NAMED:
                break
    return tuple(named)


def is_out_of_sight(jail: Jail, path: str) -> bool:
    """Whether a path exists and is hidden from a command."""
    real = os.path.realpath(path)
    visible = [root for root in (*jail.readable, *jail.writable) if root != "/"]
    if below_any(real, jail.hidden):
        return os.path.lexists(real)
    if not below_any(real, jail.opaque) or below_any(real, visible):
        return False
    return os.path.lexists(real) and not any(is_below(root, real) for root in visible)


_NAMES = """
    bin .local/bin .local/lib .tool-versions .asdf .asdfrc .local/share/mise .local/share/rtx .proto
    .nix-profile .local/state/nix .nix-defexpr/channels .linuxbrew .terminfo .editorconfig
    .gitconfig .gitignore .gitignore_global .gitattributes
    .config/git/config .config/git/ignore .config/git/attributes

    .pyenv .local/share/uv .local/pipx .local/share/pipx .virtualenvs .local/share/virtualenv
    .local/share/virtualenvs .local/share/pypoetry .local/share/pdm .local/share/hatch .rye
    .python-version .conda/envs .conda/pkgs miniconda3 miniforge3 mambaforge anaconda3 micromamba
    .local/share/mamba .pixi/bin .pixi/envs .local/share/jupyter/kernels
    .cache/uv .cache/pip .cache/pypoetry .cache/pre-commit .cache/pyright-python

    .nvm .fnm .local/share/fnm .volta .nodenv .n .npm-global .npm-packages .npm/_cacache
    .yarn/bin .yarn/berry .config/yarn/global .local/share/pnpm .pnpm-store .bun/bin .bun/install
    .deno/bin .node-version .nvmrc
    .cache/yarn .cache/pnpm .cache/node .cache/deno .cache/ms-playwright .cache/puppeteer
    .cache/Cypress .cache/electron .cache/node-gyp

    .cargo/bin .cargo/registry .cargo/git .cargo/env .cargo/config .cargo/config.toml .rustup
    go/bin go/pkg sdk .goenv .gvm .config/go/env .cache/go-build .cache/golangci-lint

    .sdkman .jenv .jabba .jdks .m2/repository .m2/wrapper .gradle/caches .gradle/wrapper
    .gradle/jdks .gradle/native .ivy2/cache .sbt/boot .sbt/launchers .cache/coursier .konan
    .local/share/coursier .lein Android/Sdk .android/avd

    .rbenv .rvm .rubies .gem/ruby .local/share/gem .bundle/cache .phpenv .composer/vendor
    .config/composer/vendor .ghcup .cabal/bin .cabal/store .cabal/packages .local/state/cabal
    .stack/programs .stack/pantry .stack/snapshots .opam .juliaup .julia/juliaup .julia/packages
    .julia/artifacts .julia/compiled .julia/registries .elan .mix/archives .mix/elixir .hex/packages
    .kerl .nimble .choosenim .zvm .swiftly .dotnet .nuget/packages .pub-cache/bin .pub-cache/hosted
    .pub-cache/global_packages .luarocks perl5 .perlbrew .plenv R .foundry/bin .tfenv .tenv
    .emsdk emsdk .vcpkg .conan/data .conan2/p .platformio .espressif .ccache .cache/ccache
    .cache/bazel .cache/bazelisk .cache/zig .fonts .local/share/fonts .cache/fontconfig
"""
NAMES = tuple(_NAMES.split())

_DIRECTORIES = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYENV_ROOT",
    "NVM_DIR",
    "JAVA_HOME",
    "GOROOT",
    "RUSTUP_HOME",
    "ANDROID_HOME",
    "DOTNET_ROOT",
)
_SUBPATHS = {
    "CARGO_HOME": ("bin", "registry", "git", "env", "config.toml"),
    "GOPATH": ("bin", "pkg"),
}


_PACKAGES = ("pyvenv.cfg", "conda-meta", "package.json", "pyproject.toml", "setup.py")


def shown(home: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the existing tool paths as written, without following links."""
    paths = [os.path.join(home, name) for name in NAMES]
    paths += [environ[name] for name in _DIRECTORIES if name in environ]
    for name, subpaths in _SUBPATHS.items():
        if name in environ:
            paths += [os.path.join(environ[name], subpath) for subpath in subpaths]
    for directory in environ.get("PATH", "").split(os.pathsep):
        paths += [directory, *_version_manager(directory)]
    return _proper(paths, home)


def _version_manager(directory: str) -> Iterator[str]:
    """Yield the directory of programs that shims start (pyenv, rbenv, asdf, mise)."""
    root, name = os.path.split(os.path.normpath(directory))
    beside = (os.path.join(root, each) for each in ("versions", "installs"))
    if name == "shims" and any(map(os.path.isdir, beside)):
        yield root


def of_program(
    argv: Sequence[str], cwd: str, environ: Mapping[str, str], home: str
) -> tuple[str, ...]:
    """Return the origin of a host or server: its program, and the paths in its arguments.

    A program or script includes the package or environment that it belongs to.
    """
    import shutil  # lazy: most calls start neither host nor server  # noqa: PLC0415

    paths = [cwd]
    program = shutil.which(
        os.path.join(cwd, argv[0]) if "/" in argv[0] else argv[0], path=environ.get("PATH")
    )
    if program is not None:
        paths += [program, _package(program), _package(os.path.realpath(program))]
    for word in argv[1:]:
        path = os.path.join(cwd, os.path.expanduser(word.rpartition("=")[2]))
        if os.path.isfile(path):
            paths += [path, _package(path)]
        elif os.path.isdir(path):
            paths.append(path)
    return _proper(paths, home)


def _package(file: str) -> str:
    """Return the package directory around a file, else its directory. A file in `node_modules`
    needs the packages next to its own, too."""
    before, found, _ = file.partition("/node_modules/")
    if found:
        return f"{before}/node_modules"
    directory = os.path.dirname(file)
    while directory != os.path.dirname(directory):
        if any(os.path.exists(os.path.join(directory, name)) for name in _PACKAGES):
            return directory
        directory = os.path.dirname(directory)
    return os.path.dirname(file)


def _proper(paths: Iterable[str], home: str) -> tuple[str, ...]:
    found = sorted(set(_inside(paths, os.path.realpath(home))))
    return tuple(path for path in found if not below_any(os.path.dirname(path), found))


def _inside(paths: Iterable[str], home: str) -> Iterator[str]:
    """Yield the paths that exist and do not contain the whole home."""
    for path in paths:
        if os.path.isabs(path):
            path = os.path.normpath(path)
            if os.path.exists(path) and not is_below(home, os.path.realpath(path)):
                yield path
