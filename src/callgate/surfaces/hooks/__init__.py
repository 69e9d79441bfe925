"""Calls of agents that are not ours, judged before they run them: what their hooks submit.

    event -> `service` -> session of that agent, tool of ours -> Runtime -> verdict -> the hook
    `performing` stands in the tool's place until the agent reports the end of the call

Two ways in lead to the service: a Unix socket of its own (`listener`), and HTTP
(`surfaces.http.hook_endpoint`). Both take events of one agent, with its token, and nothing else.
"""
