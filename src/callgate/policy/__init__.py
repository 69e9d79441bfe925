"""Who may do what without asking: pure functions over frozen values.

`rules` holds what a policy is made of, `decide` the one algorithm that reads it, and
`commands` what a shell command line says it will run; `backtesting` tries other settings on the
calls on record. Nothing here reads a file, a clock
or a database; the settings come from `config`, the questions from `dispatch.authorize`.
"""
