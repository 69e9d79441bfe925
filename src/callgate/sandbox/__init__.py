"""What a command may touch, and how it ends: its processes, their output, their whole tree.

Start with `launch`: the one door through which a command becomes processes, and the place
where a real sandbox is put around them. Today's only launcher restricts nothing. `processes`
runs one command from its start to the end of its last descendant, `trees` finds those
descendants, `outputs` keeps what they write within bounds.
"""
