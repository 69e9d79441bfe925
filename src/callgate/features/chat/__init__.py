"""Chat: models, the agent loop, sub-agents, and the commands `chat` and `run`."""
