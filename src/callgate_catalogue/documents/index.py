"""The index of one workspace: which files were read, and the words in them (SQLite, FTS5).

A copy that can be thrown away: one that is damaged, or of another version, is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import apsw

from callgate import ToolExecutionError
from callgate.packs.files import make_private_directory

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
"""Before what was found. No text has it: whoever made it took out what is not seen."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana, Han: written without spaces between words."""
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_BORDER = re.compile(rf"(?<=[{_UNSPACED}])(?=\w)|(?<=\w)(?=[{_UNSPACED}])")
_SPACE = "\u200b"
"""Of no width, and nothing that a text has."""
_RACY_NS = 2_000_000_000
"""A file that was read so soon after it changed may have changed again in the same tick."""


class Known(NamedTuple):
    """What the index knows of a file."""

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
    """What found it."""


class Passage(NamedTuple):
    """The part of a text in which the words stand."""

    snippet: str
    line: int | None


class Index:
    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = self._db = connection

    @contextmanager
    def changing(self) -> Iterator[None]:
        """All changes of a block at once, or none."""
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
        """The words of a file, in place of what was known of it."""
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
        """It was read again, and says the same."""
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
        """The best first: files with all of the words; if there are none, with some of them."""
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
        """The text of a file, as it was put."""
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
    """With each letter of such a script as a word, so that some of them can be found."""
    if text.isascii() or not _IS_UNSPACED.search(text):
        return text
    return _BORDER.sub(_SPACE, text)


def _terms(query: str) -> list[str]:
    """What a person types as terms of FTS5, none of whose signs count but these."""
    terms = []
    for phrase, word in _TERM.findall(query):
        bare = (phrase or word.rstrip("*")).replace('"', "").replace("\0", " ")
        if any(char.isalnum() for char in bare):
            terms.append(f'"{_spaced(bare)}"' + (" *" if word.endswith("*") else ""))
    return terms


@contextmanager
def opened(directory: str) -> Iterator[Index]:
    """The index in a directory, made if there is none. Raises `ToolExecutionError`."""
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
            "The index was damaged and will be made anew: search again.", reason="index_unusable"
        ) from error
    except apsw.Error as error:
        raise _unusable(error) from error
    finally:
        connection.close()


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Nobody else makes or throws away an index meanwhile. SQLite does not see to it: it changes
    to WAL without waiting, and knows nothing of a file that is taken away under it."""
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
    # One that is there is not opened by us: to close it again would take away the locks that
    # SQLite has on it in this process, and another one would believe itself alone.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # it can be made anew
        if connection.pragma("user_version") != _VERSION:
            connection.execute(f"BEGIN IMMEDIATE; {_TABLES} COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _unusable(error: Exception) -> ToolExecutionError:
    problem = "somebody else is changing it" if isinstance(error, apsw.BusyError) else str(error)
    return ToolExecutionError(f"The index cannot be used: {problem}.", reason="index_unusable")
