"""Calls of agents that are not ours, judged before they run them: what their hooks submit.

    event -> `service` -> session of that agent, tool of ours -> Runtime -> verdict -> the hook
    `performing` stands in the tool's place until the agent reports the end of the call

The only way in is a Unix socket (`listener`) in a private directory: it takes events of one agent,
with that agent's token. There is no HTTP route: an agent that posts its events to a port cannot
verify which process listens there.
"""
