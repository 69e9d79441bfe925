"""Skills as prompts: a client shows them to its user, who begins with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mcp_types as types

from callgate.agent.skills import Skills, SkillUnreadable, UnknownSkill
from callgate.core.errors import ToolExecutionError
from callgate.surfaces.mcp.resources import Here, Typed

_REQUEST = types.PromptArgument(
    name="request", description="What to do with it, in your own words.", required=False
)


class SkillPrompts:
    def __init__(self, skills: Callable[[], Skills]) -> None:
        self._skills = skills

    async def listed(self, here: Here) -> Sequence[types.Prompt]:
        return [
            types.Prompt(name=each.name, description=each.description, arguments=[_REQUEST])
            for each in self._skills().available(here.session)
        ]

    async def get(
        self, name: str, arguments: Mapping[str, str], here: Here
    ) -> types.GetPromptResult | None:
        try:
            text = self._skills().load(name, here.session.workspace, here.session.id)
        except UnknownSkill:
            return None
        except SkillUnreadable as error:
            raise ToolExecutionError(str(error), reason="skill_unreadable") from None
        request = arguments.get("request", "").strip()
        content = types.TextContent(type="text", text=f"{request}\n\n{text}" if request else text)
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def complete(self, prompt: str, typed: Typed, here: Here) -> Sequence[str]:
        return []  # nobody knows what a person wants to do
