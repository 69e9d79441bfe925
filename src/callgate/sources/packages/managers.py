"""How npm, uv and pip put packages into a directory, and what they put there.

    steps(command, directory, locked)    the commands that install; `locked`: the versions as before
    prepare(command, directory, locks)   the files that these find
    locks(command, directory)            the files with which the same versions are installed again
    versions, program_of                 what was installed, and what is run of it

What lies in the directory was written by programs of others, in a sandbox. It is read here without
following links, and little of it is believed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from callgate.core.errors import ToolError
from callgate.sources.packages.package_commands import PackageCommand

_T = TypeVar("_T", bound=msgspec.Struct)
_LARGEST = 32 * 1024 * 1024
_QUIET = ("--no-audit", "--no-fund", "--loglevel=warn", "--no-progress", "--package-lock")
_NPM_LOCKS = ("package.json", "package-lock.json")
_CONSTRAINTS = "constraints.txt"
_ENVIRONMENT = "env"
_INSTALLED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)\.dist-info\Z")
_PLAIN = re.compile(r"[A-Za-z0-9@._+-]+\Z")
_BUNDLED = frozenset({"pip", "setuptools", "wheel"})
"""What an environment brings itself."""


class _Manifest(msgspec.Struct):
    """package.json, as far as it matters here."""

    bin: str | dict[str, str] = {}
    dependencies: dict[str, str] = {}


class _Locked(msgspec.Struct):
    version: str = ""


class _Lock(msgspec.Struct):
    """package-lock.json."""

    packages: dict[str, _Locked] = {}


def steps(command: PackageCommand, directory: str, *, locked: bool) -> tuple[tuple[str, ...], ...]:
    if command.manager == "npm":
        return (_npm(command, directory, locked=locked),)
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


def _npm(command: PackageCommand, directory: str, *, locked: bool) -> tuple[str, ...]:
    options = ("--prefix", directory, "--global=false", *_QUIET, *command.options)
    if locked:
        return (command.program, "ci", *options)
    return (command.program, "install", *options, "--", *command.packages)


def prepare(command: PackageCommand, directory: str, locks: Mapping[str, str]) -> None:
    wanted = _NPM_LOCKS if command.manager == "npm" else (_CONSTRAINTS,)
    texts = {"package.json": '{"private": true}\n'} if command.manager == "npm" else {}
    texts |= {name: locks[name] for name in wanted if name in locks}
    for name, text in texts.items():
        with open(os.path.join(directory, name), "x", encoding="utf-8") as file:
            file.write(text)


def locks(command: PackageCommand, directory: str) -> dict[str, str]:
    if command.manager != "npm":
        found = versions(command, directory)
        return {_CONSTRAINTS: "".join(f"{name}=={found[name]}\n" for name in sorted(found))}
    return {name: _text(os.path.join(directory, name)) for name in _NPM_LOCKS}


def versions(command: PackageCommand, directory: str) -> dict[str, str]:
    """By package."""
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
    """The path of what is to be run. Raises a `ToolError`."""
    bin_directory = program_directory(command, directory)
    executable = command.executable or _default_program(directory)
    path = os.path.join(bin_directory, executable)
    if "/" in executable or not os.path.lexists(path):
        programs = sorted(name for name in _names(bin_directory) if _PLAIN.match(name))[:20]
        packages = ", ".join(command.packages)
        raise ToolError(
            f"{packages} brings no program {executable!r}; it brings: {', '.join(programs) or '-'}"
        )
    return path


def _default_program(directory: str) -> str:
    """As npx chooses it: the only one that a package brings, or the one that is called like it."""
    wanted = _decoded(os.path.join(directory, "package.json"), _Manifest).dependencies
    name = next(iter(wanted), "")
    if not name or not all(map(_PLAIN.match, name.split("/"))) or ".." in name.split("/"):
        raise ToolError("What was fetched is no package that can be run.")
    basename = name.rpartition("/")[2]
    path = os.path.join(directory, "node_modules", *name.split("/"), "package.json")
    programs = _decoded(path, _Manifest).bin
    if isinstance(programs, str) or basename in programs:
        return basename
    if len(programs) != 1:
        listed = ", ".join(filter(_PLAIN.match, programs)) or "none"
        raise ToolError(f"Which program of {name}? Name one with --package ({listed}).")
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
    """Of a plain file: a link would have us read what its writer could not."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolError(f"{os.path.basename(path)} is no file.")
            return file.read(_LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"{os.path.basename(path)} cannot be read: {error}") from None
