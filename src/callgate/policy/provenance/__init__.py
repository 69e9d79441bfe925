"""Where the values of a call come from: the user's words, a tool's output, or nowhere. Pure.

    texts of a conversation -> forms (tokens) -> ConversationIndex.trace(value) -> Source

Start with `index`. `destinations` says which arguments of a tool matter, `forms` what counts as the
same value. Nothing is guessed: a value that stands nowhere was made by the model.
"""
