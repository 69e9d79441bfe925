"""The permission policy: pure functions over frozen values.

Start with `rules` (the parts of a policy), then `decide` (the one algorithm that evaluates it) and
`commands` (rules about shell command lines). Nothing here reads a file, a clock or a database: the
settings come from `config`, and `dispatch.authorize` asks the questions.
"""
