"""Makes an agent from the settings: its model, key, limits and instructions."""

from __future__ import annotations

import os
from functools import partial

from callgate.config.home import Home
from callgate.config.schema import Settings
from callgate.config.trust import is_trusted
from callgate.core.models import Model
from callgate.core.sessions import Mode, Session
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.agent.prompts import project_instructions
from callgate.features.chat.agent.tools import subagents
from callgate.features.chat.agent.turns import TurnLimits
from callgate.features.chat.models.make import find_key, find_table, make_model
from callgate.features.chat.settings import ChatSettings
from callgate.instance.wiring.runtime import Wired
from callgate.runtime import Runtime
from callgate.sources.skills import Skills


def open_model(home: Home, settings: Settings, name: str | None) -> Model:
    """Return the named or the default model. Raises `ModelError` with advice."""
    chat = settings.of(ChatSettings)
    found, table = find_table(name or chat.model, chat.models, os.environ)
    return make_model(found, table, find_key(found, table, home, os.environ))


def open_agent(wired: Wired, model: str | Model | None) -> Agent:
    """Return an agent with a model, or with the named or default model. Raises `ModelError`."""
    if model is None or isinstance(model, str):
        model = open_model(wired.home, wired.settings, model)
    return _make_agent(wired, model)


def _make_agent(wired: Wired, model: Model) -> Agent:
    """Return an agent for a runtime. Packages add to its instructions and provide its speech."""
    table, packs = wired.settings.of(ChatSettings).agent, wired.packs
    limits = TurnLimits(
        cycles=table.cycles,
        calls_per_cycle=table.calls_per_cycle,
        calls_per_turn=table.calls_per_turn,
        result_chars=table.result_chars,
        tokens=table.tokens_per_turn,
        time_s=table.turn_time_s,
    )

    def extra_instructions(session: Session) -> str:
        trusted = is_trusted(wired.home, session.workspace)
        sections = (
            table.instructions,
            project_instructions(session.workspace) if trusted else "",
            _skill_instructions(wired.runtime, wired.skills, session),
            packs.prompt(session),
        )
        return "\n\n".join(sections).strip()

    speaker = packs.speaker() if table.speak is True else None
    return Agent(
        wired.runtime,
        model,
        limits=limits,
        extra_instructions=extra_instructions,
        speaker=speaker,
        client_speaks=table.speak == "client",
        subagents=subagents(wired),
    )


def _skill_instructions(runtime: Runtime, skills: Skills, session: Session) -> str:
    """Return the skill list for the system prompt. Register `use_skill` when there is a first
    skill.
    """
    text = "" if session.mode is Mode.NONE else skills.listing(session)
    if text:
        from callgate.features.chat.agent.tools import (  # lazy: most homes have no skills  # noqa: PLC0415
            UseSkill,
        )

        if runtime.tools.find(UseSkill.definition.name) is None:
            runtime.tools.register(partial(UseSkill, skills))
    return text
