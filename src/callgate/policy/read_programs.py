"""The programs and options with which a command line counts as reading (`read_commands`).

An option is in the list if, with any value, the program writes no file, starts no program, follows
no link while it walks through directories, and reads no file that is not an operand. Excluded on
purpose: `sort -o`, `sort --compress-program`, `find -exec`, `rg --pre`, `git --ext-diff`,
`git -c`, `git grep -O`, `tree -o`, `xxd -r`, `diff -l`, `tail -f`, `less`, `xargs`, `env`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one program that only change its input or the format of its output."""

    flags: str = ""
    """Letters of short options without a value."""
    values: str = ""
    """Letters of short options with a value."""
    optional: str = ""
    """Letters with an optional value in the same word."""
    long: frozenset[str] = frozenset()
    """Long options without a value, in full: abbreviations do not match."""
    long_values: frozenset[str] = frozenset()
    """Long options with a value."""
    long_optional: frozenset[str] = frozenset()
    """Long options with an optional value."""
    long_formats: frozenset[str] = frozenset()
    """Long options with a format in the same word, which must not start gpg (`%G`)."""
    texts: frozenset[str] = frozenset()
    """Options whose value may look like a path but is not one: a pattern, a separator."""
    apart: bool = False
    """Unlike with getopt, no value follows in the same word, except for a number."""
    options_first: bool = False
    """The first operand ends the options: the following words belong to another program."""
    counts: bool = False
    """`-20` is an option."""
    operands: Literal["paths", "files", "text", "none", "format"] = "paths"
    """`files`: paths that must not be directories, because links in them would be followed."""
    operands_with: frozenset[str] = frozenset()
    """Options that operands require; without one, git would create the operands."""
    most: int | None = None
    """Maximum number of operands; the program would write to others, or their use is unknown."""
    script: Literal["", "pattern", "sed", "awk", "jq", "printf"] = ""
    """Kind of the first operand if it is not a path: a search pattern, or a program."""
    script_options: frozenset[str] = frozenset()
    """Options with which the first operand is a path like the others."""
    needs: frozenset[str] = frozenset()
    """At least one of these options is required."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GREP = Reader(
    flags="abcEFGhHiLlnoPqrsTUvwxyZz",
    values="eABCm",
    counts=True,
    script="pattern",
    script_options=frozenset({"e", "regexp"}),
    texts=frozenset({"e", "regexp"}),
    long=_words(
        "extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case"
        " invert-match word-regexp line-regexp count files-with-matches files-without-match"
        " only-matching quiet silent no-messages byte-offset with-filename no-filename line-number"
        " null text recursive null-data initial-tab"
    ),
    long_values=_words(
        "regexp max-count after-context before-context context include exclude exclude-dir"
        " binary-files label"
    ),
    long_optional=_words("color colour"),
)
_SUMS = Reader(flags="btz", long=_words("binary text zero tag"))
_ENDS = Reader(
    flags="qvz",
    values="nc",
    counts=True,
    long=_words("quiet silent verbose zero-terminated"),
    long_values=_words("lines bytes"),
)

PROGRAMS: Mapping[str, Reader] = {
    "ls": Reader(
        flags="aABbCcdFfGghiklmNnopqQRrSsTtUuvxXZ1",
        long=_words(
            "all almost-all author escape directory human-readable inode kibibytes literal"
            " numeric-uid-gid quote-name reverse recursive size full-time group-directories-first"
            " no-group si zero file-type"
        ),
        long_values=_words("sort time time-style ignore hide block-size indicator-style width"),
        long_optional=_words("color classify"),
    ),
    "cat": Reader(
        flags="AbeEnstTuv",
        long=_words("number number-nonblank show-all show-ends show-tabs squeeze-blank"),
    ),
    "head": _ENDS,
    "tail": _ENDS,
    "wc": Reader(flags="clmwL", long=_words("bytes chars lines words max-line-length")),
    "nl": Reader(values="bdfhilnsvw", flags="p"),
    "tac": Reader(flags="br", values="s"),
    "rev": Reader(),
    "cut": Reader(
        flags="nsz",
        values="bcdf",
        long=_words("complement only-delimited"),
        long_values=_words("bytes characters fields delimiter output-delimiter"),
        texts=_words("d delimiter output-delimiter"),
    ),
    "tr": Reader(flags="cCdst", operands="text", long=_words("delete complement squeeze-repeats")),
    "paste": Reader(
        flags="sz", values="d", long=_words("serial"), long_values=_words("delimiters")
    ),
    "column": Reader(flags="tx", values="sco", long=_words("table")),
    "fold": Reader(flags="bs", values="w"),
    "expand": Reader(flags="i", values="t"),
    "sort": Reader(
        flags="bcCdfghiMmnRrsuVz",
        values="kt",
        long=_words(
            "reverse unique numeric-sort human-numeric-sort general-numeric-sort version-sort"
            " ignore-case ignore-leading-blanks dictionary-order month-sort stable zero-terminated"
        ),
        long_values=_words("key field-separator sort"),
        texts=_words("t field-separator"),
    ),
    "uniq": Reader(
        flags="cdDiuz",
        values="fsw",
        most=1,
        long=_words("count repeated unique ignore-case zero-terminated"),
        long_values=_words("skip-fields skip-chars check-chars"),
    ),
    "comm": Reader(flags="123iz", long=_words("check-order nocheck-order total")),
    "cmp": Reader(flags="bls", values="n", long=_words("print-bytes verbose silent quiet")),
    "diff": Reader(
        flags="abBcdEeiNnpqstTuwyZ",
        values="UCWI",
        counts=True,
        operands="files",
        long=_words(
            "brief unified context side-by-side ignore-case ignore-all-space ignore-space-change"
            " ignore-blank-lines text minimal report-identical-files suppress-common-lines"
            " strip-trailing-cr expand-tabs"
        ),
        long_values=_words("label width ignore-matching-lines"),
        long_optional=_words("color unified context"),
    ),
    "md5sum": _SUMS,
    "sha1sum": _SUMS,
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "b2sum": _SUMS,
    "cksum": Reader(),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": Reader(
        flags="acFhHiIlNnoPpqSsUuvVwx0",
        values="ABCdEegjMmtTr",
        script="pattern",
        script_options=frozenset({"e", "regexp", "files", "type-list"}),
        texts=_words("e regexp g glob r replace"),
        long=_words(
            "files files-with-matches files-without-match fixed-strings ignore-case smart-case"
            " case-sensitive word-regexp line-regexp invert-match line-number no-line-number"
            " with-filename no-filename count count-matches only-matching hidden no-ignore"
            " no-ignore-vcs no-heading heading column pcre2 multiline multiline-dotall quiet stats"
            " text trim vimgrep json type-list null unrestricted no-messages no-config no-follow"
            " no-pre version crlf sort-files pretty passthru byte-offset"
        ),
        long_values=_words(
            "regexp after-context before-context context glob iglob type type-not max-count"
            " max-depth max-columns max-filesize color colors sort sortr replace threads encoding"
            " context-separator"
        ),
    ),
    "fd": Reader(
        flags="0FHIagipqsu1",
        values="tedEcSj",
        script="pattern",
        long=_words(
            "hidden no-ignore case-sensitive ignore-case absolute-path full-path glob regex"
            " fixed-strings print0 unrestricted no-ignore-vcs prune quiet"
        ),
        long_values=_words(
            "type extension max-depth min-depth exact-depth exclude color size changed-within"
            " changed-before max-results"
        ),
    ),
    "tree": Reader(
        flags="aACdDfFghinNpqQrstuUvx",
        values="LPI",
        apart=True,
        long=_words("dirsfirst noreport gitignore prune du inodes si metafirst matchdirs"),
        long_values=_words("filelimit charset sort timefmt"),
    ),
    "du": Reader(
        flags="0abchkmsSx",
        values="dt",
        long=_words("all apparent-size bytes human-readable summarize total one-file-system si"),
        long_values=_words("max-depth threshold exclude block-size"),
    ),
    "df": Reader(
        flags="ahHiklmPTv", long=_words("human-readable inodes print-type local portability")
    ),
    "stat": Reader(
        flags="ft",
        values="c",
        long=_words("file-system terse"),
        long_values=_words("format printf"),
    ),
    "file": Reader(
        flags="bhikNnr0", long=_words("brief mime mime-type mime-encoding no-dereference")
    ),
    "readlink": Reader(
        flags="efmnqsvz", long=_words("canonicalize canonicalize-existing no-newline")
    ),
    "realpath": Reader(flags="eLmPqsz", long=_words("canonicalize-missing no-symlinks logical")),
    "basename": Reader(flags="az", values="s", operands="text"),
    "dirname": Reader(flags="z", operands="text"),
    "xxd": Reader(flags="abeipu", values="cglos", apart=True, most=1),
    "od": Reader(flags="abcdfilosxv", values="AjNSt", optional="w"),
    "hexdump": Reader(flags="bcCdovx", values="ns"),
    "jq": Reader(
        flags="acCehjMnrsS",
        script="jq",
        long=_words(
            "raw-output compact-output exit-status null-input slurp sort-keys ascii-output"
            " color-output monochrome-output join-output tab"
        ),
        long_values=_words("indent"),
    ),
    "sed": Reader(flags="nEr", script="sed", needs=frozenset({"n"})),
    "awk": Reader(values="F", texts=frozenset("F"), script="awk"),
    "echo": Reader(flags="neE", operands="text"),
    "pwd": Reader(flags="LP", operands="none"),
    "true": Reader(operands="none"),
    "false": Reader(operands="none"),
    ":": Reader(operands="none"),
    "printf": Reader(operands="text", script="printf"),
    "date": Reader(
        flags="Ru",
        values="d",
        optional="I",
        operands="format",
        long=_words("utc universal rfc-email"),
        long_values=_words("date rfc-3339"),
        long_optional=_words("iso-8601"),
    ),
    "whoami": Reader(operands="none"),
    "id": Reader(flags="Ggnruz", operands="text"),
    "groups": Reader(operands="text"),
    "uname": Reader(flags="aimnoprsv", operands="none"),
    "hostname": Reader(flags="fs", operands="none"),
    "nproc": Reader(operands="none", long=_words("all")),
    "arch": Reader(operands="none"),
    "which": Reader(flags="as", operands="text"),
    "type": Reader(flags="aftpP", operands="text"),
    "command": Reader(flags="vV", operands="text", needs=frozenset("vV"), options_first=True),
}
"""By name as written: another path to a program is another program."""

_VERSION = frozenset({"--version"})
VERSIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        _words(
            "git bash gcc clang cmake make ninja ld ruby php perl docker podman curl wget rg jq"
            " sed awk grep tar"
        ),
        _VERSION,
    ),
    "node": frozenset({"--version", "-v"}),
    "npm": frozenset({"--version", "-v"}),
    "go": frozenset({"version"}),
    "java": frozenset({"-version", "--version"}),
    "python": frozenset({"--version", "-V"}),
    "python3": frozenset({"--version", "-V"}),
}
"""Arguments that print the version of a program. Programs that first run code of the workspace
(pytest, yarn, cargo) are excluded.
"""

FIND_TESTS: Mapping[str, int] = {
    **dict.fromkeys(
        _words(
            "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type"
            " -maxdepth -mindepth -mtime -mmin -ctime -cmin -atime -amin -newer -size -perm -user"
            " -group -uid -gid -links -inum -printf"
        ),
        1,
    ),
    **dict.fromkeys(
        _words(
            "-not ! -a -and -o -or ( ) -print -print0 -prune -ls -empty -xdev -mount -depth -true"
            " -false -executable -readable -writable -nouser -nogroup -quit -daystart -noleaf"
        ),
        0,
    ),
}
"""Words of a `find` expression, with the number of their values."""
UNARY_TESTS = _words("-e -f -d -s -r -w -x -L -h -n -z")

SED_LINES = re.compile(r"(\d+|[$])(,[+]?\d+|,[$])?p")
"""Lines to print by number. Other sed scripts may write, or run commands with `e`."""
AWK_LINES = re.compile(r"NR ?(==|>=|<=|<|>) ?\d+")
AWK_COLUMN = re.compile(r"[$]\w+")
"""Lines and columns by number. Other awk programs may write, or start programs."""
PRINTF_DOORS = re.compile(r"%[^%a-zA-Z\\]*[hjlLqtz]*n")
"""`%n`, with which bash sets a variable, such as PATH."""
JQ_DOORS = re.compile(
    r"\b(?:env|import|include|input_filename|debug|stderr|getpath|modulemeta)\b|\$__|\$ENV"
)
"""Words with which a jq filter reads something other than its operands."""

GIT_OPTIONS = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"})
"""Options before the subcommand; `-C DIRECTORY` is parsed separately."""
_DIFF_FLAGS = "abpuswzDRW"
_DIFF_VALUES = "GSl"
_DIFF_LONG = _words(
    "patch no-patch raw patch-with-stat numstat shortstat summary name-only name-status no-color"
    " no-renames minimal patience histogram cached staged check full-index binary text"
    " ignore-space-at-eol ignore-space-change ignore-all-space ignore-blank-lines function-context"
    " exit-code quiet no-ext-diff no-textconv merge-base pickaxe-all pickaxe-regex no-prefix"
    " cumulative no-indent-heuristic indent-heuristic root cc no-color-moved"
)
_DIFF_LONG_VALUES = _words(
    "diff-filter diff-algorithm word-diff-regex src-prefix dst-prefix inter-hunk-context"
)
_DIFF_LONG_OPTIONAL = _words(
    "stat color color-words unified word-diff find-renames find-copies abbrev relative dirstat"
    " ignore-submodules submodule color-moved"
)
_LOG_FLAGS = _DIFF_FLAGS + "cmgiEFPt"
_LOG_LONG = _DIFF_LONG | _words(
    "oneline graph all branches tags remotes merges no-merges first-parent reverse follow"
    " no-decorate source abbrev-commit no-abbrev-commit topo-order date-order author-date-order"
    " full-history simplify-by-decoration left-right cherry-pick cherry-mark boundary walk-reflogs"
    " no-notes invert-grep all-match regexp-ignore-case extended-regexp fixed-strings not"
    " relative-date parents children count no-expand-tabs full-diff"
)
_LOG_LONG_VALUES = _DIFF_LONG_VALUES | _words(
    "max-count skip since after until before author committer grep date encoding min-parents"
    " max-parents"
)
_LOG_LONG_OPTIONAL = _DIFF_LONG_OPTIONAL | _words("decorate branches tags remotes no-walk")
_DIFF = Reader(
    flags=_DIFF_FLAGS,
    values=_DIFF_VALUES,
    texts=_words("G S"),
    optional="BCMU",
    counts=True,
    long=_DIFF_LONG,
    long_values=_DIFF_LONG_VALUES,
    long_optional=_DIFF_LONG_OPTIONAL,
)
_LOG = Reader(
    flags=_LOG_FLAGS,
    values=_DIFF_VALUES + "nL",
    texts=_words("G S grep author committer"),
    optional="BCMU",
    long_formats=_words("format pretty"),
    counts=True,
    long=_LOG_LONG,
    long_values=_LOG_LONG_VALUES,
    long_optional=_LOG_LONG_OPTIONAL,
)
_REFS = _words("contains no-contains merged no-merged points-at sort")
_LISTING = (_REFS - {"sort"}) | {"list"}
"""Options with which git lists branches or tags, and creates none."""

GIT: Mapping[str, Reader] = {
    "status": Reader(
        flags="sbz",
        optional="u",
        long=_words("short branch long show-stash no-renames ahead-behind no-ahead-behind null"),
        long_optional=_words("porcelain untracked-files ignored ignore-submodules find-renames"),
    ),
    "diff": _DIFF,
    "log": _LOG,
    "show": _LOG,
    "whatchanged": _LOG,
    "stash show": _DIFF,
    "stash list": _LOG,
    "shortlog": Reader(
        flags="nsec", long=_words("numbered summary email all no-merges"),
        long_values=_words("since until author"),
    ),
    "rev-list": Reader(
        flags="", values="n", counts=True,
        long=_words("all count no-merges merges first-parent reverse oneline left-right"),
        long_values=_words("max-count since until author grep skip"),
    ),
    "reflog": Reader(operands="none", counts=True, values="n"),
    "reflog show": _LOG,
    "blame": Reader(
        flags="wseflnct", values="L", optional="CM",
        long=_words("porcelain line-porcelain show-name show-number show-email root"),
        long_values=_words("date"), long_optional=_words("abbrev"),
    ),
    "grep": Reader(
        flags="acEFGhHiIlLnopPqvwWz",
        values="eABCm",
        counts=True,
        script="pattern",
        script_options=frozenset({"e"}),
        texts=frozenset({"e"}),
        long=_words(
            "cached untracked ignore-case word-regexp line-number count files-with-matches"
            " name-only files-without-match only-matching extended-regexp fixed-strings"
            " perl-regexp basic-regexp invert-match heading break show-function function-context"
            " column full-name no-color no-textconv and or not all-match text quiet"
        ),
        long_values=_words("max-depth max-count after-context before-context context"),
        long_optional=_words("color"),
    ),
    "branch": Reader(
        flags="airv", operands="text", operands_with=_LISTING,
        long=_words("all remotes list verbose show-current ignore-case no-color no-column"),
        long_optional=_REFS | {"color"},
    ),
    "tag": Reader(
        flags="il", optional="n", operands="text", operands_with=_LISTING | {"l"},
        long=_words("list ignore-case no-column"), long_optional=_REFS | {"color"},
    ),
    "remote": Reader(flags="v", operands="none", long=_words("verbose")),
    "remote get-url": Reader(operands="text", long=_words("all push")),
    "worktree list": Reader(flags="vz", operands="none", long=_words("porcelain verbose")),
    "rev-parse": Reader(
        flags="q",
        long=_words(
            "show-toplevel git-dir absolute-git-dir is-inside-work-tree is-inside-git-dir"
            " is-bare-repository show-prefix show-cdup git-common-dir verify quiet symbolic"
            " symbolic-full-name all branches tags remotes"
        ),
        long_optional=_words("abbrev-ref short"),
    ),
    "ls-files": Reader(
        flags="cdmosukztv",
        long=_words(
            "cached deleted modified others stage unmerged killed exclude-standard full-name"
            " directory no-empty-directory error-unmatch ignored"
        ),
        values="x", long_values=_words("exclude"), long_optional=_words("abbrev"),
    ),
    "ls-tree": Reader(
        flags="drltz", long=_words("name-only name-status long full-name full-tree object-only"),
        long_optional=_words("abbrev"),
    ),
    "cat-file": Reader(flags="ptse", needs=frozenset("ptse"), most=1),
    "describe": Reader(
        long=_words("all tags contains always long first-parent exact-match"),
        long_values=_words("match exclude candidates"), long_optional=_words("dirty broken abbrev"),
    ),
    "merge-base": Reader(flags="a", long=_words("all is-ancestor octopus independent fork-point")),
    "name-rev": Reader(long=_words("name-only tags always")),
    "show-ref": Reader(
        flags="dqs", operands="text", long=_words("heads tags head dereference verify quiet"),
        long_optional=_words("hash abbrev"),
    ),
    "for-each-ref": Reader(
        operands="text", long_values=_words("sort count contains merged no-merged points-at")
    ),
    "count-objects": Reader(flags="vH", operands="none"),
    "check-ignore": Reader(flags="vqn", long=_words("verbose quiet non-matching no-index")),
    "version": Reader(operands="none"),
}  # fmt: skip
"""Subcommands of git, with a second word if that determines the effect."""
