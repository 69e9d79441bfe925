"""How far each chain has come, in the store that several homes share: a cut log is found by it.

    audit_head / CHAIN -> home, owner, number of lines, hash of the last, the file with it, when

A head is published after its line is on the disk and at most a second behind, so a chain may have
more lines than its head says, and never fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from callgate.audit.verify import Problem, Verification, verify
from callgate.core.ops import PutEntry
from callgate.core.stored import SharedEntry

KIND = "audit_head"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    home: str
    owner: str
    """The process that writes the chain."""
    n: int
    hash: str
    file: int
    """The number of the file with the last line."""
    at: float


class LogFile(msgspec.Struct, frozen=True):
    path: str
    home: str | None
    """The id of its home; None where that is not known."""


class Verdict(msgspec.Struct, frozen=True):
    """What was found in several logs."""

    logs: Sequence[Verification]
    missing: tuple[Problem, ...]
    """Chains that none of them has."""


def put_head(chain: str, head: Head) -> PutEntry:
    return PutEntry(kind=KIND, name=chain, value=msgspec.json.encode(head).decode())


def read_heads(entries: Iterable[SharedEntry]) -> dict[str, Head]:
    """By chain. An entry that cannot be read is one of a newer version: `MsgspecError`."""
    return {each.name: msgspec.json.decode(each.value, type=Head) for each in entries}


def verify_logs(
    logs: Sequence[LogFile],
    heads: Mapping[str, Head],
    *,
    homes: Collection[str] | None = None,
    keys: Sequence[bytes] = (),
) -> Verdict:
    """Check each log, and that they have what the heads say. `homes`: only the chains of these
    are expected; None: all."""
    ends = {chain: (head.n, head.hash) for chain, head in heads.items()}
    found = [verify(each.path, keys=keys, expected=ends) for each in logs]
    missing = []
    for chain, head in heads.items():
        if homes is not None and head.home not in homes:
            continue
        if any(chain in each.expected_chains for each in found):
            continue
        of_home = [
            each for log, each in zip(logs, found, strict=True) if log.home in (None, head.home)
        ]
        if any(head.file < each.kept_from for each in of_home):
            continue  # in a file that was dropped, which a record says
        path = next((log.path for log in logs if log.home == head.home), logs[0].path)
        what = (
            f"no file has chain {chain} of home {head.home}; the store knows {head.n} lines of it"
        )
        missing.append(Problem(path, 0, what))
    return Verdict(found, tuple(missing))
