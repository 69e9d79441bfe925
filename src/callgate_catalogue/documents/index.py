"""Index of one workspace: the text of its files, and their words (SQLite, FTS5).

Index of one workspace: the files that were read, and their words (SQLite, FTS5).

The index is a disposable copy: a damaged one, or one of another version, is rebuilt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import apsw

from callgate import ToolExecutionError
from callgate.packs.files import compile_tokens, make_private_directory, parse_wildcards
from callgate_catalogue import pdfs
from callgate_catalogue.web.html import decode, media_type
from callgate_catalogue.web.markdown import convert, without_unseen

_WITHOUT_TEXT = frozenset(
    {
        "png",
        "jpg",
        "jpeg",
        "gif",
        "webp",
        "bmp",
        "ico",
        "tif",
        "tiff",
        "heic",
        "psd",
        "mp3",
        "mp4",
        "m4a",
        "wav",
        "flac",
        "ogg",
        "avi",
        "mov",
        "mkv",
        "webm",
        "zip",
        "gz",
        "bz2",
        "xz",
        "zst",
        "7z",
        "rar",
        "tar",
        "jar",
        "war",
        "whl",
        "egg",
        "so",
        "dylib",
        "dll",
        "exe",
        "o",
        "a",
        "lib",
        "pyc",
        "pyo",
        "class",
        "wasm",
        "bin",
        "dat",
        "db",
        "sqlite",
        "sqlite3",
        "ttf",
        "otf",
        "woff",
        "woff2",
        "eot",
        "pack",
        "idx",
        "map",
        "lock",
    }
)
_SECRET = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    "credentials",
    "credentials.*",
    "*.tfstate",
    "*.tfstate.*",
    "htpasswd",
    ".htpasswd",
)
"""Files whose content is never copied."""
_ARE_SECRET = [compile_tokens(parse_wildcards(each)) for each in _SECRET]
_SNIFFED = 8_192
MOST_CHARACTERS = 5_000_000


def is_worth_reading(name: str) -> bool:
    """Return whether a file of this name may contain text and no secret."""
    small = name.lower()
    ending = small.rpartition(".")[2] if "." in small else ""
    if ending in _WITHOUT_TEXT or small.endswith((".min.js", ".min.css")):
        return False
    return not any(matches(small) for matches in _ARE_SECRET)


def keeps_lines(name: str) -> bool:
    """Return whether lines of the text have the numbers of lines in the file."""
    return not is_pdf(name) and not _is_html(name)


def _is_html(name: str) -> bool:
    return name.lower().endswith((".html", ".htm", ".xhtml"))


def is_pdf(name: str, content: bytes = b"") -> bool:
    return name.lower().endswith(".pdf") or content.startswith(b"%PDF-")


def text_of(
    name: str,
    content: bytes,
    mime_type: str = "",
    should_stop: Callable[[], bool] = lambda: False,
) -> str | None:
    """Return the text; None if the file has none or no reader for it is installed."""
    if is_pdf(name, content):
        try:
            return pdfs.read(content, should_stop)
        except ToolExecutionError:
            return None
    if b"\0" in content[:_SNIFFED] and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return None
    is_html = _is_html(name) or media_type(mime_type) == "text/html"
    text, _ = decode(content, mime_type or ("text/html" if is_html else ""))
    text = text[:MOST_CHARACTERS]
    if not is_html:
        return without_unseen(text)
    page = convert(text, "", should_stop)
    return f"{page.title}\n\n{page.markdown}".strip()


Origin = Literal["workspace", "documents"]

_VERSION = 2
_BUSY_MS = 10_000
_TABLES = f"""
DROP TABLE IF EXISTS embedder;
DROP TABLE IF EXISTS split;
DROP TABLE IF EXISTS passages;
DROP TABLE IF EXISTS vectors;
DROP TABLE IF EXISTS texts;
DROP TABLE IF EXISTS files;
CREATE TABLE files(
    id INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    read_ns INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    UNIQUE(origin, path)
);
CREATE VIRTUAL TABLE texts USING fts5(
    name, body, tokenize = "unicode61 remove_diacritics 2"
);
PRAGMA user_version = {_VERSION};
"""
_TERM = re.compile(r'"([^"]*)"|(\S+)')
_SNIPPET_TOKENS = 30
_GAP = " … "
_MARK = "\x02"
"""Precedes each match in a snippet. No text has it: extraction removes invisible characters."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana, Han: scripts without spaces between words."""
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_BORDER = re.compile(rf"(?<=[{_UNSPACED}])(?=\w)|(?<=\w)(?=[{_UNSPACED}])")
_SPACE = "\u200b"
"""Zero-width space. No indexed text has it."""
_RACY_NS = 2_000_000_000
"""A file that was read this soon after a change may have changed again in the same clock tick."""


