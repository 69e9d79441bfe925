"""An agent in an editor: the Agent Client Protocol over stdin and stdout (`callgate acp`).

Start at `stdio`, which has the two descriptors, and `peer`, which has the conversation.
"""
