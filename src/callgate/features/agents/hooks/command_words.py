"""Analysis of the words in an agent's command. Pure, except for `placed`.

    own_command  runs callgate itself
    typed_into   reads input that the agent may write later
    traversing   reads directories below the named ones
    runs_code    passes code, or a list of paths, to a program that acts on it
    placed       the paths at which a command creates files or directories with other names
    changing     may change a named directory

Each function prefers false matches: a false match costs a question, a missed one a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from urllib.parse import unquote

from callgate.core.patterns import compile_tokens, parse_wildcards
from callgate.policy.shell_patterns import ParsedCommand, TooMuch, program_name
from callgate.policy.shell_reader import read_command
from callgate.policy.shell_wrappers import SHELLS, commands_within, texts_within

OURS = "callgate"
_HARMLESS = frozenset(("--version", "-V", "--help", "-h", "help", "status", "doctor", "tools"))
"""Subcommands and options of callgate that an agent may use."""
_OURS = re.compile(r"(?:^|[\s;&|(`/'\"])callgate['\"]?\s+['\"]?([a-z-]+)")
_MODULE = re.compile(r"-[A-Za-z]*m(.*)")
_MESSAGES = frozenset(("git", "hg", "svn", "jj", "gh"))
"""Programs whose `-m` is a message."""
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
"""Names without a version suffix."""
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
_PATH_SEPARATORS = re.compile(r"[=:,@]")
_ATTACHED_PATH = re.compile(r"-[A-Za-z][/~.]")
_BRACES = re.compile(r"\{[^{}/\s]*\}")
_MOVING = frozenset(("cd", "pushd", "chdir"))
_MOVING_OPTIONS = frozenset(("-C", "--directory", "--chdir", "--cwd", "--workdir", "-D"))
_MOST_DIRECTORIES = 16
_MOST_WORDS = 65_536
"""Maximum number of words in all commands of a line: `env env ...` repeats its command each time.
"""

NOT_FOR_AGENTS = "callgate's own commands are for people, not for agents."


class CommandLine:
    """A parsed command line, shared by all checks."""

    def __init__(self, parsed: ParsedCommand) -> None:
        self.parsed = parsed
        self.commands: list[Sequence[str]] = []
        """Every command that the line may run, in order."""
        self.is_too_long = False
        """Whether the line exceeds the maximum number of words; `commands` is incomplete."""
        self.is_partial = False
        """Whether a command is nested too deeply; `commands` lacks its inner commands."""
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
        """All possible paths in the line, as parsed by the shell and as written, each once."""
        segments = self.parsed.segments
        found = dict.fromkeys(chain.from_iterable(self.commands))
        found |= dict.fromkeys(each for segment in segments for each in segment.assignments)
        redirects = (each.target for segment in segments for each in segment.redirects)
        found |= dict.fromkeys(target for target in redirects if target)
        found |= dict.fromkeys(_BLANKS.split(self.parsed.text))
        pieces = dict.fromkeys(part for word in found for part in possible_paths(word))
        return [word for word in found | pieces if word]


def possible_paths(word: str) -> Iterator[str]:
    """Yield the paths in `--file=PATH`, `-v PATH:PATH`, `@PATH`, `-fPATH`, `file:///a%20b`."""
    if _PATH_SEPARATORS.search(word):
        yield from _PATH_SEPARATORS.split(word)
        if "%" in word:
            yield from _PATH_SEPARATORS.split(unquote(word))
    if word.startswith("-") and _ATTACHED_PATH.match(word):
        yield word[2:]


def directories(line: CommandLine, start: str) -> list[str]:
    """Return the possible working directories of a line."""
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
                path = os.path.normpath(os.path.join(each, move))
                if path not in found and len(found) < _MOST_DIRECTORIES:
                    found.append(path)
    return found


def taken_away(line: CommandLine) -> Iterator[str]:
    """Yield the paths that a line removes or moves."""
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
    """Return whether a shell could expand braces in a word, also to names that do not exist."""
    return _widened(word) != word


def _widened(word: str) -> str:
    """Return a word with a star in place of braces: `{a,b}` and `{1..3}`, but not `{}`."""
    return _BRACES.sub(lambda found: "*" if "," in found[0] or ".." in found[0] else found[0], word)


def glob_reaches(pattern: str, path: str) -> bool:
    """Return whether an absolute pattern could match a path or one below it."""
    wanted = os.path.normpath(_widened(pattern)).split("/")
    segments = path.split("/")
    if "**" not in wanted and len(wanted) < len(segments):
        return False
    for want, part in zip(wanted, segments, strict=False):
        if want == "**":
            return True
        if not compile_tokens(parse_wildcards(want, classes=True))(part) or (
            part.startswith(".") and want[:1] in "*?["
        ):
            return False
    return True


def own_command(line: CommandLine) -> bool:
    """Return whether a line runs callgate, or could."""
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


def _is_harmless(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in _HARMLESS


def typed_into(line: CommandLine) -> str | None:
    """Return the part of a line that would read later input, or None."""
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


_STATIONARY = frozenset(
    ("cd", "pushd", "popd", "pwd", "echo", "printf", "true", "test", "[", "mkdir", "which", "type",
     "stat", "export", "set", "date", "whoami", "id", "hostname")
)  # fmt: skip
"""Programs that read no directory below the named one."""
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
"""Programs whose arguments are code, other processes, or scheduled work."""
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
"""Words, by program, that make it run code or read a list of paths."""
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
"""Programs that generate texts that do not appear in the line."""
_PROCESS_PATH = re.compile(r"/proc/[^/]+/(?:task/[^/]+/)?(?:cwd|root|fd|map_files)|/dev/fd/\d+/")
"""A path whose meaning depends on the process that follows it."""
_COPYING = frozenset(("cp", "mv", "ln", "install", "rsync", "scp", "gcp", "gmv", "gln", "ginstall"))


def traversing(line: CommandLine) -> list[Sequence[str]]:
    """Return the commands that may read below the named or working directories."""
    return [argv for argv in line.commands if not _is_stationary(argv)]


def _is_stationary(argv: Sequence[str]) -> bool:
    program = program_name(argv[0])
    if program == "ls":
        return not any(re.fullmatch(r"-[A-Za-z]*R[A-Za-z]*|--rec.*", each) for each in argv[1:])
    return program in _STATIONARY


def changing(line: CommandLine) -> list[Sequence[str]]:
    """Return the commands that may change a named directory or their working directory."""
    return [argv for argv in line.commands if not _is_reader(argv)]


def _is_reader(argv: Sequence[str]) -> bool:
    program = program_name(argv[0])
    if program == "git":
        return next((each for each in argv[1:] if not each.startswith("-")), "") in _GIT_READERS
    if program == "find":
        return not any(each.startswith(("-delete", "-fp", "-fls")) for each in argv[1:])
    return program in _READERS


def runs_code(line: CommandLine) -> bool:
    """Return whether a line passes code or a list of paths to a program.

    Their paths do not appear as words of the line.
    """
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
    """Return whether an interpreter gets code as an argument or from its input.

    `CommandLine.commands` contains the code of `sh -c`, so it does not count.
    """
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
    """Return whether another program, such as `uv run`, starts an interpreter with code."""
    for at, word in enumerate(options):
        name = _unversioned(program_name(word))
        if name not in _INTERPRETERS and name not in SHELLS:
            continue
        following = options[at + 1 : at + 2]
        if following and (following[0] == "-" or _CODE_OPTION.fullmatch(following[0])):
            return True
    return list(options[:2]) == ["run", "-"]


def _sets_git(options: Sequence[str]) -> bool:
    """Return whether git gets a setting that may run a program."""
    for option, value in zip(options, (*options[1:], ""), strict=False):
        if option == "-c" and not _GIT_SETTING.fullmatch(value):
            return True
        if option == "config" and any(each.startswith("!") for each in options):
            return True
    return False


def placed(line: CommandLine, directory: str) -> Iterator[str]:
    """Yield the absolute paths at which commands create files of other names.

    An example is `cp -r evil/.claude .`.
    """
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
            target_path = os.path.join(directory, os.path.expanduser(target))
            sources = [each for each in operands if each != target]
            copies_contents = any(each.endswith(("/", "/.")) or each == "." for each in sources)
            if copies_contents or not os.path.isdir(target_path) or "-T" in argv:
                yield target_path
            yield from (os.path.join(target_path, os.path.basename(each)) for each in sources)
