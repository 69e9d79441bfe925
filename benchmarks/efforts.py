"""How much of everything is measured in one run."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.contest import Effort


class Scale(NamedTuple):
    calls: Effort = Effort(rounds=40, batch=300)
    singles: Effort = Effort(rounds=5, batch=100)
    starts: int = 15
    memory: int = 3
    """Rounds; a run of the table alone does with one."""
    idle: int = 10_000
    many: int = 1_000_000
    audit_bytes: int = 100_000_000


QUICK = Scale(
    calls=Effort(rounds=3, batch=20),
    singles=Effort(rounds=2, batch=5),
    starts=2,
    memory=1,
    idle=50,
    many=1_000,
    audit_bytes=200_000,
)


def chosen_scale(quick: bool, rounds: int | None) -> Scale:
    scale = QUICK if quick else Scale()
    if rounds is None:
        return scale
    return scale._replace(
        calls=scale.calls._replace(rounds=rounds),
        singles=scale.singles._replace(rounds=min(rounds, scale.singles.rounds)),
        starts=rounds,
    )


def rounds(text: str) -> int:
    """The value of `--rounds`: a spread needs two."""
    if (count := int(text)) < 2:
        raise ValueError
    return count
