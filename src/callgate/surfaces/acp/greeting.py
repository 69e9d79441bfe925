"""Answers `initialize`: constants, so that a client waits for nothing that has to be loaded."""

from __future__ import annotations

from typing import Any

from callgate.core.version import __version__
from callgate.protocol.acp.initialize import (
    AgentAuth,
    AgentCapabilities,
    AgentInfo,
    AgentMethod,
    Initialize,
    Initialized,
    McpCapabilities,
    PromptCapabilities,
    SessionCapabilities,
    TerminalMethod,
    agreed,
)
from callgate.protocol.acp.reading import read_params

SETTINGS_METHOD = "settings"
"""`authenticate` with it says whether the settings have a model that can be used."""
SETUP_METHOD = "setup"


def greet(params: Any, *, unstable: bool) -> tuple[Initialize, Initialized]:
    """What the client said of itself, and our answer. Raises `RpcError`."""
    request = read_params(Initialize, params)
    methods: list[AgentMethod | TerminalMethod] = [
        AgentMethod(
            id=SETTINGS_METHOD,
            name="callgate settings",
            description="Uses the model and the key that callgate is set up with.",
        )
    ]
    if request.capabilities.signs_in_at_a_terminal:
        methods.append(
            TerminalMethod(
                id=SETUP_METHOD,
                name="callgate setup",
                description="Asks in a terminal for a model and its key.",
                args=["--setup"],
                type="terminal",
            )
        )
    return request, Initialized(
        protocol_version=agreed(request.protocol_version),
        agent_capabilities=AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=True, audio=False, embedded_context=True),
            mcp_capabilities=McpCapabilities(http=True, sse=False),
            session_capabilities=SessionCapabilities(
                list={},
                resume={},
                close={},
                delete={},
                additional_directories={},
                fork={} if unstable else None,
            ),
            auth=AgentAuth(logout={}),
        ),
        agent_info=AgentInfo(name="callgate", title="callgate", version=__version__),
        auth_methods=methods,
    )
