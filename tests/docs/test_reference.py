"""The reference pages are what the code says today, and every setting says what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.config.schema import Settings
from scripts.reference import PAGES, undescribed

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_reference_is_what_the_code_says(page: str) -> None:
    assert (PROJECT / page).read_text() == PAGES[page](), "run `make reference` and commit the page"


def test_every_setting_says_what_it_is_for() -> None:
    assert undescribed(Settings) == []
