"""When an instance was used last."""

from __future__ import annotations

from callgate.instance.maintenance import Usage


def test_it_is_over_once_nothing_has_happened_for_as_long_as_the_limit() -> None:
    now = 100.0
    usage = Usage(60, lambda: now)
    now = 159.9
    assert not usage.is_over
    usage.note()
    now = 200.0
    assert not usage.is_over
    now = 220.0
    assert usage.is_over
