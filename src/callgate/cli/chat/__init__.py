"""The conversation of `callgate chat` at a terminal. `commands/chat.py` starts it."""
