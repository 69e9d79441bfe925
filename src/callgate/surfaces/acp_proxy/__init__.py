"""Any ACP agent behind the gate, for any editor (`callgate acp-proxy -- AGENT`).

    editor <--Peer--> Proxy <--Peer--> agent, in the sandbox
                        |
                     Runtime: files, terminals and questions of the agent

Start at `proxy`, which knows where each message goes; `sessions` has what an agent asks of its
client, `judging` reads which tool a question of the agent is about.
"""
