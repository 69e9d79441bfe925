"""`callgate acp`: the agent of an editor, its set-up, and the settings of editors."""
