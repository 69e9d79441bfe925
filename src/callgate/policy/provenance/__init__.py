"""The source of each value in a call: the user's words, a tool's output, or nothing. Pure.

    texts of a conversation -> forms (tokens) -> ConversationIndex.trace(value) -> Source

Start with `index`. `destinations` selects the arguments of a tool that matter, `forms` defines
equality of values. There is no guessing: the model made a value that appears in no text.
"""
