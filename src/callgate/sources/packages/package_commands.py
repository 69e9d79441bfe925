"""Command lines that fetch a package and run a program of it. Pure.

`parse` understands the usual ones. One that it does not understand is run as it is written, with
caches of its own (`environment.private_caches`): it cannot write to the user's either.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

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
"""How what is no package of a registry begins."""
_ARCHIVE = re.compile(r".*\.(?:tgz|tar\.gz|tar|whl|zip)\Z")


class PackageCommand(msgspec.Struct, frozen=True, kw_only=True):
    manager: Manager
    program: str
    """What fetches: npm, uv, or a Python."""
    packages: tuple[str, ...]
    executable: str | None = None
    """The program to run; None: the one that the package itself brings."""
    options: tuple[str, ...] = ()
    """For the package manager, such as another registry."""
    python: str | None = None
    arguments: tuple[str, ...] = ()
    """Of the program."""

    @property
    def key(self) -> str:
        """What is installed, whatever the arguments are."""
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
    """Without a value."""
    packages: frozenset[str]
    """Their values are packages."""
    main: frozenset[str] = frozenset()
    """Their value is the package that the program is from."""
    python: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    """Passed on with their values."""
    plain: frozenset[str] = frozenset()
    """Passed on."""
    dropped: frozenset[str] = frozenset()
    """Not passed on, nor are their values."""


class _Reading(NamedTuple):
    packages: list[str]
    main: str | None
    python: str | None
    options: list[str]
    rest: list[str]
    ended: bool
    """By `--`: the rest is the program's, whatever it looks like."""


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


def is_runner(argv: Sequence[str]) -> bool:
    """Whether a program may fetch what it runs."""
    return os.path.basename(argv[0]) in RUNNERS


def parse(argv: Sequence[str]) -> PackageCommand | None:
    """None where it is no such command, or is written in a way that we do not know."""
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
    if reading is None or not reading.rest:
        return None
    first, *arguments = reading.rest
    if ends_at_dashes and not reading.ended:  # what stands before them is for npm
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
    if reading is None or not reading.rest:
        return None
    first, *arguments = reading.rest
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
            return reading._replace(rest=waiting, ended=True)
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
    return reading._replace(rest=waiting)


def _split(words: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in words:
        return list(words), False, []
    at = words.index("--")
    return list(words[:at]), True, list(words[at + 1 :])


def _with_pip_options(words: Sequence[str]) -> list[str]:
    """With what stands in `--pip-args`, for pip, as options of their own."""
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
    """`name@1.2`, as uvx and pipx take it, as pip takes it."""
    found = _PINNED.match(package)
    if found is None:
        return package
    return found[1] if found[2] == "latest" else f"{found[1]}=={found[2]}"


def _is_local(package: str) -> bool:
    archive = _ARCHIVE.match(package) is not None and "://" not in package
    return not package or package.startswith(_LOCAL) or archive or "file:" in package


def _beside(program: str, other: str) -> str:
    return os.path.join(os.path.dirname(program), other)
