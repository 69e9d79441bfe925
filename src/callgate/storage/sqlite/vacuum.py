"""Writes the file anew, which an older one needs once before it can shrink step by step."""

from __future__ import annotations

import os

from callgate.core.stores import StoreUnwritable, Trouble
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import Location, open_writer, shorten_log
from callgate.storage.sqlite.problems import TROUBLE, unwritable
from callgate.storage.sqlite.schema import INCREMENTAL


def vacuum(location: Location) -> None:
    """Write the file anew without empty pages, and so that it can shrink step by step from now on.

    Nobody else can write meanwhile, so it is refused while another process has the store in use;
    and as much room again is needed for that long.
    """
    names = os.listdir(location.owners) if os.path.isdir(location.owners) else []
    owners = Owners(location.owners, "")
    if any(owners.alive(each.removesuffix(".lock")) for each in names if each.startswith("own_")):
        raise StoreUnwritable(location.path, Trouble.BUSY)
    try:
        db = open_writer(location)
        try:
            db.pragma("auto_vacuum", INCREMENTAL)
            db.execute("vacuum")
            shorten_log(db, location)
        finally:
            db.close()
    except TROUBLE as error:
        raise unwritable(location.path, error) from error
