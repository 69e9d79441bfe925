"""What commands see of a home directory: the tools that people install there, and no more.

A list of what is shown, because no list of secrets is ever complete. Places that hold a tool
chain's credentials beside its programs are shown in part. What the environment names on PATH, or
in a variable that tells where a tool chain is, is shown as well.

    shown(home, environ)                   for every command
    of_program(argv, cwd, environ, home)   for a host or server: what it was started from
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from callgate.sandbox.jails import below_any, is_below

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
    """What exists of it, as it is written: links are not followed."""
    paths = [os.path.join(home, name) for name in NAMES]
    paths += [environ[name] for name in _DIRECTORIES if name in environ]
    for name, subpaths in _SUBPATHS.items():
        if name in environ:
            paths += [os.path.join(environ[name], subpath) for subpath in subpaths]
    for directory in environ.get("PATH", "").split(os.pathsep):
        paths += [directory, *_version_manager(directory)]
    return _proper(paths, home)


def _version_manager(directory: str) -> Iterator[str]:
    """What a directory of shims starts: pyenv, rbenv, asdf, mise keep the programs beside it."""
    root, name = os.path.split(os.path.normpath(directory))
    beside = (os.path.join(root, each) for each in ("versions", "installs"))
    if name == "shims" and any(map(os.path.isdir, beside)):
        yield root


def of_program(
    argv: Sequence[str], cwd: str, environ: Mapping[str, str], home: str
) -> tuple[str, ...]:
    """Where a host or server was started from, and the places that its own words name.

    Around a program or script is the package or environment that it belongs to.
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
    """The nearest directory above a file that is one, or else the one that it is in. What npm has
    installed needs packages beside it, too."""
    before, found, _ = file.partition("/node_modules/")
    if found:
        return f"{before}/node_modules"
    directory = os.path.dirname(file)
    while directory != "/":
        if any(os.path.exists(os.path.join(directory, name)) for name in _PACKAGES):
            return directory
        directory = os.path.dirname(directory)
    return os.path.dirname(file)


def _proper(paths: Iterable[str], home: str) -> tuple[str, ...]:
    found = sorted(set(_inside(paths, os.path.realpath(home))))
    return tuple(path for path in found if not below_any(os.path.dirname(path), found))


def _inside(paths: Iterable[str], home: str) -> Iterator[str]:
    """The paths that exist and do not show all of the home."""
    for path in paths:
        if os.path.isabs(path):
            path = os.path.normpath(path)
            if os.path.exists(path) and not is_below(home, os.path.realpath(path)):
                yield path
