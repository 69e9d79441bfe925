"""The hooks of coding agents, without I/O: what they send, and the answers that they understand.

    bytes -> `dialects.read` -> HookEvent -> `agent_tools.translate` -> a call of a tool of ours
    Verdict -> `dialects.write` -> bytes in the form of that agent

Start with `dialects`: only that module knows what each agent makes of an answer. `tool_tables` has
the tools of each agent, and their arguments.
"""
