"""Proxy between an editor and any ACP agent (`callgate acp-proxy -- AGENT`).

    editor <--Peer--> Proxy <--Peer--> agent, in the sandbox
                        |
                     Runtime: files, terminals and questions of the agent

Start with `proxy`, which routes the messages. `sessions` handles an agent's requests to its client,
and `messages` determines the tool of an agent's question.
"""
