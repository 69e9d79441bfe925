"""From settings to an agent: its model, its key, its limits and what it is told."""

from __future__ import annotations

import logging
import os
from functools import partial

from callgate.agent.agent import Agent
from callgate.agent.instructions import project_instructions
from callgate.agent.limits import TurnLimits
from callgate.agent.skills import Skills
from callgate.agent.subagents import Subagents
from callgate.config.home import Home
from callgate.config.keys import find_key
from callgate.config.load import SettingsError
from callgate.config.schema import Settings
from callgate.config.trust import admits_skills, is_trusted
from callgate.core.models import Model
from callgate.core.sessions import Mode, Session
from callgate.models.make import find_table, make_model
from callgate.runtime import Runtime
from callgate.sources.packs.packs import Packs

_log = logging.getLogger("callgate.agent")


def open_model(home: Home, settings: Settings, name: str | None) -> Model:
    """The model of that name, or the usual one. Raises `ModelError` with what to do."""
    found, table = find_table(name or settings.model, settings.models, os.environ)
    return make_model(found, table, find_key(found, table, home, os.environ))


def make_skills(home: Home, settings: Settings) -> Skills:
    """The skills of a home, and of the workspaces that it trusts."""

    def trusts(workspace: str) -> bool:
        try:
            return admits_skills(home, workspace)
        except SettingsError as error:
            _log.error("no workspace brings skills: %s", error)
            return False

    return Skills(home.path, trusts=trusts, unknown=settings.agent.unknown_slash)


def make_agent(
    runtime: Runtime,
    home: Home,
    settings: Settings,
    model: Model,
    skills: Skills,
    subagents: Subagents,
    packs: Packs,
) -> Agent:
    """An agent at work in a runtime; `packs` add to what it is told, and let it speak."""
    table = settings.agent
    limits = TurnLimits(
        cycles=table.cycles,
        calls_per_cycle=table.calls_per_cycle,
        calls_per_turn=table.calls_per_turn,
        result_chars=table.result_chars,
        tokens=table.tokens_per_turn,
        time_s=table.turn_time_s,
    )

    def extra_instructions(session: Session) -> str:
        trusted = is_trusted(home, session.workspace)
        sections = (
            table.instructions,
            project_instructions(session.workspace) if trusted else "",
            _skill_instructions(runtime, skills, session),
            packs.prompt(session),
        )
        return "\n\n".join(sections).strip()

    speaker = packs.speaker() if table.speak is True else None
    return Agent(
        runtime.dispatcher,
        runtime.turns,
        model,
        limits=limits,
        extra_instructions=extra_instructions,
        speaker=speaker,
        client_speaks=table.speak == "client",
        subagents=subagents,
    )


def _skill_instructions(runtime: Runtime, skills: Skills, session: Session) -> str:
    """What a model is told of the skills; with the first there is comes the tool to read them."""
    text = "" if session.mode is Mode.NONE else skills.told(session)
    if text:
        from callgate.agent.skill_tool import UseSkill  # lazy: most homes have no skills  # noqa: PLC0415

        if runtime.find_tool(UseSkill.definition.name) is None:
            runtime.register(partial(UseSkill, skills))
    return text
