"""Opens a copy of a damaged file, whose first page may have to be written anew."""

from __future__ import annotations

import os

import apsw

from callgate.storage.sqlite.problems import DAMAGE
from callgate.storage.sqlite.schema import make_shrinkable, migrate
from callgate.storage.sqlite.tables import SESSION

_PAGE_SIZE = 4096


def open_damaged(copy: str) -> tuple[apsw.Connection, bool]:
    """A connection, and whether the file itself says where each table begins."""
    try:
        return _tried(copy), True
    except DAMAGE:
        _mend_first_page(copy)
    try:
        return _tried(copy), False
    except DAMAGE:  # not one page of it says anything
        return _empty(copy + ".empty"), False


def _empty(path: str) -> apsw.Connection:
    db = apsw.Connection(path)
    migrate(db, path)
    return db


def _tried(copy: str) -> apsw.Connection:
    db = apsw.Connection(copy)
    try:
        db.execute("select * from sqlite_schema").fetchall()
        db.execute(f"{SESSION} limit 0")
    except BaseException as error:
        db.close(force=True)
        if isinstance(error, apsw.SQLError):  # the tables are not in the schema
            raise apsw.CorruptError(str(error)) from None
        raise
    return db


def _mend_first_page(copy: str) -> None:
    """Put the first page of a new file in place of one that says nothing any more.

    It says where the tables begin, which is the same in every file made by the same migrations.
    """
    fresh = copy + ".fresh"
    db = apsw.Connection(fresh)
    if _is_shrinkable(copy):
        make_shrinkable(db)
    migrate(db, fresh)
    size = int(db.pragma("page_size"))
    db.close()
    with open(fresh, "rb") as file:
        page = bytearray(file.read(size))
    pages = -(-os.stat(copy).st_size // size)
    page[18:20] = b"\2\2"  # its changes are in a log
    page[28:32] = pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no page is free, as far as we know
    page[92:96] = page[24:28]
    with open(copy, "r+b") as file:
        file.write(page)
        file.truncate(pages * size)


def _is_shrinkable(copy: str) -> bool:
    """Whether the second page is no page of a table but says which of the others may be moved."""
    with open(copy, "rb") as file:
        file.seek(_PAGE_SIZE)
        return file.read(1) == b"\1"
