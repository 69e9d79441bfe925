"""Packages of MCP servers: the command lines that fetch them, and their installation.

Installation of packages into a directory by npm, uv and pip.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from callgate.core.errors import ToolError

Manager = Literal["npm", "uv", "pip"]
RUNNERS = frozenset(
    {
        "npx",
        "npm",
        "pnpm",
        "pnpx",
        "yarn",
        "yarnpkg",
        "bunx",
        "bun",
        "uvx",
        "uv",
        "pipx",
        "deno",
    }
)
_PINNED = re.compile(r"([A-Za-z0-9._-]+(?:\[[^\]]*\])?)@([A-Za-z0-9.+!*-]+)\Z")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LOCAL = (".", "/", "~", "-", "file:", "link:", "workspace:")
"""Prefixes of package arguments that do not name a package of a registry."""
_ARCHIVE = re.compile(r".*\.(?:tgz|tar\.gz|tar|whl|zip)\Z")


class PackageCommand(msgspec.Struct, frozen=True, kw_only=True):
    manager: Manager
    program: str
    """The program that fetches: npm, uv, or Python."""
    packages: tuple[str, ...]
    executable: str | None = None
    """The program to run; None: the package's default program."""
    options: tuple[str, ...] = ()
    """Options of the package manager, such as another registry."""
    python: str | None = None
    arguments: tuple[str, ...] = ()
    """Arguments of the program."""

    @property
    def key(self) -> str:
        """Key of the installation, independent of the program's arguments."""
        return msgspec.json.encode(
            [
                self.manager,
                self.packages,
                self.options,
                self.python,
            ]
        ).decode()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class _Options(NamedTuple):
    ignored: frozenset[str]
    """Options without a value that are not passed on."""
    packages: frozenset[str]
    """Options whose value is a package."""
    main: frozenset[str] = frozenset()
    """Options whose value is the package that contains the program."""
    python: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    """Options with a value that are passed on."""
    plain: frozenset[str] = frozenset()
    """Options without a value that are passed on."""
    dropped: frozenset[str] = frozenset()
    """Options with a value that are not passed on."""


class _Reading(NamedTuple):
    packages: list[str]
    main: str | None
    python: str | None
    options: list[str]
    remaining: list[str]
    ended: bool
    """Whether `--` ended the options: all further words belong to the program."""


_NPM = _Options(
    ignored=_words("-y --yes -q --quiet -s --silent --ignore-existing --no-update-notifier"),
    packages=_words("-p --package"),
    valued=_words("--registry"),
    plain=_words("--ignore-scripts --prefer-offline --prefer-online --offline"),
    dropped=_words("--loglevel --cache"),
)
_UV = _Options(
    ignored=_words("""-q --quiet -v --verbose --isolated --refresh -U --upgrade -n --no-cache
        --no-progress --managed-python"""),
    packages=_words("--with"),
    main=_words("--from"),
    python=_words("-p --python"),
    valued=_words("""--index --default-index -i --index-url --extra-index-url -f --find-links
        --index-strategy --keyring-provider --prerelease --resolution --exclude-newer
        --allow-insecure-host"""),
    plain=_words("--no-index --no-build --native-tls --offline --system-certs"),
    dropped=_words("--cache-dir --color"),
)
_PIPX = _Options(
    ignored=_words("-q --quiet -v --verbose --no-cache"),
    packages=_words("--with"),
    main=_words("--spec"),
    python=_words("--python"),
    valued=_words("-i --index-url --extra-index-url -f --find-links"),
    plain=_words("--no-index --pre"),
)


def runs_package(argv: Sequence[str], package: str) -> bool:
    """Return whether a command names a package, its program, or a file in it."""
    inside, versions = f"/node_modules/{package}/", (f"{package}@", f"{package}==")
    return any(
        word == package
        or word.startswith(versions)
        or inside in word
        or os.path.basename(word) == package
        for word in argv
    )


def is_runner(argv: Sequence[str]) -> bool:
    """Return whether the program can fetch packages and run them."""
    return os.path.basename(argv[0]) in RUNNERS


