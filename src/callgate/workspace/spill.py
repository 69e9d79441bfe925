"""Output with more lines than can be shown: what to show, and where the rest lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from callgate.workspace.paths import opening

MAX_BYTES = 256 * 1024

Artifact = Callable[[str], str | None]
"""A path for a file of this call's own; None where none is kept."""


class Shown(msgspec.Struct, frozen=True):
    text: str
    truncated: bool


def show(
    lines: Sequence[str],
    most: int,
    artifact: Artifact,
    *,
    name: str,
    complete: bool = True,
    unit: str = "lines",
) -> Shown:
    """The first lines as text. If there are more, all go into an artifact, and the text says so.

    `complete` is False if even `lines` are not all there is.
    """
    fitting = _fitting(lines, most)
    if fitting == len(lines) and complete:
        return Shown("\n".join(lines), truncated=False)
    of = f"of {len(lines):,}" if complete else f"of at least {len(lines):,}"
    artifact_path = _keep(lines, artifact, name) if fitting < len(lines) else None
    where = f"; all of them: {artifact_path}" if artifact_path else ""
    mark = f"[truncated: {fitting:,} {of} {unit} shown{where}]"
    return Shown("\n".join([*lines[:fitting], mark]), truncated=True)


def _fitting(lines: Sequence[str], most: int) -> int:
    size = 0
    for count, line in enumerate(lines[:most]):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > MAX_BYTES:
            return count
    return min(most, len(lines))


def _keep(lines: Sequence[str], artifact: Artifact, name: str) -> str | None:
    path = artifact(name)
    if path is None:
        return None
    try:
        with opening():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
    except OSError:
        return None  # the shown part is worth more than the rest
    return path
