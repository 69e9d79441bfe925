"""uvicorn's version is exact: our connections derive from classes that it may change at any time."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from callgate.features.web.server import WebSocketProtocol, _Connection

ROOT = Path(__file__).parents[3]


def test_the_version_is_exact_because_the_limits_of_connections_use_private_classes() -> None:
    """uvicorn has no public interface for the limits that callgate sets: the time for a head and a
    body, connections without a token, bytes that wait, and frames that are sent to many clients.
    Raise the version together with the tests of this directory."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [each for each in project["dependencies"] if each.startswith("uvicorn")]
    assert needed == [f"uvicorn=={version('uvicorn')}"]


@pytest.mark.parametrize("ours", [_Connection, WebSocketProtocol])
def test_each_method_that_extends_the_one_of_uvicorn_finds_it(ours: type) -> None:
    (theirs,) = ours.__bases__
    assert theirs.__module__.startswith("uvicorn.protocols.")
    extended = set(re.findall(r"super\(\)\.(\w+)\(", inspect.getsource(ours)))
    assert extended
    assert {name for name in extended if not hasattr(theirs, name)} == set()
