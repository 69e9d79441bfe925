"""`use_skill`: a model reads the instructions of a skill that fits its work."""

from __future__ import annotations

from typing import Any

from callgate.agent.skills import Skills, SkillUnreadable, UnknownSkill
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput


class UseSkill:
    definition = ToolDefinition(
        name="use_skill",
        description=(
            "Read a skill: instructions of the user for certain work, to be followed. Your"
            " instructions list the skills there are. With `file` read a text file that lies"
            " beside those instructions, if they name one."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "file": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Relative to the skill's directory.",
                },
            },
            "required": ["name"],
        },
        side_effects=SideEffects.READ,
        capabilities=frozenset({Capability.READ_ONLY}),
        path_params=(),  # `file` is of the skill, and not of the workspace
        kind="read",
        source="builtin",
    )

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        name, file = input["name"], input.get("file")
        try:
            if file is None:
                text = self._skills.load(name, context.workspace_path, context.session_id)
            else:
                text = self._skills.file(name, file, context.workspace_path)
        except UnknownSkill as error:
            raise ToolExecutionError(str(error), reason="unknown_skill") from None
        except SkillUnreadable as error:
            raise ToolExecutionError(str(error), reason="skill_unreadable") from None
        return ToolOutput(content=[TextBlock(text)])

    async def cancel(self) -> bool:
        return False
