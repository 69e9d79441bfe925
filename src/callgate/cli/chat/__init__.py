"""`callgate chat` and `callgate run`: a model at work for a person, or for a script.

    chat    the conversation at a terminal: `input_lines` in, `screen` and `cards` out
    run     one prompt, for scripts

The runtime works on an event loop in a thread of its own (`loop_thread`), beside the thread that
has the keyboard. `slash_commands` are what a person types at the prompt besides prompts.
"""
