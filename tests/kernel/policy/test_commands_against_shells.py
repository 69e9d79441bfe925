"""Compares the reading of command lines with what bash and dash really make of them.

Only texts that the reader claims to understand completely are given to a shell, in a
directory of its own, without a PATH, and with functions for commands that record their
words. So a wrong claim is seen as a difference and does no harm.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callgate.policy.commands import ParsedCommand, judge, parse_pattern, read_command

BASH = shutil.which("bash")
DASH = shutil.which("dash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is not installed")
needs_dash = pytest.mark.skipif(DASH is None, reason="dash is not installed")

NAMES = ("a", "b", "ab", "c0")
FILES = ("a", "b", "ab", "a0", "-a", "a b", "{a,b}", "]", "HEAD~1")
"""Lie in the directory, so that a pattern that was overlooked finds something."""

PREAMBLE = """
unset OLDPWD
a=value; b='two words'; ab=; HOME=/home/nobody; LANG=C.UTF-8
record() { printf '%s\\0' "$#" "$@" >&9; return "$status"; }
a() { record a "$@"; }
b() { record b "$@"; }
ab() { record ab "$@"; }
c0() { record c0 "$@"; }
"""
BASH_PREAMBLE = (
    PREAMBLE
    + """
record() { printf '%s\\0' "$#" "${@//$'\\n'/$'\\1'}" >&9; return "$status"; }  # in one write
command_not_found_handle() { record "$@"; }
"""
)


def run_shell(shell: str, script: str, directory: Path) -> list[str]:
    """The records that a script leaves on descriptor 9. It must not complain."""
    for name in FILES:
        (directory / name).touch()
    records = directory.parent / "records"
    done = subprocess.run(
        [shell, "-s"],
        input=f"exec 9>{quoted(str(records))}\n{script}".encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=directory,
        env={"PATH": "/nonexistent", "LC_ALL": "C.UTF-8"},
        timeout=600,
        check=False,
    )
    assert done.stderr == b"", done.stderr[-2000:]
    return records.read_bytes().decode().replace("\1", "\n").split("\0")[:-1]


def grouped(records: list[str]) -> list[list[tuple[str, ...]]]:
    """The recorded commands of each text."""
    groups: list[list[tuple[str, ...]]] = [[]]
    at = 0
    while at < len(records):
        if records[at] == "END":
            groups.append([])
            at += 1
            continue
        count = int(records[at])
        groups[-1].append(tuple(records[at + 1 : at + 1 + count]))
        at += 1 + count
    return groups[:-1]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def words_in(shell: str, texts: list[str], directory: Path) -> list[tuple[str, ...]]:
    """The words of each text, as the shell splits them."""
    script = PREAMBLE + "status=0\n"
    script += "\n".join(f"eval {quoted('set -- ' + text)}; record \"$@\"; printf 'END\\0' >&9" for text in texts)
    return [group[0] for group in grouped(run_shell(shell, script + "\n", directory))]


def commands_in(shell: str, texts: list[str], directory: Path, status: int) -> list[list[tuple[str, ...]]]:
    """The commands each text runs if every one of them ends with this status."""
    preamble = BASH_PREAMBLE if shell == BASH else PREAMBLE
    script = preamble + f"status={status}\n"
    script += "\n".join(f"eval {quoted(' ' + text)}; printf 'END\\0' >&9" for text in texts)
    return grouped(run_shell(shell, script + "\n", directory))


def expected_commands(parsed: ParsedCommand, status: int) -> list[tuple[str, ...]]:
    """What a shell runs of a list if every command ends with this status."""
    ran: list[tuple[str, ...]] = []
    last, skipping = 0, False
    for segment in parsed.segments:
        joined_by = segment.joined_by
        if joined_by == "&&":
            skipping = last != 0
        elif joined_by == "||":
            skipping = last == 0
        elif joined_by != "|":
            skipping = False
        if not skipping:
            ran += [segment.argv] if segment.argv else []
            last = status if segment.argv else 0
    return ran


# --- texts ---------------------------------------------------------------------------

SPECIAL = "abc012 \t\n'\"\\$`;&|<>(){}[]*?~=:,.#!%^-+@é\u00a0\u2028\r\0"
FRAGMENTS = (
    "a",
    "b",
    "ab",
    "c0",
    "0",
    "1",
    "2",
    "10",
    "-a",
    "--",
    "-",
    "--a=b",
    "a=b",
    "a+=b",
    ".",
    "..",
    " ",
    " ",
    " ",
    " ",
    "\t",
    "\n",
    "\n",
    ";",
    ";",
    "&&",
    "||",
    "|",
    "&",
    "|&",
    ";;",
    "&>",
    ">",
    ">>",
    ">|",
    "<",
    "<>",
    ">&",
    "<&",
    "<<",
    "<<<",
    "2>&1",
    ">&2",
    "2>",
    "> a",
    ">/dev/null",
    "2>/dev/null",
    "</dev/null",
    "'",
    '"',
    "''",
    '""',
    "'a b'",
    '"a b"',
    "'a;b'",
    '"a|b"',
    "'$a'",
    '"a$"',
    '"$a"',
    '"\\$a"',
    '"\\\\"',
    '"\\n"',
    '"`"',
    '"\\`"',
    "\\ ",
    "\\\n",
    "\\\\",
    "\\'",
    '\\"',
    "\\;",
    "\\$a",
    "\\*",
    "\\~",
    "\\#",
    "$",
    "$a",
    "${a}",
    "$(a)",
    "$((1))",
    "`a`",
    "$'a'",
    '$"a"',
    "{",
    "}",
    "{}",
    "{a,b}",
    "{1..3}",
    "{a}",
    "@{0}",
    "*",
    "?",
    "[",
    "]",
    "[a]",
    "[ ",
    " ]",
    "~",
    "~a",
    "HEAD~1",
    "a=~",
    "a:~",
    ":",
    "#",
    "# a",
    "\n# it's\n",
    "!",
    "! ",
    "!a",
    "^",
    "%",
    "%1",
    "if",
    "then",
    "time ",
    "{ ",
    " }",
    "(",
    ")",
    "((",
    "))",
    "in",
    "é",
    "日本",
    "😀",
    "\u00a0",
    "\u2028",
    "\r",
    "\x01",
    "\x7f",
    "+",
    "@",
    ",",
    "=",
    "/dev/null",
)
SEEDS = (
    "a",
    "a b",
    "a -a --b=c 'd e' \"f g\"",
    "a && b",
    "a || b",
    "a | b",
    "a; b",
    "a\nb",
    "a;b\n",
    "a 2>&1",
    "a >/dev/null 2>&1",
    "a > b",
    "a >> b c",
    ">b a",
    "a # b",
    "# b\na",
    "a \\; b",
    "a '\n' b",
    "a | b | ab && c0 || a; b",
    "a &&\n b |\n\n ab",
    "a \"b\\\"c\\\\\" 'd'\\''e'",
    "a {} @{0} HEAD~1 a=b --x=y,z",
    "[ -a b ] && a",
    "a -- -b",
    "a 'b\nc' \"d\ne\"",
    'a "b$" "$ c" d$',
    "a\t\tb ",
    " a ",
    "a \"it's\" '\"'",
    "a b#c #d",
)


def make_word(rng: random.Random) -> str:
    def piece() -> str:
        kind = rng.random()
        if kind < 0.6:
            return "".join(rng.choice("abc012-=:,.@%+^!#]}é") for _ in range(rng.randint(1, 4)))
        inside = "".join(rng.choice(SPECIAL[:-4]) for _ in range(rng.randint(0, 5)))
        if kind < 0.75:
            return "'" + inside.replace("'", "") + "'"
        if kind < 0.9:
            return '"' + re.sub(r'(["$`\\])', r"\\\1", inside) + '"'
        return "\\" + rng.choice(SPECIAL[:-4].replace("\n", ""))

    return "".join(piece() for _ in range(rng.choice((1, 1, 1, 2, 3))))


def make_text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        text = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, 8)))
    elif kind < 0.4:
        text = rng.choice(SEEDS)
    else:
        text = ""
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            words = [rng.choice(NAMES), *(make_word(rng) for _ in range(rng.randint(0, 3)))]
            if rng.random() < 0.2:
                redirect = rng.choice((">/dev/null", "2>&1", ">&2", "> b", ">>ab", "</dev/null"))
                words.insert(rng.randint(0, len(words)), redirect)
            text += rng.choice((" ", " ", "  ", "\t")).join(words)
            text += rng.choice((";", " ; ", "&&", " || ", " | ", "|", "\n", " # x\n", " &&\n"))
        if rng.random() < 0.8:
            text = text.rstrip(";&| \n")
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        at = rng.randint(0, len(text))
        cut = rng.choice((0, 0, 1))
        text = text[:at] + rng.choice((*SPECIAL, "", "")) + text[at + cut :]
    return text


def understood(texts: Iterable[str]) -> Iterator[tuple[str, ParsedCommand]]:
    """Those that the reader claims to understand, and that no shell can do harm with."""
    for text in texts:
        parsed = read_command(text)
        if parsed.understood and "/" not in text.replace("/dev/null", ""):
            yield text, parsed


def with_plain_words(texts: Iterable[str]) -> Iterator[tuple[str, ParsedCommand]]:
    for text, parsed in understood(texts):
        if len(parsed.segments) == 1 and not parsed.segments[0].redirects:
            if text.lstrip(" \t")[:1] not in "\n#":  # `set --` stands before it
                yield text, parsed


BUILTINS = frozenset({":", ".", "[", ""})


def runnable(texts: Iterable[str], names: tuple[str, ...] | None = None) -> Iterator[tuple[str, ParsedCommand]]:
    """Those whose commands a shell records, and whose redirections cannot fail."""
    for text, parsed in understood(texts):
        ok = True
        for segment in parsed.segments:
            program = segment.argv[0] if segment.argv else NAMES[0]
            ok &= program in names if names else program not in BUILTINS and "/" not in program
            for redirect in segment.redirects:
                ok &= redirect.descriptor in ("", "1", "2")
                if redirect.operator == ">&":
                    ok &= redirect.target in ("1", "2")
                elif redirect.operator == "<":
                    ok &= redirect.target == "/dev/null"
                else:
                    ok &= redirect.operator in (">", ">>", ">|")
                    ok &= re.fullmatch(r"[a-c0-9]+|/dev/null", redirect.target or "") is not None
        if ok:
            yield text, parsed


def check_words(shell: str, texts: Iterable[str], directory: Path) -> int:
    chosen = list(with_plain_words(texts))
    found = words_in(shell, [text for text, _ in chosen], directory)
    assert len(found) == len(chosen)
    for (text, parsed), words in zip(chosen, found, strict=True):
        assert (text, parsed.segments[0].argv) == (text, words)
    return len(chosen)


def check_commands(shell: str, texts: Iterable[str], directory: Path, status: int) -> int:
    chosen = list(runnable(texts, None if shell == BASH else NAMES))
    found = commands_in(shell, [text for text, _ in chosen], directory, status)
    assert len(found) == len(chosen)
    for (text, parsed), commands in zip(chosen, found, strict=True):
        # the members of a pipeline run side by side
        assert (text, sorted(expected_commands(parsed, status))) == (text, sorted(commands))
    return len(chosen)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "cwd"
    made.mkdir()
    return made


def texts_from(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [*SEEDS, *(make_text(rng) for _ in range(count))]


# --- tests ---------------------------------------------------------------------------

SHELLS = [
    pytest.param(BASH, marks=needs_bash, id="bash"),
    pytest.param(DASH, marks=needs_dash, id="dash"),
]


@pytest.mark.spec("T11", "T12", "T24")
@pytest.mark.parametrize("shell", SHELLS)
def test_the_words_of_an_understood_command_are_the_shells_words(shell: str, directory: Path) -> None:
    assert check_words(shell, texts_from(1, 3_000), directory) > 500


@pytest.mark.spec("T11", "T12")
@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("shell", SHELLS)
def test_the_commands_of_an_understood_line_are_the_ones_the_shell_runs(
    shell: str, status: int, directory: Path
) -> None:
    assert check_commands(shell, texts_from(2 + status, 1_200), directory, status) > 250


@needs_bash
@pytest.mark.spec("T11", "T12")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), max_size=60))
def test_arbitrary_pieces_of_shell_syntax_are_read_as_bash_reads_them_or_doubted(
    texts: list[str], directory: Path
) -> None:
    assert BASH is not None
    check_commands(BASH, texts, directory, 0)


@needs_bash
@pytest.mark.spec("T11", "T12")
def test_bash_accepts_the_syntax_of_every_understood_line(directory: Path) -> None:
    assert BASH is not None
    for text, _ in list(understood(texts_from(5, 300)))[:60]:
        done = subprocess.run([BASH, "-n", "-c", "--", text], capture_output=True, check=False)
        assert (text, done.returncode, done.stderr) == (text, 0, b"")


ALLOWED = ("a", "a -a 'b c' | b x", "b x && a; a", "a 2>&1 >/dev/null")


@needs_bash
@pytest.mark.spec("T11", "T12", "T14")
def test_whatever_is_allowed_runs_only_allowed_commands_and_makes_no_file(
    directory: Path,
) -> None:
    assert BASH is not None
    rules = [(parse_pattern("a *"), "allow"), (parse_pattern("b x"), "allow")]
    rng = random.Random(6)
    allowed = [
        text
        for text in (mutated(rng, rng.choice(ALLOWED)) for _ in range(4_000))
        if judge(read_command(text), rules).outcome == "allow"
    ]
    found = commands_in(BASH, allowed, directory, 0)
    assert len(found) == len(allowed) > 200
    for text, commands in zip(allowed, found, strict=True):
        strange = [argv for argv in commands if argv[0] != "a" and argv != ("b", "x")]
        assert (text, strange) == (text, [])
    assert sorted(os.listdir(directory)) == sorted(FILES)


def mutated(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        at = rng.randint(0, len(text))
        cut = rng.choice((0, 0, 1))
        text = text[:at] + rng.choice((*SPECIAL, *FRAGMENTS)) + text[at + cut :]
    return text


@pytest.mark.soak
@pytest.mark.spec("T11", "T12")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shell", SHELLS)
def test_eighty_thousand_lines_are_read_as_the_shell_reads_them(shell: str, seed: int, directory: Path) -> None:
    texts = texts_from(1_000 + seed, 20_000)
    check_words(shell, texts, directory)
    check_commands(shell, texts, directory, seed % 2)
