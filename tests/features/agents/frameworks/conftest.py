"""These run where the frameworks are: `make frameworks` (see scripts/frameworks.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.features.agents.frameworks.contract")

collect_ignore_glob = [] if Path(sys.prefix).name == "frameworks" else ["test_*.py"]
