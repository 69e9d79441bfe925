"""Find the commands inside a command: behind sudo, in `sh -c`, in find.

Only restricting rules use this. An allowing rule never looks through a wrapper: `sudo ls` does not
have the effect of `ls`. The table cannot be complete: an option that it does not contain is tried
both as a flag and as an option with a value.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from callgate.policy.shell_patterns import Segment, TooMuch, program_name
from callgate.policy.shell_reader import read_command


class _Wrapper(msgspec.Struct, frozen=True):
    """Position of the inner command in the words of a wrapper."""

    flags: str = ""
    """Letters of its options without a value."""
    values: str = ""
    """Letters of its options with a value."""
    operands: int = 0
    """Number of words between options and command, such as the duration of timeout."""
    reads_text: bool = False
    """Its operands are text for a shell: `x=1; ls` is not an assignment before a command."""


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
"""Wrappers that join their words into text for a shell."""
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
"""Arguments that precede a command, which ends at `;` or `+`."""


def commands_within(segment: Segment) -> Iterator[tuple[str, ...]]:
    """Yield every argv that a segment may run, its own first. Raises `TooMuch`."""
    search = _Search(segment)
    for argv, inputs in search.found:  # grows during the loop
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
    """Commands found behind one segment, with an effort in proportion to its length."""

    def __init__(self, segment: Segment) -> None:
        self.found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        """Each argv with its here-documents."""
        self.known: set[tuple[str, ...]] = set()
        self.read: set[str] = set()
        length = len(segment.text) + sum(map(len, segment.inputs))
        self.effort_left = 500 + 4 * length
        """In characters parsed and words compared; a command that needs more is not reviewable."""
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
    """Yield the words of a command that a shell parses as a command line."""
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
    """Yield the possible positions of the first operand after the options of a wrapper."""
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
    """Whether a word is an assignment before a command, as for env and sudo."""
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _steps(option: str, wrapper: _Wrapper) -> tuple[int, ...]:
    """Return the number of words of an option, including itself: one, two, or both if unknown."""
    if option.startswith("--"):
        return (1,) if "=" in option else (1, 2)
    for at, letter in enumerate(option[1:], 2):
        if letter in wrapper.values:
            return (1,) if at < len(option) else (2,)
        if letter not in wrapper.flags:
            return (1, 2)
    return (1,)
