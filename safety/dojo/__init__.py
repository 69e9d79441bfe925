"""Agents with applications as tools: AgentDojo's tasks, ground-truth calls and checkers.

`suites` reads them from the installed wheel, `declarations` says what its functions may do, `runs`
plays one task or one attack, `held_out` brings injections that no rule was tuned on.
"""
