"""The page about YAML shows the same decisions twice: what it calls equal is equal."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from callgate.config.home import Home
from callgate.config.load import load_user

PAGE = Path(__file__).parents[2] / "docs" / "decide" / "yaml.md"
PAIRS = re.findall(r"^```yaml\n(.*?)^```\n\nbecomes\n\n```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_the_settings_say_what_the_yaml_says(theirs: str, ours: str, home: Path) -> None:
    assert tomllib.loads(ours)["policy"] == yaml.safe_load(theirs)["tool_confirmation"]
    (home / "settings.toml").write_text(ours)
    load_user(Home(str(home)))


def test_there_is_something_to_compare() -> None:
    assert len(PAIRS) == 1
