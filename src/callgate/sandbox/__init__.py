"""What a command may touch, and how it ends: its processes, their output, their whole tree.

Start with `jails`, what is wanted, and `profiles`, the three that people speak of; `plans`
chooses the backends that keep a jail on this machine, and `machines` tries them out. Then
`broker` and `keeper`: who starts a command and stays with it; `broker_client` is our end of
them. `trees` finds the descendants of a command, `outputs` keeps what they write in bounds.
"""