def parse(argv: Sequence[str]) -> PackageCommand | None:
    """Return the parsed command; None for other commands and unsupported options."""
    program, *words = argv
    name = os.path.basename(program)
    if name == "npx":
        return _npm(_beside(program, "npm"), words)
    if name == "npm" and words[:1] in (["exec"], ["x"]):
        return _npm(program, words[1:], ends_at_dashes=True)
    if name == "uvx":
        return _python("uv", _beside(program, "uv"), words, _UV)
    if name == "uv" and words[:2] == ["tool", "run"]:
        return _python("uv", program, words[2:], _UV)
    if name == "pipx" and words[:1] == ["run"]:
        return _python("pip", "", _with_pip_options(words[1:]), _PIPX)
    return None


def _npm(
    program: str, words: Sequence[str], *, ends_at_dashes: bool = False
) -> PackageCommand | None:
    reading = _read(words, _NPM)
    if reading is None or not reading.remaining:
        return None
    first, *arguments = reading.remaining
    if ends_at_dashes and not reading.ended:  # options before `--` are npm's
        before, dashes, after = _split(arguments)
        if any(word.startswith("-") for word in before):
            return None
        arguments = [*before, *after] if dashes else before
    packages = reading.packages or [first]
    if any(map(_is_local, packages)):
        return None
    return PackageCommand(
        manager="npm",
        program=program,
        packages=tuple(packages),
        executable=first if reading.packages else None,
        options=tuple(reading.options),
        arguments=tuple(arguments),
    )


def _python(
    manager: Manager, program: str, words: Sequence[str], options: _Options
) -> PackageCommand | None:
    reading = _read(words, options)
    if reading is None or not reading.remaining:
        return None
    first, *arguments = reading.remaining
    named = _NAME.match(first)
    packages = [_requirement(reading.main or first), *map(_requirement, reading.packages)]
    if named is None or any(map(_is_local, packages)):
        return None
    python = reading.python
    if manager == "pip":
        program = "python3" if python is None else python
        program = f"python{program}" if program[:1].isdigit() else program
        python = program
    return PackageCommand(
        manager=manager,
        program=program,
        packages=tuple(packages),
        executable=named[0],
        options=tuple(reading.options),
        python=python,
        arguments=tuple(arguments),
    )


def _read(words: Sequence[str], known: _Options) -> _Reading | None:
    reading = _Reading([], None, None, [], [], ended=False)
    waiting = list(words)
    while waiting and waiting[0].startswith("-"):
        word = waiting.pop(0)
        if word == "--":
            return reading._replace(remaining=waiting, ended=True)
        name, equals, value = word.partition("=")
        if not equals and name in known.ignored:
            continue
        if not equals and name in known.plain:
            reading.options.append(name)
            continue
        if not equals:
            if not waiting:
                return None
            value = waiting.pop(0)
        if name in known.packages:
            reading.packages.append(value)
        elif name in known.main:
            reading = reading._replace(main=value)
        elif name in known.python:
            reading = reading._replace(python=value)
        elif name in known.valued:
            reading.options.extend((name, value))
        elif name not in known.dropped:
            return None
    return reading._replace(remaining=waiting)


