"""The sandbox of a command: its access, its processes, their output, and their end.

Start with `jails`, the requirement, and `profiles`, the three named jails. `plans` chooses the
backends that enforce a jail on this machine, and `machines` probes them. Then read `broker` and
`keeper`, the processes that start and supervise a command, and `broker_client`, our end of them.
`meters` measures a command and finds its descendants, `outputs` bounds their output.
"""
