"""constraints.txt pins everything pyproject.toml asks for, by hash, and names no place."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.spec.requirements import TESTS

_TEXT = (TESTS.parent / "constraints.txt").read_text(encoding="utf-8")
_PYPROJECT = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
_PIN = re.compile(r"([a-z0-9-]+)==([\w.]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def _pins(text: str) -> dict[str, str]:
    return {name: version for name, version, _ in _PIN.findall(text)}


def _unmet(requirements: list[str], pins: dict[str, str]) -> list[str]:
    """The requirements that no pin meets; our own extras were resolved on the way."""
    wanted = [Requirement(text) for text in requirements]
    return [
        str(need)
        for need in wanted
        if need.name != "callgate" and not need.specifier.contains(pins.get(canonicalize_name(need.name), "0"))
    ]


def test_every_line_is_a_comment_or_a_pin_with_hashes() -> None:
    rest = _PIN.sub("", _TEXT)
    assert [line for line in rest.splitlines() if line and not line.startswith("# ")] == []


def test_no_address_is_named() -> None:
    assert re.findall(r"\w+://|--index|--find-links|--extra", _TEXT) == []


def test_what_running_and_building_need_stands_above_the_development_tools() -> None:
    above, heading, _ = _TEXT.partition("\n# for development\n")
    needed = _PYPROJECT["project"]["dependencies"] + _PYPROJECT["build-system"]["requires"]
    assert heading
    assert _unmet(needed, _pins(above)) == []


def test_what_development_needs_is_pinned() -> None:
    extras = _PYPROJECT["project"]["optional-dependencies"]
    assert _unmet(extras["dev"] + extras["pydantic"], _pins(_TEXT)) == []
