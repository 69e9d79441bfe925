"""A jail with less in it: paths that are taken away, or made read-only, for one command."""

from __future__ import annotations

import os

import msgspec

from callgate.sandbox.jails import Jail, below_any


def with_masks(jail: Jail, hidden: tuple[str, ...], read_only: tuple[str, ...]) -> Jail:
    """All paths are real. None of the hidden ones is, or is above, a writable root of the jail.

    What is hidden below a writable root is protected as well: moved away, it would be found by
    the next command where nothing hides it. A root that may not be written is only readable.
    """
    roots = tuple(path for path in jail.writable if not below_any(path, read_only))
    lost = tuple(path for path in jail.writable if path not in roots)
    masked = (*(path for path in (*hidden, *read_only) if os.path.lexists(path)), *jail.protected)
    return msgspec.structs.replace(
        jail,
        readable=tuple(sorted({*jail.readable, *lost})),
        writable=roots,
        protected=tuple(sorted({p for p in masked if below_any(p, roots) and p not in roots})),
        hidden=tuple(sorted({*jail.hidden, *hidden})),
    )