def _split(words: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return list(words), False, []
    at = words.index("--")
    return list(words[:at]), True, list(words[at + 1 :])


def _with_pip_options(words: Sequence[str]) -> list[str]:
    """Return the words with the contents of `--pip-args` as separate options."""
    result: list[str] = []
    waiting = list(words)
    while waiting and waiting[0].startswith("-") and waiting[0] != "--":
        word = waiting.pop(0)
        if word == "--pip-args" and waiting:
            result += shlex.split(waiting.pop(0))
        elif word.startswith("--pip-args="):
            result += shlex.split(word.partition("=")[2])
        elif "=" not in word and word not in _PIPX.ignored | _PIPX.plain and waiting:
            result += [word, waiting.pop(0)]
        else:
            result.append(word)
    return [*result, *waiting]


def _requirement(package: str) -> str:
    """Convert `name@1.2`, the notation of uvx and pipx, to `name==1.2`, the notation of pip."""
    found = _PINNED.match(package)
    if found is None:
        return package
    return found[1] if found[2] == "latest" else f"{found[1]}=={found[2]}"


def _is_local(package: str) -> bool:
    archive = _ARCHIVE.match(package) is not None and "://" not in package
    return not package or package.startswith(_LOCAL) or archive or "file:" in package


def _beside(program: str, other: str) -> str:
    return os.path.join(os.path.dirname(program), other)


_T = TypeVar("_T", bound=msgspec.Struct)
_LARGEST = 32 * 1024 * 1024
_HERE = ("--global=false", "--location=project", "--workspaces=false")
_QUIET = ("--no-audit", "--no-fund", "--loglevel=http", "--no-progress", "--package-lock")
_FIRST_FILES = {"npm": {"package.json": '{"private": true}\n'}, "uv": {"uv.toml": ""}}
"""Without its own `uv.toml`, uv would use the project settings of a parent directory."""
_NO_SCRIPTS = "--ignore-scripts"
_PUBLISHED = re.compile(r"(?:@[^/:@]+/)?[^/:@]+(?:@[^/:]*)?\Z")
"""A package of a registry."""
_NPM_LOCKS = ("package.json", "package-lock.json")
_CONSTRAINTS = "constraints.txt"
_ENVIRONMENT = "env"
_INSTALLED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)\.dist-info\Z")
_PLAIN = re.compile(r"[A-Za-z0-9@._+-]+\Z")
_BUNDLED = frozenset({"pip", "setuptools", "wheel"})
"""Packages that every virtual environment contains."""


class _Manifest(msgspec.Struct):
    """The used keys of package.json."""

    bin: str | dict[str, str] = {}
    dependencies: dict[str, str] = {}


class _Locked(msgspec.Struct, rename="camel"):
    version: str = ""
    has_install_script: bool = False


class _Lock(msgspec.Struct):
    """The used keys of package-lock.json."""

    packages: dict[str, _Locked] = {}


def steps(command: PackageCommand, directory: str, *, locked: bool) -> tuple[tuple[str, ...], ...]:
    if command.manager == "npm":
        return (_install_npm(command, locked=locked),)
    python = os.path.join(directory, _ENVIRONMENT, "bin", "python")
    constraints = ("--constraint", os.path.join(directory, _CONSTRAINTS)) if locked else ()
    wanted = (*command.options, *constraints, "--", *command.packages)
    environment = os.path.join(directory, _ENVIRONMENT)
    if command.manager == "uv":
        chosen = () if command.python is None else ("--python", command.python)
        install = (command.program, "pip", "install", "--compile-bytecode", "--python", python)
        return (command.program, "venv", *chosen, environment), (*install, *wanted)
    return (
        (command.program, "-m", "venv", environment),
        (python, "-m", "pip", "install", "--no-input", "--progress-bar=off", *wanted),
    )


def _install_npm(command: PackageCommand, *, locked: bool) -> tuple[str, ...]:
    # npm would look for the machine's npmrc below --prefix. Instead, npm runs in the directory,
    # whose package.json makes it the project root.
    options = (*_HERE, *_QUIET, *command.options)
    if _separates_scripts(command):
        options = (*options, _NO_SCRIPTS)
    if locked:
        return (command.program, "ci", *options)
    return (command.program, "install", *options, "--", *command.packages)


def script_step(command: PackageCommand, directory: str) -> tuple[str, ...] | None:
    """Return the command that reinstalls from npm's cache and runs the packages' install scripts.

    It needs no registry login. None if there are no scripts to run. Raises `ToolError`.
    """
    if not _separates_scripts(command) or _NO_SCRIPTS in command.options:
        return None
    lock = _decoded(os.path.join(directory, "package-lock.json"), _Lock)
    if not any(each.has_install_script for each in lock.packages.values()):
        return None
    return (command.program, "ci", *_HERE, *_QUIET, *command.options, "--prefer-offline")