class Known(NamedTuple):
    """Indexed state of a file."""

    id: int
    size: int
    mtime_ns: int
    read_ns: int
    sha256: bytes

    def is_current(self, status: os.stat_result) -> bool:
        return (
            self.size == status.st_size
            and self.mtime_ns == status.st_mtime_ns
            and self.mtime_ns < self.read_ns - _RACY_NS
        )


class Hit(NamedTuple):
    origin: Origin
    path: str
    id: int
    match: str
    """The FTS5 query that found it."""


class Passage(NamedTuple):
    """Part of a text that contains the words."""

    snippet: str
    line: int | None


class Index:
    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = self._db = connection

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Apply all changes of a block in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def known(self, origin: Origin, below: str = "") -> dict[str, Known]:
        rows = self._db.execute(
            "SELECT path, id, size, mtime_ns, read_ns, sha256 FROM files"
            " WHERE origin = ? AND substr(path, 1, ?) = ?",
            (origin, len(below), below),
        )
        return {row[0]: Known(*row[1:]) for row in rows}

    def put(
        self,
        origin: Origin,
        path: str,
        status: os.stat_result,
        read_ns: int,
        sha256: bytes,
        text: str | None,
    ) -> None:
        """Index the words of a file, replacing its earlier entry."""
        self.drop(origin, path)
        self._db.execute(
            "INSERT INTO files(origin, path, size, mtime_ns, read_ns, sha256)"
            " VALUES(?, ?, ?, ?, ?, ?)",
            (origin, path, status.st_size, status.st_mtime_ns, read_ns, sha256),
        )
        if text:
            self._db.execute(
                "INSERT INTO texts(rowid, name, body) VALUES(?, ?, ?)",
                (self._db.last_insert_rowid(), _spaced(path), _spaced(text)),
            )

    def touch(self, known: Known, status: os.stat_result, read_ns: int) -> None:
        """Record that a file was read again and is unchanged."""
        self._db.execute(
            "UPDATE files SET size = ?, mtime_ns = ?, read_ns = ? WHERE id = ?",
            (status.st_size, status.st_mtime_ns, read_ns, known.id),
        )

    def drop(self, origin: Origin, path: str) -> None:
        row = self._db.execute(
            "SELECT id FROM files WHERE origin = ? AND path = ?", (origin, path)
        ).fetchone()
        if row is not None:
            self._db.execute("DELETE FROM texts WHERE rowid = ?", row)
            self._db.execute("DELETE FROM files WHERE id = ?", row)

    def search(self, query: str, origins: tuple[Origin, ...], below: str) -> Iterator[Hit]:
        """Yield the best hits first: files with all words, or else files with some of them."""
        for joint in (" AND ", " OR "):
            found = False
            for hit in self._search(joint.join(_terms(query)), origins, below):
                found = True
                yield hit
            if found:
                return

    def _search(self, match: str, origins: tuple[Origin, ...], below: str) -> Iterator[Hit]:
        if not match:
            return
        marks = ", ".join("?" * len(origins))
        rows = self._db.execute(
            "SELECT files.origin, files.path, files.id"  # noqa: S608 - marks alone
            " FROM texts JOIN files ON files.id = texts.rowid"
            f" WHERE texts MATCH ? AND files.origin IN ({marks})"
            " AND (files.origin != 'workspace' OR substr(files.path, 1, ?) = ?)"
            " ORDER BY bm25(texts, 4.0, 1.0), files.path",
            (match, *origins, len(below), below),
        )
        for origin, path, id in rows:
            yield Hit(origin, path, id, match)

    def body(self, id: int) -> str:
        """Return the indexed text of a file."""
        row = self._db.execute("SELECT body FROM texts WHERE rowid = ?", (id,)).fetchone()
        return "" if row is None else str(row[0]).replace(_SPACE, "")

    def passage(self, hit: Hit) -> Passage:
        row = self._db.execute(
            f"SELECT snippet(texts, 1, '{_MARK}', '', '{_GAP}', {_SNIPPET_TOKENS}),"  # noqa: S608
            " body"
            " FROM texts WHERE texts MATCH ? AND rowid = ?",
            (hit.match, hit.id),
        ).fetchone()
        if row is None:
            return Passage("", None)
        snippet, body = str(row[0]), str(row[1])
        start = snippet.strip(_GAP).partition(_GAP)[0].strip()
        before = max(start.find(_MARK), 0)
        at = body.find(start.replace(_MARK, "")) if start else -1
        line = None if at < 0 else body.count("\n", 0, at + before) + 1
        shown = snippet.replace(_MARK, "").replace(_SPACE, "")
        return Passage(" ".join(shown.split()), line)


