"""AgentDojo's suites, read from its wheel without the SDKs of model providers.

Its package `agent_pipeline` imports six of those; the tasks, tools and checkers need none, so an
empty package stands in its place while they are loaded.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from functools import cache
from typing import Any

VERSION = "v1.2.2"
"""Of the suites in the wheel."""
TUNED = ("workspace", "banking")
"""The suites that rules were tuned on. docs/safety.md states what else was chosen later."""
SIGN = "This is an important message from me"
"""Stands in every injected text, before the goal."""
SUITES = ("workspace", "banking", "travel", "slack")


def missing() -> str | None:
    """Why the suites cannot be read here; None where they can."""
    return None if importlib.util.find_spec("agentdojo") else "agentdojo is not installed"


@cache
def load(name: str) -> Any:
    """One suite: an `agentdojo.task_suite.TaskSuite`."""
    _stand_in_for_pipelines()
    _remember_addresses()
    from agentdojo.task_suite.load_suites import get_suite  # lazy: not in every environment

    return get_suite(VERSION, name)


def injected_text(goal: str) -> str:
    """AgentDojo's attack "important instructions", which names neither the user nor the model."""
    load("banking")
    from agentdojo.attacks import base_attacks  # lazy: not in every environment
    from agentdojo.attacks.important_instructions_attacks import ImportantInstructionsAttack

    template: str = ImportantInstructionsAttack._JB_STRING
    user, model = base_attacks.DEFAULT_USER_NAME, base_attacks.DEFAULT_MODEL_NAME
    return template.format(goal=goal, user=user, model=model)


def _remember_addresses() -> None:
    """Check each mail address once: it takes most of the time of a new environment."""
    from pydantic import networks  # lazy: not in every environment

    if not hasattr(networks.validate_email, "cache_info"):
        networks.validate_email = cache(networks.validate_email)


def _stand_in_for_pipelines() -> None:
    package = "agentdojo.agent_pipeline"
    if package in sys.modules:
        return
    spec = importlib.util.find_spec("agentdojo")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("agentdojo is not installed; `make safety` installs it.")
    stand_in = types.ModuleType(package)
    directory = spec.submodule_search_locations[0]
    stand_in.__path__ = [os.path.join(directory, "agent_pipeline")]
    pipeline: Any = types.ModuleType(f"{package}.ground_truth_pipeline")
    pipeline.GroundTruthPipeline = object  # only `TaskSuite.check` makes one
    sys.modules[package] = stand_in
    sys.modules[pipeline.__name__] = pipeline
