"""constraints.txt and the lists of the benchmarks pin what is asked for, by hash, and name no place."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.peers import ENGINES, PROXIES
from tests.spec.requirements import TESTS

_TEXT = (TESTS.parent / "constraints.txt").read_text(encoding="utf-8")
_SAFETY = (TESTS.parent / "safety" / "requirements.txt").read_text(encoding="utf-8")
_PEERS = (TESTS.parent / "benchmarks" / "peers.txt").read_text(encoding="utf-8")
_ENGINES = (TESTS.parent / "benchmarks" / "engines.txt").read_text(encoding="utf-8")
_PROXIES = (TESTS.parent / "benchmarks" / "proxies.txt").read_text(encoding="utf-8")
_LISTS = {"constraints": _TEXT, "peers": _PEERS, "safety": _SAFETY, "engines": _ENGINES, "proxies": _PROXIES}
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


@pytest.mark.parametrize("text", _LISTS.values(), ids=_LISTS)
def test_every_line_is_a_comment_or_a_pin_with_hashes(text: str) -> None:
    rest = _PIN.sub("", text)
    assert [line for line in rest.splitlines() if line and not line.startswith("# ")] == []


@pytest.mark.parametrize("text", _LISTS.values(), ids=_LISTS)
def test_no_address_is_named(text: str) -> None:
    assert re.findall(r"\w+://|--index|--find-links|--extra", text) == []


def test_what_running_and_building_need_stands_above_the_development_tools() -> None:
    above, heading, _ = _TEXT.partition("\n# for development\n")
    needed = _PYPROJECT["project"]["dependencies"] + _PYPROJECT["build-system"]["requires"]
    assert heading
    assert _unmet(needed, _pins(above)) == []


def test_what_development_needs_is_pinned() -> None:
    extras = _PYPROJECT["project"]["optional-dependencies"]
    assert _unmet(extras["dev"] + extras["pydantic"], _pins(_TEXT)) == []


def test_what_the_benchmarks_need_is_pinned_beside_what_callgate_runs_on() -> None:
    running = _pins(_TEXT.partition("\n# for development\n")[0])
    peers = _pins(_PEERS)
    assert running.keys() & peers.keys() == set()
    assert _unmet(_PYPROJECT["project"]["optional-dependencies"]["bench"], running | peers) == []


def test_what_the_safety_figure_needs_is_pinned_beside_what_callgate_runs_on() -> None:
    running = _pins(_TEXT.partition("\n# for development\n")[0])
    safety = _pins(_SAFETY)
    assert running.keys() & safety.keys() == set()
    assert _unmet(_PYPROJECT["project"]["optional-dependencies"]["safety"], running | safety) == []
    assert {"agentdojo", "inspect-evals"} <= safety.keys()


def test_the_engines_that_are_measured_beside_it_are_pinned() -> None:
    assert ENGINES and {*ENGINES} <= _pins(_ENGINES).keys()


def test_the_proxies_that_are_measured_beside_it_are_pinned() -> None:
    assert PROXIES and _unmet(PROXIES, _pins(_PROXIES)) == []