def _separates_scripts(command: PackageCommand) -> bool:
    """Return whether the fetch can run without scripts.

    Packages from a source repository need their scripts during the fetch.
    """
    return command.manager == "npm" and all(map(_PUBLISHED.match, command.packages))


def prepare(command: PackageCommand, directory: str, locks: Mapping[str, str]) -> None:
    wanted = _NPM_LOCKS if command.manager == "npm" else (_CONSTRAINTS,)
    texts = _FIRST_FILES.get(command.manager, {})
    texts = texts | {name: locks[name] for name in wanted if name in locks}
    for name, text in texts.items():
        with open(os.path.join(directory, name), "x", encoding="utf-8") as file:
            file.write(text)


def locks(command: PackageCommand, directory: str) -> dict[str, str]:
    if command.manager != "npm":
        found = versions(command, directory)
        return {_CONSTRAINTS: "".join(f"{name}=={found[name]}\n" for name in sorted(found))}
    return {name: _text(os.path.join(directory, name)) for name in _NPM_LOCKS}


def versions(command: PackageCommand, directory: str) -> dict[str, str]:
    """Return the installed version of each package."""
    if command.manager == "npm":
        return _npm_versions(directory)
    library = os.path.join(directory, _ENVIRONMENT, "lib")
    libraries = [os.path.join(library, name, "site-packages") for name in _names(library)]
    names = [name for library_path in libraries for name in _names(library_path)]
    found = [match for name in names if (match := _INSTALLED.match(name)) is not None]
    named = {re.sub("[-_.]+", "-", match[1]).lower(): match[2] for match in found}
    return {name: version for name, version in named.items() if name not in _BUNDLED}


def _npm_versions(directory: str) -> dict[str, str]:
    lock = _decoded(os.path.join(directory, "package-lock.json"), _Lock)
    found = {path.rpartition("node_modules/")[2]: each for path, each in lock.packages.items()}
    return {
        name: each.version
        for name, each in found.items()
        if name and _PLAIN.match(name.replace("/", "-")) and _PLAIN.match(each.version)
    }


def program_directory(command: PackageCommand, directory: str) -> str:
    inside = ("node_modules", ".bin") if command.manager == "npm" else (_ENVIRONMENT, "bin")
    return os.path.join(directory, *inside)


def program_of(command: PackageCommand, directory: str) -> str:
    """Return the path of the program to run. Raises `ToolError` if the packages lack it."""
    bin_directory = program_directory(command, directory)
    executable = command.executable or _default_program(directory)
    path = os.path.join(bin_directory, executable)
    if "/" in executable or not os.path.lexists(path):
        programs = sorted(name for name in _names(bin_directory) if _PLAIN.match(name))[:20]
        packages = ", ".join(command.packages)
        raise ToolError(
            f"{packages} contains no program {executable!r}, only: {', '.join(programs) or '-'}"
        )
    return path


def _default_program(directory: str) -> str:
    """Return npx's choice: the program named like the package, else its only program."""
    wanted = _decoded(os.path.join(directory, "package.json"), _Manifest).dependencies
    name = next(iter(wanted), "")
    if not name or not all(map(_PLAIN.match, name.split("/"))) or ".." in name.split("/"):
        raise ToolError("The fetched package has no program.")
    basename = name.rpartition("/")[2]
    path = os.path.join(directory, "node_modules", *name.split("/"), "package.json")
    programs = _decoded(path, _Manifest).bin
    if isinstance(programs, str) or basename in programs:
        return basename
    if len(programs) != 1:
        listed = ", ".join(filter(_PLAIN.match, programs)) or "none"
        raise ToolError(f"{name} has no default program. Choose one with --package ({listed}).")
    return next(iter(programs))


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _decoded(path: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(_text(path), type=kind)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{os.path.basename(path)} cannot be read: {error}") from None


def _text(path: str) -> str:
    """Return the text of a regular file. Links are refused: they could point to private files."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolError(f"{os.path.basename(path)} is not a regular file.")
            return file.read(_LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"{os.path.basename(path)} cannot be read: {error}") from None
