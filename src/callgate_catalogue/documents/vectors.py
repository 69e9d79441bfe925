"""Vectors of passages in an index, and the search for the nearest ones.

    files -> passages (where, SHA-256 of the text, sign of each number) -> vectors

Vectors are keyed by the text of a passage, so a text that moves or occurs in two files is embedded
once. All vectors have one embedder and one length; after a change of either, all are recomputed. A
trigger deletes the passages of a file with the file.

Comparing a vector with all others is too slow in Python. The search therefore compares the signs
first, one operation for each vector, and then the numbers of the vectors with the most equal signs.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from math import hypot
from operator import mul
from typing import Any, NamedTuple

import msgspec

from callgate import ToolCancelled
from callgate_catalogue.documents.index import Hit, Index, Origin, Passage

MOST_BYTES = 1_000
"""Size of one passage: about 250 tokens; the smallest models accept 256."""
_SHOWN = 200


class Part(NamedTuple):
    """Location of a passage in a text."""

    start: int
    stop: int
    line: int


def split(text: str) -> Iterator[Part]:
    """Yield passages of whole lines, or parts of long lines, and whole paragraphs if possible."""
    at, start, first, size = 0, 0, 1, 0
    for line, words in enumerate(text.split("\n"), 1):
        length = _bytes(words) + 1 if words.strip() else 0
        if size and (size + length > MOST_BYTES if length else size >= MOST_BYTES // 2):
            yield Part(start, at, first)
            size = 0
        if size == 0:
            start, first = at, line
        size += length
        at += len(words) + 1
        if size > MOST_BYTES:  # a single line that is too long
            step = MOST_BYTES if words.isascii() else MOST_BYTES // 4
            for cut in range(start, at - 1, step):
                yield Part(cut, min(cut + step, at - 1), line)
            size = 0
    if size:
        yield Part(start, len(text), first)


def _bytes(words: str) -> int:
    return len(words) if words.isascii() else len(words.encode("utf-8", "replace"))


def snippet(passage: str) -> str:
    shown = " ".join(passage[: 4 * _SHOWN].split())
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN].rstrip() + " …"


COMPARED = 4_000
"""Number of vectors that are compared number by number."""
_TABLES = """
CREATE TABLE IF NOT EXISTS embedder(name TEXT NOT NULL, dimensions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS split(file INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS passages(
    id INTEGER PRIMARY KEY,
    file INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    line INTEGER NOT NULL,
    sha256 BLOB NOT NULL,
    vector INTEGER,
    signs BLOB
);
CREATE INDEX IF NOT EXISTS passages_of_file ON passages(file);
CREATE INDEX IF NOT EXISTS passages_of_text ON passages(sha256);
CREATE INDEX IF NOT EXISTS passages_waiting ON passages(id) WHERE vector IS NULL;
CREATE TABLE IF NOT EXISTS vectors(
    id INTEGER PRIMARY KEY, sha256 BLOB NOT NULL UNIQUE, signs BLOB, vector BLOB
);
CREATE TRIGGER IF NOT EXISTS passages_go AFTER DELETE ON files BEGIN
    DELETE FROM passages WHERE file = OLD.id;
    DELETE FROM split WHERE file = OLD.id;
END;
"""
_IN_SCOPE = "origin IN (?, ?) AND (origin != 'workspace' OR substr(path, 1, ?) = ?)"
_AT_ONCE = 200
"""Files that are split in one transaction."""


class Pending(NamedTuple):
    """Passage without a vector."""

    sha256: bytes
    text: str


class Work(NamedTuple):
    pending: list[Pending]
    left: bool
    """Whether more passages are pending."""
    full: bool
    """Whether passages are omitted because of `max_passages`."""


class Scope(NamedTuple):
    """Filter for files."""

    origins: tuple[Origin, ...]
    below: str
    may_show: Callable[[Origin, str], bool]

    @property
    def values(self) -> tuple[str, str, int, str]:
        return self.origins[0], self.origins[-1], len(self.below), self.below


def normalised(vector: Sequence[float]) -> array[float]:
    """Return the vector scaled to length 1; a zero vector is unchanged."""
    length = hypot(*vector) or 1.0
    return array("f", (each / length for each in vector))


def signs_of(vector: Sequence[float]) -> bytes:
    signs = "".join("1" if each > 0 else "0" for each in vector)
    return int(signs, 2).to_bytes((len(vector) + 7) // 8, "big")


def _sha256(passage: str) -> bytes:
    return hashlib.sha256(passage.strip().encode("utf-8", "replace")).digest()


class Vectors:
    def __init__(self, index: Index, name: str, dimensions: int) -> None:
        self._index, self._db = index, index.connection
        self._key = (name, dimensions)

    def begin(self) -> None:
        """Delete all vectors of another embedder."""
        with self._index.changing():
            self._db.execute(_TABLES)
            if not self._is_ours():
                for table in ("embedder", "split", "passages", "vectors"):
                    self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - those above
                self._db.execute("INSERT INTO embedder VALUES(?, ?)", self._key)

    def work(
        self, scope: Scope, most: int, max_passages: int, should_stop: Callable[[], bool]
    ) -> Work:
        """Return the passages to embed next. Only texts that the caller may read are sent."""
        allowed: dict[tuple[Origin, str], bool] = {}

        def may_send(origin: Origin, path: str) -> bool:
            if should_stop():
                raise ToolCancelled
            if (origin, path) not in allowed:
                allowed[origin, path] = scope.may_show(origin, path)
            return allowed[origin, path]

        pending = self._pending(scope, most, may_send)
        files = self._rows(
            "SELECT id, origin, path FROM files"  # noqa: S608
            f" WHERE id NOT IN (SELECT file FROM split) AND {_IN_SCOPE} ORDER BY id",
            *scope.values,
        )
        unsplit = [file for file, origin, path in files if may_send(origin, path)]
        full = False
        while unsplit and len(pending) <= most and not full:
            total = len(pending)
            while unsplit and total <= most and not full:
                some, unsplit = unsplit[:_AT_ONCE], unsplit[_AT_ONCE:]
                count, full = self._split(some, max_passages, should_stop)
                total += count
            pending = self._pending(scope, most, may_send)  # some texts already have a vector
        if not unsplit:
            self._forget()
        left = len(pending) > most or bool(unsplit and not full)
        return Work(pending[:most], left, full)

    def _split(
        self, files: list[int], most: int, should_stop: Callable[[], bool]
    ) -> tuple[int, bool]:
        """Split files into passages; return their number, and whether the limit was reached."""
        with self._index.changing():
            ((before,),) = self._rows("SELECT count(*) FROM passages")
            count = before
            for file in files:
                if should_stop():
                    raise ToolCancelled
                text = self._index.body(file)
                passages = list(split(text))
                if count + len(passages) > most:
                    return count - before, True
                # Another process may have split or removed the file.
                self._db.execute(
                    "INSERT OR IGNORE INTO split SELECT id FROM files WHERE id = ?", (file,)
                )
                if self._db.changes() == 0:
                    continue
                count += len(passages)
                self._db.executemany(
                    "INSERT INTO passages(file, start, stop, line, sha256, vector, signs)"
                    " SELECT ?, ?, ?, ?, texts.sha256, vectors.id, signs"
                    " FROM (SELECT ? AS sha256) AS texts"
                    " LEFT JOIN vectors ON vectors.sha256 = texts.sha256",
                    [(file, *part, _sha256(text[part.start : part.stop])) for part in passages],
                )
        return count - before, False

    def _pending(
        self, scope: Scope, most: int, may_send: Callable[[Origin, str], bool]
    ) -> list[Pending]:
        """Return pending passages, at most one more than `most`."""
        rows = self._db.execute(
            "SELECT passages.sha256, files.id, origin, path, start, stop"  # noqa: S608
            " FROM passages INDEXED BY passages_waiting CROSS JOIN files ON files.id = file"
            f" WHERE vector IS NULL AND {_IN_SCOPE} ORDER BY passages.id",
            scope.values,
        )
        found: dict[bytes, str] = {}
        read, body = -1, ""
        for sha256, file, origin, path, start, stop in rows:
            if sha256 in found or not may_send(origin, path):
                continue
            if file != read:
                read, body = file, self._index.body(file)
            found[sha256] = body[start:stop].strip()
            if len(found) > most:
                break
        return [Pending(*each) for each in found.items()]

    def _forget(self) -> None:
        """Delete vectors of texts that no file contains."""
        unused = "FROM vectors WHERE sha256 NOT IN (SELECT sha256 FROM passages)"
        if self._rows(f"SELECT 1 {unused} LIMIT 1"):
            with self._index.changing():
                self._db.execute(f"DELETE {unused}")

    def store(self, embedded: Sequence[tuple[Pending, Sequence[float] | None]]) -> None:
        """Store vectors. None marks a text that the embedder rejects; it is not sent again."""
        with self._index.changing():
            if not self._is_ours():
                return  # another process has switched the embedder
            for pending, numbers in embedded:
                vector = None if numbers is None else normalised(numbers)
                self._db.execute(
                    "INSERT OR IGNORE INTO vectors(sha256, signs, vector) VALUES(?, ?, ?)",
                    (pending.sha256, vector and signs_of(vector), vector and vector.tobytes()),
                )
                self._db.execute(
                    "UPDATE passages SET (vector, signs) ="
                    " (SELECT id, signs FROM vectors WHERE sha256 = ?1) WHERE sha256 = ?1",
                    (pending.sha256,),
                )

    def nearest(
        self, query: array[float], scope: Scope, least: float, most: int
    ) -> list[tuple[Hit, Passage]]:
        """Return the best visible hits first, each file once with its nearest passage."""
        found: dict[int, tuple[Hit, Passage]] = {}
        with self._db:  # one consistent read
            if not self._is_ours():
                return []
            rows = self._rows(
                # The plus disables the index: a sequential read is faster than single look-ups.
                "SELECT vector, id, signs FROM passages WHERE signs IS NOT NULL"  # noqa: S608
                f" AND +file IN (SELECT id FROM files WHERE {_IN_SCOPE})",
                *scope.values,
            )
            for similarity, passage in self._compared(query, rows):
                if similarity < least or len(found) >= most:
                    break
                hit, part = self._shown(passage)
                if hit.id not in found and scope.may_show(hit.origin, hit.path):
                    found[hit.id] = hit, part
        return list(found.values())

    def _compared(
        self, query: array[float], rows: list[tuple[int, int, bytes]]
    ) -> list[tuple[float, int]]:
        """Return the similarity of each passage, or of the candidates with the most equal signs."""
        if len(rows) > COMPARED:
            wanted, number = int.from_bytes(signs_of(query), "big"), int.from_bytes
            differing = [(number(signs, "big") ^ wanted).bit_count() for _, _, signs in rows]
            order = sorted(range(len(rows)), key=differing.__getitem__)
            rows = [rows[index] for index in order[:COMPARED]]
        numbers = query.tolist()
        vectors = self._db.execute(
            "SELECT id, vector FROM vectors WHERE id IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode([id for id, _, _ in rows]).decode(),),
        )
        near = {id: sum(map(mul, array("f", vector), numbers)) for id, vector in vectors}
        return sorted(
            ((near[id], passage) for id, passage, _ in rows), key=lambda each: (-each[0], each[1])
        )

    def _shown(self, passage: int) -> tuple[Hit, Passage]:
        ((origin, path, id, start, stop, line),) = self._rows(
            "SELECT origin, path, files.id, start, stop, line"
            " FROM passages JOIN files ON files.id = file WHERE passages.id = ?",
            passage,
        )
        part = Passage(snippet(self._index.body(id)[start:stop]), line)
        return Hit(origin, path, id, ""), part

    def _is_ours(self) -> bool:
        return self._rows("SELECT name, dimensions FROM embedder") == [self._key]

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._db.execute(query, values).fetchall()
