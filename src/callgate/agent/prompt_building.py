"""What a model is asked: the conversation in its own words, and the tools that it is told of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callgate.agent.instructions import instructions
from callgate.agent.outputs import native_outputs
from callgate.agent.projection import to_native, to_text
from callgate.core.messages import Message
from callgate.core.models import Model, Prompt
from callgate.core.sessions import Mode, Session
from callgate.core.tools import ToolDefinition
from callgate.dispatch.dispatcher import ToolDispatcher
from callgate.dispatch.tools.registry import Registry
from callgate.protocol.toolcalls.teach import document_schema, teach
from callgate.protocol.toolcalls.values import OUTPUTS, TYPES


def tools_for(model: Model, dispatcher: ToolDispatcher, session: Session) -> list[ToolDefinition]:
    """The tools that a model is told of; what shows something is told by `prompt_for`."""
    if model.catalogue_names:
        return _catalogue(dispatcher.registry, session)
    every = dispatcher.get_definitions_for_session(session)
    return [tool for tool in every if tool.name not in OUTPUTS]


def _catalogue(registry: Registry, session: Session) -> list[ToolDefinition]:
    """What the text format names, each under that name, also what is an alias of a tool of ours
    or is listed for nobody."""
    if session.mode is Mode.NONE:
        return []
    found = ((name, registry.find(name, session)) for name in sorted(TYPES - OUTPUTS))
    return [
        msgspec.structs.replace(tool.definition, name=name, aliases=())
        for name, tool in found
        if tool is not None and registry.unusable_because(tool, session) is None
    ]


def prompt_for(
    model: Model,
    session: Session,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    extra_instructions: str,
    speech: bool,
    result_chars: int,
) -> Prompt:
    """Args:
    extra_instructions: the user's part of the instructions.
    speech: the user can hear what is said aloud.
    result_chars: of one result that the model is shown.
    """
    if model.native_tools:
        return Prompt(
            messages=to_native(messages, result_chars),
            system=instructions(session, extra=extra_instructions),
            tools=[*tools, *native_outputs(speech=speech)],
        )
    schema = None
    if model.constrained:
        schema = document_schema(tools, speech=speech, short=model.small)
    lesson = teach(tools, speech=speech, short=model.small)
    return Prompt(
        messages=to_text(messages, result_chars),
        system=instructions(session, extra=extra_instructions, lesson=lesson),
        output_schema=schema,
    )
