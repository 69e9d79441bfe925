"""Chat: commands, models and their keys, and the tools of an agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.config.home import Home
    from callgate.config.schema import EmbeddingsTable
    from callgate.core.models import Key, Model
    from callgate.dispatch.tools.sources import ToolSource
    from callgate.features.chat.agent.agent import Agent
    from callgate.features.chat.models.embeddings import Embeddings
    from callgate.instance.wiring.runtime import Wired


def _settings() -> type:
    from callgate.features.chat.settings import ChatSettings  # lazy: with a table in the file  # noqa: PLC0415

    return ChatSettings


def _commands() -> Mapping[str, Any]:
    from callgate.features.chat.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _checks() -> Mapping[str, Any]:
    from callgate.features.chat.commands.keys import check_models  # lazy: for doctor  # noqa: PLC0415

    return {"models": check_models}


def _offer_models(home: Home) -> None:
    from callgate.features.chat.commands.keys import offer_models  # lazy: for init  # noqa: PLC0415

    offer_models(home)


def _tools(wired: Wired) -> ToolSource:
    """Return the tools that only an agent in a turn has."""
    from callgate.dispatch.tools.sources import (  # lazy: for a model at work  # noqa: PLC0415
        FixedTools,
        OnCondition,
    )
    from callgate.features.chat.agent.tools import (  # lazy: as above  # noqa: PLC0415
        SpawnAgent,
        UpdatePlan,
        subagents,
    )

    factories = (partial(SpawnAgent, subagents(wired)), UpdatePlan)
    return OnCondition(FixedTools(factories), subagents(wired).why_not)


def _open_agent(wired: Wired, model: str | Model | None) -> Agent:
    from callgate.features.chat.wiring import open_agent  # lazy: for a model at work  # noqa: PLC0415

    return open_agent(wired, model)


def _open_model(wired: Wired) -> Model:
    from callgate.features.chat.wiring import open_model  # lazy: for a model at work  # noqa: PLC0415

    return open_model(wired.home, wired.settings, None)


def _find_key(home: Home, service: str, key_env: str | None, usual: str | None) -> Key | None:
    from callgate.features.chat.models.make import (  # lazy: if a service needs one  # noqa: PLC0415
        find_service_key,
    )

    return find_service_key(service, home, os.environ, key_env=key_env, usual=usual)


def _open_embedder(home: Home, table: EmbeddingsTable) -> Embeddings:
    from callgate.features.chat.models.embeddings import (  # noqa: PLC0415
        # lazy: if a search needs one
        open_embedder,
    )

    return open_embedder(home, table)


FEATURE = Feature(
    name="chat",
    settings=_settings,
    commands=_commands,
    checks=_checks,
    tools=_tools,
    ports={
        "offer_models": _offer_models,
        "open_agent": _open_agent,
        "open_model": _open_model,
        "find_key": _find_key,
        "open_embedder": _open_embedder,
    },
)
