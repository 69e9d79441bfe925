"""Every command carries a mark of its own, behind those of the commands around it."""

from __future__ import annotations

import pytest

from callgate.sandbox.processes.command_marks import MARK, new_mark


def test_a_command_inside_another_carries_both_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    number, outer = new_mark()
    assert outer == {MARK: str(number)}
    monkeypatch.setenv(MARK, outer[MARK])
    inner_number, inner = new_mark()
    assert inner == {MARK: f"{number}.{inner_number}"}
