"""Hooks of third-party agents: their calls are checked before the agent runs them.

    event -> `service` -> session of that agent, callgate tool -> Runtime -> verdict -> the hook
    `agent_calls` has the tool that represents the call until the agent reports its end

    bytes -> `events.read` -> HookEvent -> `agent_tools.translate` -> a call of a callgate tool
    Verdict -> `events.write` -> bytes in the format of that agent

The only entry point is a Unix socket (`listener`) in a private directory. It accepts an agent's
events only with that agent's token. There is no HTTP route, because an agent that posts its events
to a port cannot verify which process listens there.

Start with `events`. `known` has the differences between agents.
"""
