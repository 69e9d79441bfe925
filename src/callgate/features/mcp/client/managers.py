"""Installation of packages into a directory by npm, uv and pip."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from callgate.core.errors import ToolError
from callgate.features.mcp.client.package_commands import PackageCommand

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
        return (_npm(command, locked=locked),)
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


def _npm(command: PackageCommand, *, locked: bool) -> tuple[str, ...]:
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
