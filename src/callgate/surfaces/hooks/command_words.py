"""What the words of an agent's command say: our own command, a terminal, places. Pure.

Widely: what one must not miss is not what a shell would surely do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from urllib.parse import unquote

from callgate.core.text.wildcards import compile_tokens, parse_wildcards
from callgate.policy.shell_patterns import program_name
from callgate.policy.shell_reading import TooMuch
from callgate.policy.shell_values import ParsedCommand
from callgate.policy.shell_wrappers import commands_within

OURS = "callgate"
_HARMLESS = frozenset(("--version", "-V", "--help", "-h", "help", "status", "doctor", "tools"))
"""What an agent may ask of our own command."""
_OURS = re.compile(r"(?:^|[\s;&|(`/'\"])callgate['\"]?\s+['\"]?([a-z-]+)")
_MODULE = re.compile(r"-[A-Za-z]*m(.*)")
_MESSAGES = frozenset(("git", "hg", "svn", "jj", "gh"))
"""Their `-m` is a message."""
_SETTING = frozenset(("export", "alias", "declare", "typeset", "local", "readonly"))
_RUNNERS = frozenset(
    ("uvx", "pipx", "uv", "poetry", "pdm", "hatch", "rye", "pixi", "pip-run", "conda", "mamba",
     "micromamba", "npx", "bunx", "nix", "start", "open")
)  # fmt: skip
_NO_RUN = frozenset(("pip", "add", "install", "remove", "uninstall", "upgrade", "show", "search"))
_INTERACTIVE = frozenset(
    ("bash", "sh", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "rbash", "pwsh",
     "xonsh", "nu", "elvish", "python", "pypy", "node", "irb", "ruby", "perl", "php", "lua", "psql",
     "mysql", "sqlite", "ssh", "telnet", "nc", "ncat", "socat", "gdb", "vi", "vim", "nvim", "nano",
     "emacs", "ed", "screen", "tmux", "script", "expect", "bc", "dc", "ftp", "sftp", "julia", "r",
     "ghci", "scala", "deno", "bun", "ipython")
)  # fmt: skip
"""By name without a version at its end."""
_ALWAYS_TYPED = frozenset(
    ("screen", "tmux", "script", "expect", "ssh", "telnet", "vi", "vim", "nvim", "nano", "emacs",
     "ed", "ftp", "sftp", "gdb", "nc", "ncat", "socat")
)  # fmt: skip
_GIVEN_ONE = frozenset(
    ("-c", "-e", "-m", "--version", "--help", "-V", "-h", "-lc", "-ec", "-Command", "-File")
)
_CONTAINERS = frozenset(("docker", "podman", "nerdctl", "kubectl", "oc", "lxc", "incus"))
_ATTACHED = re.compile(r"-[a-zA-Z]*[it][a-zA-Z]*|--(interactive|tty|stdin)(=true)?")
_TERMINAL = re.compile(
    r"/dev/(tty|pts/|stdin|fd/|console|vcs|ptmx)|/proc/[^/\s]+/(task/[^/\s]+/)?fd"
)
_TERMINALS = (
    "/dev/tty",
    "/dev/pts/0",
    "/dev/stdin",
    "/dev/fd/0",
    "/proc/self/fd/0",
    "/proc/1/fd/0",
)
_COPIED_INPUT = re.compile(r"<&|(?<![\w.])0>&")
_BLANKS = re.compile(r"[\s<>|;&()`'\"]+")
_PARTS = re.compile(r"[=:,@]")
_ATTACHED_PATH = re.compile(r"-[A-Za-z][/~.]")
_BRACES = re.compile(r"\{[^{}/\s]*\}")
_MOVING = frozenset(("cd", "pushd", "chdir"))
_MOVING_OPTIONS = frozenset(("-C", "--directory", "--chdir", "--cwd", "--workdir", "-D"))
_MOST_DIRECTORIES = 16
_MOST_WORDS = 65_536
"""Words of all commands that a line may run: `env env ...` holds each of its commands once more."""

NOT_FOR_AGENTS = "callgate's own commands are for people, not for agents."


class CommandLine:
    """A command line that is read once, for all questions about its words."""

    def __init__(self, parsed: ParsedCommand) -> None:
        self.parsed = parsed
        self.commands: list[Sequence[str]] = []
        """Every command that the line may end up running, in order."""
        self.is_too_long = False
        """The line has more words than are checked; `commands` is not complete."""
        self.is_partial = False
        """A command is nested too deeply; what it runs is not among `commands`."""
        words_left = _MOST_WORDS
        for segment in parsed.segments:
            try:
                for argv in commands_within(segment):
                    words_left -= len(argv)
                    if words_left < 0:
                        self.is_too_long = True
                        return
                    if argv:
                        self.commands.append(argv)
            except TooMuch:
                self.is_partial = True

    @cached_property
    def words(self) -> list[str]:
        """Everything in the line that could be a path, as the shell reads it and as it is
        written, each once."""
        segments = self.parsed.segments
        found = dict.fromkeys(chain.from_iterable(self.commands))
        found |= dict.fromkeys(each for segment in segments for each in segment.assignments)
        redirects = (each.target for segment in segments for each in segment.redirects)
        found |= dict.fromkeys(target for target in redirects if target)
        found |= dict.fromkeys(_BLANKS.split(self.parsed.text))
        pieces = dict.fromkeys(part for word in found for part in parts(word))
        return [word for word in found | pieces if word]


def parts(word: str) -> Iterator[str]:
    """The paths in `--file=PATH`, `-v PATH:PATH`, `@PATH`, `-fPATH`, `file:///a%20b`."""
    if _PARTS.search(word):
        yield from _PARTS.split(word)
        if "%" in word:
            yield from _PARTS.split(unquote(word))
    if word.startswith("-") and _ATTACHED_PATH.match(word):
        yield word[2:]


def directories(line: CommandLine, start: str) -> list[str]:
    """Where a line may be while it runs."""
    found = [start]
    for argv in line.commands:
        moves = [b for a, b in pairwise(argv) if a in _MOVING_OPTIONS]
        moves += [word.partition("=")[2] for word in argv if word.startswith("--") and "=" in word]
        if program_name(argv[0]) in _MOVING:
            moves += [word for word in argv[1:] if not word.startswith("-")] or ["~"]
        for move in moves:
            if len(found) >= _MOST_DIRECTORIES:
                return found
            move = os.path.expanduser(move.replace("${HOME}", "~").replace("$HOME", "~"))
            for each in list(found):
                place = os.path.normpath(os.path.join(each, move))
                if place not in found and len(found) < _MOST_DIRECTORIES:
                    found.append(place)
    return found


def taken_away(line: CommandLine) -> Iterator[str]:
    """What a line removes or moves."""
    for argv in line.commands:
        program = program_name(argv[0])
        operands = [word for word in argv[1:] if not word.startswith("-") and "\0" not in word]
        if program in ("rm", "rmdir", "trash", "shred"):
            yield from operands
        elif program == "mv":
            yield from operands[:-1]


def is_glob(word: str) -> bool:
    return any(letter in word for letter in "*?[") or has_braces(word)


def has_braces(word: str) -> bool:
    """Whether a shell could expand braces in a word, also to names that do not exist."""
    return _widened(word) != word


def _widened(word: str) -> str:
    """A word with a star in place of braces: `{a,b}` and `{1..3}`, but not `{}`."""
    return _BRACES.sub(lambda found: "*" if "," in found[0] or ".." in found[0] else found[0], word)


def glob_reaches(pattern: str, path: str) -> bool:
    """Whether an absolute pattern of file names could name a path or something below it."""
    wanted = os.path.normpath(_widened(pattern)).split("/")
    parts = path.split("/")
    if "**" not in wanted and len(wanted) < len(parts):
        return False
    for want, part in zip(wanted, parts, strict=False):
        if want == "**":
            return True
        if not compile_tokens(parse_wildcards(want, classes=True))(part) or (
            part.startswith(".") and want[:1] in "*?["
        ):
            return False
    return True


def own_command(line: CommandLine) -> bool:
    """Whether a line runs callgate, or could."""
    parsed = line.parsed
    if any(_names_us(each) for segment in parsed.segments for each in segment.assignments):
        return True
    for argv in line.commands:
        named = argv[1:] if program_name(argv[0]) in _SETTING else ()
        if _is_own(argv) or any(map(_names_us, named)):
            return True
    match = _OURS.search(parsed.text)
    return match is not None and match[1] not in _HARMLESS and not parsed.understood


def _names_us(assignment: str) -> bool:
    value = assignment.partition("=")[2].strip()
    return bool(value) and any(program_name(word) == OURS for word in value.split())


def _is_own(argv: Sequence[str]) -> bool:
    program = program_name(argv[0])
    if program == OURS:
        return not _is_harmless(argv[1:])
    if program not in _MESSAGES:
        for at, word in enumerate(argv[1:], 1):
            if (module := _MODULE.fullmatch(word)) is None:
                continue
            named = module[1] or next(iter(argv[at + 1 :]), "")
            after = argv[at + 1 :] if module[1] else argv[at + 2 :]
            if named.partition(".")[0] == OURS and not _is_harmless(after):
                return True
    if program.startswith(("python", "pypy")) and any(
        re.search(r"\bcallgate\b", text)
        for option, text in pairwise(argv)
        if re.fullmatch(r"-[A-Za-z]*c", option)
    ):
        return True
    if program in _RUNNERS and not _NO_RUN & set(argv[1:3]):
        at = max((at for at, word in enumerate(argv) if _is_package(word)), default=0)
        return bool(at) and not _is_harmless(argv[at + 1 :])
    return False


def _is_package(word: str) -> bool:
    return re.split(r"[@=<>~\[]", program_name(word))[0] == OURS


def _is_harmless(rest: Sequence[str]) -> bool:
    return bool(rest) and rest[0] in _HARMLESS


def typed_into(line: CommandLine) -> str | None:
    """What in a line would read what is typed later; None: nothing."""
    if _COPIED_INPUT.search(line.parsed.text):
        return "A copied input"
    for word in line.words:
        if _TERMINAL.search(word) or (
            is_glob(word) and any(glob_reaches(word, each) for each in _TERMINALS)
        ):
            return word[:80]
    for argv in line.commands:
        if _is_interactive(argv):
            return program_name(argv[0])
    return None


def _is_interactive(argv: Sequence[str]) -> bool:
    program = re.sub(r"[\d.]+$", "", program_name(argv[0])) or program_name(argv[0])
    options = argv[1:]
    if program in _CONTAINERS:
        return any(map(_ATTACHED.fullmatch, options)) and bool(
            {"run", "exec", "attach", "start", "shell"} & set(options)
        )
    if program not in _INTERACTIVE:
        return False
    if "-i" in options:
        return True
    if program in _ALWAYS_TYPED:
        return not any(each in ("--version", "--help", "-V") for each in options)
    if any(each in _GIVEN_ONE for each in options):
        return False
    return all(each.startswith("-") for each in options)
