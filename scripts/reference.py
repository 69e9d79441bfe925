"""Generate the reference pages of commands and settings from the code.

    python -m scripts.reference      (`make reference` calls it)

The pages are committed, so readers need no build; a test compares them with the output of this
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference_commands import commands_page
from scripts.reference_settings import settings_page, undescribed

__all__ = ["PAGES", "undescribed"]

ROOT = Path(__file__).resolve().parent.parent
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/settings.md": settings_page,
}


def main() -> None:
    for page, make in PAGES.items():
        (ROOT / page).write_text(make())
        print(page)


if __name__ == "__main__":
    main()
