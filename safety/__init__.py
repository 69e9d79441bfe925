"""The published safety figure: how many attacks on an agent reach their goal, behind which gate.

Start reading with `values` (what an episode and a score are), then `episodes` (the scripted,
fully hijacked model), `contestants/` (the gates), `dojo/` (agents with applications as tools) and
`shell/` (agents with a shell). `run` is the command, docs/safety.md the page.
"""
