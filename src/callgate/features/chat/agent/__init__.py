"""The agent loop: a model works in turns with the tools of a session.

    Agent.turn -> Turn: history -> prompts -> model -> replies -> history -> ...
                                                          |
                                                   outputs, dispatcher

Start with `turns.Turn.run`, which is that line as a function. Models with native tool calls and
models that write their calls as text differ in two places only: the prompt (`prompts`) and the
parsing of the reply (`replies`). All other code uses the blocks of `core/content.py`, so a
conversation may change its model at any time.
"""
