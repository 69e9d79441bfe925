"""Settings of a git configuration file, and which of them are inert. Pure.

git runs programs that its configuration names: `core.fsmonitor`, filters, hooks, aliases, helpers,
and more in later versions. So this module lists the inert settings; every other setting may run a
program (`unsafe`). A line that git itself cannot read counts as unsafe, too.

The parser follows git's grammar character by character: git would apply a setting that this
parser misses. The broker imports this module, so it imports neither msgspec nor `re`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is slow to load
if TYPE_CHECKING:
    from collections.abc import Iterator

Setting = tuple[str, str, str, str]
"""(section, quoted part, name, value): section and name in lower case, the other two unchanged."""

_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}
_SPACES = " \t\r\f\v"
_ANY = "*"

_INERT: dict[str, frozenset[str]] = {
    "core": frozenset(
        {
            "repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase",
            "precomposeunicode", "symlinks", "worktree", "autocrlf", "eol", "safecrlf",
            "sparsecheckout", "sparsecheckoutcone", "untrackedcache", "sharedrepository",
            "compression", "loosecompression", "abbrev", "quotepath", "longpaths", "commitgraph",
            "splitindex", "preloadindex", "checkstat", "trustctime", "protectntfs", "protecthfs",
            "bigfilethreshold", "multipackindex", "whitespace", "hidedotfiles",
        }
    ),
    "remote": frozenset(
        {"url", "fetch", "push", "pushurl", "tagopt", "mirror", "prune", "prunetags", "promisor",
         "partialclonefilter", "skipdefaultupdate", "skipfetchall", "followremotehead",
         "pushdefault"}
    ),
    "branch": frozenset(
        {"remote", "merge", "rebase", "pushremote", "description", "autosetupmerge",
         "autosetuprebase", "sort"}
    ),
    "submodule": frozenset(
        {"url", "active", "branch", "update", "ignore", "recurse", "fetchrecursesubmodules",
         "shallow", "fetchjobs", "path", "alternatelocation", "alternateerrorstrategy"}
    ),
    "extensions": frozenset(
        {"objectformat", "compatobjectformat", "refstorage", "partialclone", "worktreeconfig",
         "preciousobjects", "noop"}
    ),
    "user": frozenset({"name", "email", "useconfigonly"}),
    "author": frozenset({"name", "email"}),
    "committer": frozenset({"name", "email"}),
    "init": frozenset({"defaultbranch"}),
    "pull": frozenset({"rebase", "ff"}),
    "push": frozenset({"default", "autosetupremote", "followtags"}),
    "fetch": frozenset({"prune", "prunetags", "parallel", "writecommitgraph"}),
    "merge": frozenset({"conflictstyle", "ff", "renames", "log", "stat"}),
    "rebase": frozenset({"autostash", "autosquash", "updaterefs", "stat"}),
    "diff": frozenset({"renames", "algorithm", "mnemonicprefix", "noprefix", "context"}),
    "log": frozenset({"date", "decorate", "abbrevcommit"}),
    "status": frozenset({"showuntrackedfiles", "short", "branch", "submodulesummary"}),
    "index": frozenset({"version", "sparse", "threads", "skiphash"}),
    "feature": frozenset({"manyfiles", "experimental"}),
    "gc": frozenset({"auto", "autodetach", "autopacklimit", "pruneexpire", "writecommitgraph"}),
    "pack": frozenset({"threads", "windowmemory", "packsizelimit", "writereverseindex"}),
    "rerere": frozenset({"enabled", "autoupdate"}),
    "checkout": frozenset({"defaultremote", "workers", "guess"}),
    "clone": frozenset({"defaultremotename"}),
    "receive": frozenset(
        {"denynonfastforwards", "denydeletes", "denycurrentbranch", "fsckobjects", "unpacklimit"}
    ),
    "transfer": frozenset({"fsckobjects", "unpacklimit"}),
    "lfs": frozenset({"repositoryformatversion"}),
    "color": frozenset({_ANY}),
    "advice": frozenset({_ANY}),
}  # fmt: skip
_WITH_ADDRESSES = frozenset({"remote", "branch", "submodule"})
"""Sections with values that name remotes; git accepts an address for any of them."""
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})
_OFF = frozenset({"false", "no", "off", "0", ""})


class Malformed(ValueError):
    """git would refuse to read the file."""


def unsafe(text: str) -> list[str]:
    """Return the sorted settings that may run a program, as git names them: `core.fsmonitor`."""
    found = set()
    try:
        for section, quoted, name, value in settings(text, strict=True):
            if not _is_inert(section, name, value):
                found.add(".".join(part for part in (section, quoted, name) if part))
    except Malformed:
        found.add("a line that git cannot read")
    return sorted(found)


def _is_inert(section: str, name: str, value: str) -> bool:
    """In a deprecated header, `[section.part]`, only the first part names the section."""
    section = section.partition(".")[0]
    if (section, name) == ("core", "fsmonitor"):
        return value.lower() in _OFF
    known = _INERT.get(section, frozenset())
    if name not in known and _ANY not in known:
        return False
    if (section, name) == ("submodule", "update"):
        return value in _UPDATES  # `!command` would be executed
    if (section, name) == ("core", "worktree"):
        return not value.startswith(("/", "~"))  # such paths lead to other directories
    is_address = section in _WITH_ADDRESSES and name != "description"
    return not (is_address and "::" in value)  # a transport by its program


def settings(text: str, *, strict: bool = False) -> Iterator[Setting]:
    """Yield each setting in order. A line that git cannot read raises `Malformed` if `strict`, and
    is skipped otherwise.
    """
    reader = _Reader(text)
    section = quoted = ""
    while not reader.is_at_end:
        try:
            char = reader.next()
            if char in "\n" + _SPACES:
                continue
            if char in "#;":
                reader.skip_line()
            elif char == "[":
                section, quoted = reader.header()
            else:
                name, value = reader.setting(char)
                yield section, quoted, name, value
        except Malformed:
            if strict:
                raise
            reader.skip_line()


class _Reader:
    """The functions of git's `config.c` for headers, settings and values."""

    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def next(self) -> str:
        """Return the next character; a line ends where the file ends."""
        char = self._text[self._at] if self._at < len(self._text) else "\n"
        self._at += 1
        return char

    def skip_line(self) -> None:
        """Skip to the end of the line, unless the reader has just passed one."""
        if self._text[self._at - 1 : self._at] == "\n":
            return
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end + 1

    def header(self) -> tuple[str, str]:
        section = ""
        while (char := self.next()) != "]":
            if char in _SPACES:
                return section, self._quoted()
            if not _is_in_name(char) and char != ".":
                raise Malformed
            section += char.lower()
        if not section:
            raise Malformed
        return section, ""

    def _quoted(self) -> str:
        while (char := self.next()) in _SPACES:
            pass
        if char != '"':
            raise Malformed
        quoted = ""
        while (char := self.next()) != '"':
            if char == "\\":
                char = self.next()
            if char == "\n":
                raise Malformed
            quoted += char
        if self.next() != "]":
            raise Malformed
        return quoted

    def setting(self, char: str) -> tuple[str, str]:
        if not (char.isascii() and char.isalpha()):
            raise Malformed
        name = ""
        while _is_in_name(char):
            name += char.lower()
            char = self.next()
        while char in " \t":
            char = self.next()
        if char == "\n":
            return name, "true"
        if char != "=":
            raise Malformed
        return name, self._value()

    def _value(self) -> str:
        value, is_quoted, is_comment = "", False, False
        while (char := self.next()) != "\n":
            if is_comment:
                continue
            if char == "\\":
                char = self.next()
                if char == "\n":
                    continue
                if char not in _ESCAPES:
                    raise Malformed
                value += _ESCAPES[char]
            elif char == '"':
                is_quoted = not is_quoted
            elif char in "#;" and not is_quoted:
                is_comment = True
            else:
                value += char
        if is_quoted:
            raise Malformed
        return value.strip()


def _is_in_name(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "-")
