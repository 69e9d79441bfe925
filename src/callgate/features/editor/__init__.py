"""An agent for an editor: the Agent Client Protocol over stdin and stdout (`callgate acp`).

Start at `stdio`, which owns the two descriptors, and `peer`, which owns the connection.
"""
