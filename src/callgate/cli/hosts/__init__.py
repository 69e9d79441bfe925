"""`callgate host` and `callgate hosts`: for authors of tool hosts, and for their users.

`host` runs one, `new` writes one (`samples`), `check` tries one out (`conversation`, `probes`).
`hosts` lists, restarts and reloads those of the settings (`lists`, `log_files`, `reloads`).
"""
