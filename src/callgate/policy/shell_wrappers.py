"""Finds the commands that a command runs for someone else: behind sudo, in `sh -c`, in find.

Only rules that restrict look here. A wrapper is never looked through to allow something:
what `sudo ls` does is not what `ls` does. The table need not be complete to be useful, and
cannot be: an option it does not know is taken both as a flag and as one with a value.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from callgate.policy.shell_patterns import program_name
from callgate.policy.shell_reader import read_command
from callgate.policy.shell_reading import TooMuch
from callgate.policy.shell_values import Segment


class _Wrapper(msgspec.Struct, frozen=True):
    """How the words of a wrapper lead to the command it runs."""

    flags: str = ""
    """Its options without a value, as letters."""
    values: str = ""
    """Its options with a value, as letters."""
    operands: int = 0
    """Words between the options and the command, such as timeout's duration."""
    reads_text: bool = False
    """Its operands are text for a shell: `x=1; ls` is no assignment before a command."""


_WRAPPERS = {
    "sudo": _Wrapper("AbBeEHiKklnNPSsVv", "aCcDghpRrTtUu"),
    "doas": _Wrapper("Lns", "aCu"),
    "env": _Wrapper("i0v", "uCS"),
    "xargs": _Wrapper("0oprtxeil", "adEILnPsJR"),
    "parallel": _Wrapper(),
    "nice": _Wrapper("0123456789", "n"),
    "ionice": _Wrapper("t", "cnpPu"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper("cfw"),
    "stdbuf": _Wrapper("", "ioe"),
    "timeout": _Wrapper("fpv", "ks", operands=1),
    "time": _Wrapper("apvV", "of"),
    "command": _Wrapper("pvV"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "chroot": _Wrapper(operands=1),
    "flock": _Wrapper("seuxnoFv", "wE", operands=1),
    "taskset": _Wrapper("acp", operands=1),
    "chrt": _Wrapper("abdfimoprRv", "TPD", operands=1),
    "gosu": _Wrapper(operands=1),
    "su-exec": _Wrapper(operands=1),
    "pkexec": _Wrapper(),
    "runuser": _Wrapper("l", "ugG"),
    "unshare": _Wrapper("imnpuUCTfrc"),
    "nsenter": _Wrapper(),
    "systemd-run": _Wrapper("tPdGqSr", "EHMpu"),
    "strace": _Wrapper("cCdfFhiknqrtTvVwxyYzZ", "abeEIoOpPsSuUX"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "fakeroot": _Wrapper(),
    "unbuffer": _Wrapper(),
    "rlwrap": _Wrapper(),
    "caffeinate": _Wrapper("disum", "tw"),
    "tini": _Wrapper(),
    "dumb-init": _Wrapper(),
}
_JOINING = {
    "eval": _Wrapper(reads_text=True),
    "watch": _Wrapper("bcdeghprtwx", "nq", reads_text=True),
    "ssh": _Wrapper("46AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOoPpQRSWw", 1, reads_text=True),
    "trap": _Wrapper(reads_text=True),
}
"""Their words are put together and read by a shell once more."""
_TEXT_AFTER_C = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"}
    | {"su", "runuser", "script", "flock"}
)
SHELLS = _TEXT_AFTER_C - {"su", "runuser", "script", "flock"}
_SHELL_OPTIONS = _Wrapper("abefhiklmnprstuvxBCEHPTc", "oO", reads_text=True)
_ACTIONS = {
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "fd": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
}
"""Arguments after which a command stands, up to a `;` or `+`."""


def commands_within(segment: Segment) -> Iterator[tuple[str, ...]]:
    """Every argv a segment may end up running, its own first. Raises `TooMuch`."""
    search = _Search(segment)
    for argv, inputs in search.found:  # grows meanwhile
        yield argv
        program = program_name(argv[0]) if argv else ""
        for inner in _wrapped(program, argv):
            search.add(inner, inputs)
        for text in _texts(program, argv):
            search.add_text(text)
        if program in SHELLS:
            for text in inputs:
                search.add_text(text)


class _Search:
    """What was found behind one segment, in an effort that is in proportion to its length."""

    def __init__(self, segment: Segment) -> None:
        self.found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        """Each argv with the here-documents that reach it."""
        self.known: set[tuple[str, ...]] = set()
        self.read: set[str] = set()
        length = len(segment.text) + sum(map(len, segment.inputs))
        self.effort_left = 500 + 4 * length
        """In characters read and words compared; more is more than can be reviewed."""
        self.add(segment.argv, segment.inputs)
        self.add(segment.emptied, segment.inputs)

    def add(self, argv: tuple[str, ...], inputs: tuple[str, ...]) -> None:
        if not argv or argv in self.known:
            return
        self.spend(len(argv))
        self.known.add(argv)
        self.found.append((argv, inputs))

    def spend(self, effort: int) -> None:
        self.effort_left -= effort
        if self.effort_left < 0:
            raise TooMuch

    def add_text(self, text: str) -> None:
        if text in self.read:
            return
        self.read.add(text)
        self.spend(len(text))
        inner = read_command(text)
        if inner.too_long:
            raise TooMuch
        for segment in inner.segments:
            self.add(segment.argv, segment.inputs)
            self.add(segment.emptied, segment.inputs)


def _wrapped(program: str, argv: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    wrapper = _WRAPPERS.get(program)
    if wrapper is not None:
        for start in _starts(argv, wrapper):
            yield argv[start + wrapper.operands :]
    elif program in _ACTIONS:
        yield from _actions(argv, _ACTIONS[program])


def _actions(argv: tuple[str, ...], actions: frozenset[str]) -> Iterator[tuple[str, ...]]:
    start: int | None = None
    for at, word in enumerate(argv):
        if start is not None and word in (";", "+"):
            yield argv[start:at]
            start = None
        elif word in actions:
            start = at + 1
    if start is not None:
        yield argv[start:]


def texts_within(argv: tuple[str, ...]) -> Iterator[str]:
    """The words of a command that a shell will read as a command line."""
    return _texts(program_name(argv[0]) if argv else "", argv)


def _texts(program: str, argv: tuple[str, ...]) -> Iterator[str]:
    joining = _JOINING.get(program)
    if joining is not None:
        for start in _starts(argv, joining):
            yield " ".join(argv[start + joining.operands :])
            if program == "trap":
                yield argv[start]
    if program in _TEXT_AFTER_C:
        yield from _texts_after_c(program, argv)
    if program == "alias":
        for word in argv[1:]:
            yield word.partition("=")[2]
    if program == "env":
        for at, word in enumerate(argv):
            if word.startswith(("-S", "--split-string")):
                first = word.removeprefix("--split-string").removeprefix("-S").removeprefix("=")
                yield " ".join((first, *argv[at + 1 :]))


def _texts_after_c(program: str, argv: tuple[str, ...]) -> Iterator[str]:
    if program not in SHELLS:
        for at, word in enumerate(argv[:-1]):
            if word in ("-c", "--command", "--session-command"):
                yield argv[at + 1]
        return
    if any(_is_cluster(word) and "c" in word for word in argv[1:]):
        for start in _starts(argv, _SHELL_OPTIONS):
            yield argv[start]


def _is_cluster(word: str) -> bool:
    return len(word) > 1 and word[0] in "-+" and word[1] != "-"


def _starts(argv: tuple[str, ...], wrapper: _Wrapper) -> Iterator[int]:
    """Where, after the options of a wrapper, its operands may begin."""
    unseen, seen = [1], {1}
    while unseen:
        at = unseen.pop()
        if at + wrapper.operands >= len(argv):
            continue
        word = argv[at]
        if word == "--":
            yield from _start_after_options(argv, at + 1, wrapper)
            continue
        if len(word) < 2 or word[0] not in "-+":
            if wrapper.reads_text or not _is_assignment(word):
                yield at
                continue
            steps: tuple[int, ...] = (1,)
        else:
            steps = _steps(word, wrapper)
        for following in (at + step for step in steps):
            if following not in seen:
                seen.add(following)
                unseen.append(following)


def _start_after_options(argv: tuple[str, ...], at: int, wrapper: _Wrapper) -> Iterator[int]:
    while at < len(argv) and not wrapper.reads_text and _is_assignment(argv[at]):
        at += 1
    if at + wrapper.operands < len(argv):
        yield at


def _is_assignment(word: str) -> bool:
    """As env and sudo take before a command."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _steps(option: str, wrapper: _Wrapper) -> tuple[int, ...]:
    """How many words an option takes, itself included: one, two, or one cannot know."""
    if option.startswith("--"):
        return (1,) if "=" in option else (1, 2)
    for at, letter in enumerate(option[1:], 2):
        if letter in wrapper.values:
            return (1,) if at < len(option) else (2,)
        if letter not in wrapper.flags:
            return (1, 2)
    return (1,)
