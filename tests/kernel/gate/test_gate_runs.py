"""A model at work in a gate: the library's own agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate import Gate, tool
from callgate.config.home import Home
from callgate.config.trust import trust
from callgate.core.models import ModelError, ModelErrorKind
from callgate.sessions.shows import Said
from tests.features.chat.agent.talks import PlayedModel, text, uses


@tool(side_effects="none")
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def test_a_prompt_runs_to_its_end_with_the_tools_of_the_gate(tmp_path: Path) -> None:
    model = PlayedModel([uses(("a", "double", {"number": 21})), text("It is 42.")], native=True)
    said: list[str] = []
    async with Gate(tmp_path, [double], home=tmp_path / "home") as gate:
        end = await gate.run(
            "Double 21.",
            model=model,
            screen=lambda show: said.append(show.text) if isinstance(show, Said) else None,
        )
        assert (end.stop, end.text, end.calls) == ("end_turn", "It is 42.", 1)
        assert "".join(said) == "It is 42."
        other = PlayedModel([text("Of 21 and 42.")], native=True)
        await gate.run("What did we speak of?", model=other)
        assert len(other.prompts[0].messages) == 5
        assert len(await gate.messages()) == 6


async def test_without_a_model_it_says_what_to_do(tmp_path: Path) -> None:
    async with Gate(tmp_path, [double], home=tmp_path / "home") as gate:
        with pytest.raises(ModelError) as caught:
            await gate.run("Hello")
    assert caught.value.kind is ModelErrorKind.REQUEST


@pytest.mark.parametrize("trusted", [False, True])
async def test_only_a_trusted_workspace_speaks_to_the_model(tmp_path: Path, trusted: bool) -> None:
    workspace, home = tmp_path / "workspace", Home(str(tmp_path / "home"))
    workspace.mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "settings.toml").write_text('[agent]\ninstructions = "Be brief."\n')
    (workspace / "AGENTS.md").write_text("Use tabs.")
    if trusted:
        trust(home, str(workspace))
    model = PlayedModel([text("Yes.")], native=True)
    async with Gate(workspace, [double], home=home.path) as gate:
        await gate.run("Hello", model=model)
    system = model.prompts[0].system
    assert "Be brief." in system and ("Use tabs." in system) is trusted


async def test_what_a_project_says_is_read_through_the_wall(tmp_path: Path) -> None:
    workspace, home = tmp_path / "workspace", Home(str(tmp_path / "home"))
    workspace.mkdir()
    (tmp_path / "secret").write_text("hunter2")
    (workspace / "AGENTS.md").symlink_to(tmp_path / "secret")
    (tmp_path / "home").mkdir(mode=0o700)
    trust(home, str(workspace))
    model = PlayedModel([text("Yes.")], native=True)
    async with Gate(workspace, [double], home=home.path) as gate:
        await gate.run("Hello", model=model)
    assert "hunter2" not in model.prompts[0].system
