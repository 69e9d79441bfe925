"""The parts of `make soak`: together they run every long test, and no test twice."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def parts() -> dict[str, tuple[list[str], list[str]]]:
    """Return the paths of each part of the Makefile, and the paths that it ignores."""
    makefile = (_ROOT / "Makefile").read_text()
    listed = re.search(r"^SOAK_PARTS := (.+)$", makefile, re.MULTILINE)
    assert listed is not None
    found = {}
    for name in listed[1].split():
        words = re.search(rf"^SOAK_{name} := (.+)$", makefile, re.MULTILINE)
        assert words is not None, f"part {name} has no paths"
        paths, _, ignored = words[1].partition("--ignore")
        found[name] = paths.split(), ignored.replace("--ignore", " ").split()
    return found


def test_each_file_with_long_tests_is_in_exactly_one_part() -> None:
    files = [
        path.relative_to(_ROOT)
        for path in (_ROOT / "tests").rglob("*.py")
        if path.parent != Path(__file__).parent  # these quote the mark
        and re.search(r"pytest\.mark\.soak\b", path.read_text())
    ]
    assert len(files) > 30
    for file in files:
        names = [
            name
            for name, (paths, ignored) in parts().items()
            if any(file.is_relative_to(path) for path in paths)
            and not any(file.is_relative_to(path) for path in ignored)
        ]
        assert len(names) == 1, f"{file} is in {names or 'no part'} of make soak"


def test_each_path_of_a_part_exists() -> None:
    for paths, ignored in parts().values():
        assert all((_ROOT / path).exists() for path in (*paths, *ignored))
