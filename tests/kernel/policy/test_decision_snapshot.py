"""No decision changes by accident: all of a large grid are compared with those stored."""

from __future__ import annotations

from difflib import unified_diff

from tests.kernel.policy.decision_snapshot import STORED, snapshot


def test_every_decision_is_the_stored_one() -> None:
    """After a change on purpose: `python -m tests.kernel.policy.decision_snapshot`."""
    stored = STORED.read_text().splitlines()
    assert list(unified_diff(stored, snapshot().splitlines(), "stored", "now", n=0, lineterm="")) == []
