"""Commands that may do something that their words do not say. Pure, except for `placed`.

    traversing   reads directories below those that it names
    runs_code    gives code, or a list of paths, to a program that acts on it
    placed       the paths at which a command puts files or directories of other names
    changing     may change a directory that it names

Widely: a wrong doubt costs a question, a missing one a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from callgate.policy.shell_patterns import program_name
from callgate.policy.shell_reader import read_command
from callgate.policy.shell_wrappers import SHELLS, texts_within
from callgate.surfaces.hooks.command_words import CommandLine

_STATIONARY = frozenset(
    ("cd", "pushd", "popd", "pwd", "echo", "printf", "true", "test", "[", "mkdir", "which", "type",
     "stat", "export", "set", "date", "whoami", "id", "hostname")
)  # fmt: skip
"""They read no directory below the one that they name."""
_READERS = _STATIONARY | frozenset(
    ("ls", "cat", "head", "tail", "less", "more", "wc", "grep", "egrep", "fgrep", "rg", "ag", "fd",
     "tree", "du", "file", "diff", "cmp", "sort", "md5sum", "sha256sum", "readlink", "realpath")
)  # fmt: skip
_GIT_READERS = frozenset(
    ("add", "blame", "commit", "diff", "grep", "log", "ls-files", "ls-tree", "rev-parse", "show",
     "status", "check-ignore")
)  # fmt: skip
_CODE_OPTION = re.compile(r"-[A-Za-z]*[ceEpr]|--(eval|print|exec|command|execute)(=.*)?")
_INTERPRETERS = frozenset(
    ("python", "pypy", "ipython", "node", "nodejs", "deno", "bun", "perl", "ruby", "php", "lua",
     "luajit", "julia", "r", "rscript", "osascript", "tclsh", "guile", "racket", "groovy", "scala",
     "swift", "pwsh")
)  # fmt: skip
_QUESTIONS = frozenset(("--version", "--help", "-V", "-h", "-v", "--test"))
_ALWAYS = frozenset(
    ("vi", "vim", "nvim", "view", "ex", "ed", "emacs", "emacsclient", "gdb", "lldb", "strace",
     "ltrace", "nsenter", "perf", "at", "batch", "crontab")
)  # fmt: skip
"""Their arguments are code, other processes, or work for later."""
_AWK = re.compile(r"getline|system|ENVIRON|ARGV|[|@]")
_CODE_WORDS: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    "sqlite": re.compile(
        r"(?i)readfile|writefile|load_extension|\battach\b|\bvacuum\b"
        r"|\.(?:shell|system|read|open|import|load|output|once|excel|backup|save|restore|clone|ar|cd)"
    ),
    **dict.fromkeys(
        ("psql", "mysql", "mariadb"),
        re.compile(r"(?i)[\\]|\bcopy\b|pg_read|pg_ls|lo_import|load_file|outfile|system"),
    ),
    "sed": re.compile(r"(?:^|[;{}!$\d/\n])[ \t]*e(?:\s|$)"),
    "make": re.compile(r"--eval|-"),
    "gmake": re.compile(r"--eval|-"),
    "git": re.compile(
        r"--(?:exec|exec-path|upload-pack|receive-pack|config-env|stdin-paths|pathspec-from-file)\b"
    ),
    **dict.fromkeys(
        ("tar", "bsdtar", "gtar"),
        re.compile(r"--(?:checkpoint-a|to-c|use-c|info-s|new-v|rsh-c|files-f).*|-[A-Za-z]*[TIF].*"),
    ),
    **dict.fromkeys(
        ("ssh", "scp", "sftp", "mosh"),
        re.compile(r"(?i)(?:.*[@/])?(?:localhost|127\.|0\.0|::1|\[|ip6-).*"),
    ),
    "xargs": re.compile(r"-a.*|--arg-file.*"),
    "parallel": re.compile(r"-a.*|--arg-file.*|::::"),
    "cpio": re.compile(r"-.*o.*|-.*p.*"),
    "curl": re.compile(r"-K.*|--config.*"),
    "wget": re.compile(r"--config.*|--use-askpass.*|-i.*|--input-file.*"),
}
"""By program: the words with which it runs code, or reads a list of paths."""
_WHOLE_WORDS = frozenset(
    ("make", "gmake", "tar", "bsdtar", "gtar", "ssh", "scp", "sftp", "mosh", "xargs", "parallel",
     "cpio", "curl", "wget")
)  # fmt: skip
_FILE_LISTS = re.compile(r"--?files0?-from(=.*)?|--stdin-paths")
_GIT_SETTING = re.compile(
    r"(?i)(?:user|color|advice|init|commit|log|column|push|pull|fetch|merge|rebase)\.[a-z.]+(?:=[^!]*)?"
    r"|core\.(?:quotepath|autocrlf|safecrlf|filemode|longpaths)(?:=.*)?|diff\.(?:noprefix|renames)(?:=.*)?"
)
"""Settings after `git -c` that run no program."""
_SED_EXECUTE = re.compile(r"[^\w\s][gpimMI0-9]{0,8}e[gpimMIw0-9]{0,8}$")
_MAKERS = frozenset(
    ("echo", "printf", "sed", "tr", "rev", "base64", "base32", "basenc", "xxd", "od", "cut",
     "paste", "openssl", "awk", "gawk", "mawk", "jq", "yes", "seq", "fold", "gzip", "zcat")
)  # fmt: skip
"""They make texts that appear nowhere in the line."""
_PROCESS_PATH = re.compile(r"/proc/[^/]+/(?:task/[^/]+/)?(?:cwd|root|fd|map_files)|/dev/fd/\d+/")
"""A path that means another file in the process that follows it."""
_COPYING = frozenset(("cp", "mv", "ln", "install", "rsync", "scp", "gcp", "gmv", "gln", "ginstall"))


def traversing(line: CommandLine) -> list[Sequence[str]]:
    """The commands of a line that may read directories below those that they name, or are in."""
    return [argv for argv in line.commands if not _is_stationary(argv)]


def _is_stationary(argv: Sequence[str]) -> bool:
    program = program_name(argv[0])
    if program == "ls":
        return not any(re.fullmatch(r"-[A-Za-z]*R[A-Za-z]*|--rec.*", each) for each in argv[1:])
    return program in _STATIONARY


def changing(line: CommandLine) -> list[Sequence[str]]:
    """The commands of a line that may change a directory that they name, or are in."""
    return [argv for argv in line.commands if not _is_reader(argv)]


def _is_reader(argv: Sequence[str]) -> bool:
    program = program_name(argv[0])
    if program == "git":
        return next((each for each in argv[1:] if not each.startswith("-")), "") in _GIT_READERS
    if program == "find":
        return not any(each.startswith(("-delete", "-fp", "-fls")) for each in argv[1:])
    return program in _READERS


def runs_code(line: CommandLine) -> bool:
    """Whether a line gives code or a list of paths to a program, whose words are no paths."""
    programs = {program_name(each.argv[0]) for each in line.parsed.segments if each.argv}
    if line.is_partial or (programs & {"xargs", "parallel"} and programs & _MAKERS):
        return True
    if any(map(_PROCESS_PATH.search, line.words)):
        return True
    return any(map(_gives_code, line.commands))


def _gives_code(argv: Sequence[str]) -> bool:
    name = program_name(argv[0])
    program = _unversioned(name)
    options = argv[1:]
    if any(not read_command(text).understood for text in texts_within(tuple(argv))):
        return True
    if any(map(_FILE_LISTS.fullmatch, options)):
        return True
    if program in _ALWAYS or name in _ALWAYS:
        return not any(each in _QUESTIONS for each in options)
    if (words := _CODE_WORDS.get(program)) is not None:
        test = words.fullmatch if program in _WHOLE_WORDS else words.search
        if any(map(test, options)):
            return True
    if program == "sed" and any(_SED_EXECUTE.search(each[-24:]) for each in options if "s" in each):
        return True
    if program == "git" and _sets_git(options):
        return True
    if program in SHELLS or program in _INTERPRETERS:
        return _reads_code(argv, is_shell=program in SHELLS)
    return _starts_interpreter(options)


def _unversioned(name: str) -> str:
    return re.sub(r"[\d.]+$", "", name) or name


def _reads_code(argv: Sequence[str], *, is_shell: bool) -> bool:
    """Whether an interpreter has code as an argument, or reads it from its input. The code of
    `sh -c` is among the commands of the line."""
    options = argv[1:]
    operands = [each for each in options if not each.startswith(("-", "+")) or each == "-"]
    if any(each in _QUESTIONS for each in options) and not operands:
        return False
    is_module = any(re.fullmatch(r"-[A-Za-z]*m.+", each) for each in options)
    if (not operands and not is_module) or operands[:1] in (["-"], ["eval"], ["repl"]):
        return True
    if is_shell:
        return any(re.fullmatch(r"-[A-Za-z]*s[A-Za-z]*", each) for each in options)
    return any(map(_CODE_OPTION.fullmatch, options))


def _starts_interpreter(options: Sequence[str]) -> bool:
    """Whether another program, such as `uv run`, is given an interpreter with code."""
    for at, word in enumerate(options):
        name = _unversioned(program_name(word))
        if name not in _INTERPRETERS and name not in SHELLS:
            continue
        following = options[at + 1 : at + 2]
        if following and (following[0] == "-" or _CODE_OPTION.fullmatch(following[0])):
            return True
    return list(options[:2]) == ["run", "-"]


def _sets_git(options: Sequence[str]) -> bool:
    """Whether git is given a setting that may run a program."""
    for option, value in zip(options, (*options[1:], ""), strict=False):
        if option == "-c" and not _GIT_SETTING.fullmatch(value):
            return True
        if option == "config" and any(each.startswith("!") for each in options):
            return True
    return False


def placed(line: CommandLine, directory: str) -> Iterator[str]:
    """The absolute paths at which commands put files of other names: `cp -r evil/.claude .`."""
    for argv in line.commands:
        if program_name(argv[0]) not in _COPYING:
            continue
        operands = [each for each in argv[1:] if not each.startswith("-") and "\0" not in each]
        targets = [
            each.partition("=")[2] if "=" in each else following
            for each, following in zip(argv[1:], (*argv[2:], ""), strict=False)
            if re.fullmatch(r"-[A-Za-z]*t|--target-dir.*", each)
        ]
        for target in targets or operands[-1:]:
            place = os.path.join(directory, os.path.expanduser(target))
            sources = [each for each in operands if each != target]
            whole = any(each.endswith(("/", "/.")) or each == "." for each in sources)
            if whole or not os.path.isdir(place) or "-T" in argv:
                yield place
            yield from (os.path.join(place, os.path.basename(each)) for each in sources)
