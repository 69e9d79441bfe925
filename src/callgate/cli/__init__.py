"""The command line: one module a command, loaded only when that command runs.

    main -> full -> commands (which there are) -> families (what each takes)
                 -> the command's module
         -> quick -> remote: a call that a running instance makes

Start reading at `main`. What `remote` imports is light, for it is as fast as its imports.
`call` is the command that matters; `asking` puts its question to the
person at the terminal, and `visible` is the one door through which text that somebody else
wrote reaches that terminal. Data goes to stdout, everything else to stderr.
"""
