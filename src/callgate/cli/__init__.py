"""The command line: one module a command, loaded only when that command runs.

    main -> commands (which there are, what each takes) -> the command's module, its `run`

Start reading at `main`. `call` is the command that matters; `asking` puts its question to the
person at the terminal, and `visible` is the one door through which text that somebody else
wrote reaches that terminal. Data goes to stdout, everything else to stderr.
"""