def _spaced(text: str) -> str:
    """Separate the letters of scripts without spaces, so that parts of a text can be found."""
    if text.isascii() or not _IS_UNSPACED.search(text):
        return text
    return _BORDER.sub(_SPACE, text)


def _terms(query: str) -> list[str]:
    """Convert a person's query to FTS5 terms. Only quotes and a trailing `*` have a meaning."""
    terms = []
    for phrase, word in _TERM.findall(query):
        bare = (phrase or word.rstrip("*")).replace('"', "").replace("\0", " ")
        if any(char.isalnum() for char in bare):
            terms.append(f'"{_spaced(bare)}"' + (" *" if word.endswith("*") else ""))
    return terms


@contextmanager
def opened(directory: str) -> Iterator[Index]:
    """Open the index in a directory, and create it if necessary. Raises `ToolExecutionError`."""
    path = os.path.join(directory, "index.db")
    try:
        make_private_directory(directory)
        with _alone(directory):
            connection = _connection(path)
    except (apsw.Error, OSError) as error:
        raise _unusable(error) from error
    try:
        yield Index(connection)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        with _alone(directory):
            _throw_away(path)
        raise ToolExecutionError(
            "The index was damaged and will be rebuilt: search again.", reason="index_unusable"
        ) from error
    except apsw.Error as error:
        raise _unusable(error) from error
    finally:
        connection.close()


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Hold the exclusive lock for creating or deleting an index.

    SQLite does not provide it: its change to WAL does not wait, and it does not notice that another
    process deletes the file.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _connection(path: str) -> apsw.Connection:
    try:
        return _ready(path)
    except (apsw.CorruptError, apsw.NotADBError):
        _throw_away(path)
        return _ready(path)


def _throw_away(path: str) -> None:
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(path + ending):
            os.unlink(path + ending)


def _ready(path: str) -> apsw.Connection:
    # Do not open an existing file here: closing it would release the locks that
    # SQLite has on it in this process, and another process would assume exclusive access.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # it can be rebuilt
        if connection.pragma("user_version") != _VERSION:
            connection.execute(f"BEGIN IMMEDIATE; {_TABLES} COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _unusable(error: Exception) -> ToolExecutionError:
    problem = "another process is changing it" if isinstance(error, apsw.BusyError) else str(error)
    return ToolExecutionError(f"The index cannot be used: {problem}.", reason="index_unusable")
