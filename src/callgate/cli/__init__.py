"""The command line: one module a command, loaded only when that command runs.

    main -> dispatch -> commands (which there are) -> families (what each takes)
                     -> the command's module
         -> fast -> remote: a call that a running instance makes

Start reading at `main`. What `remote` imports is light, for it is as fast as its imports.
`call` is the command that matters; `confirmation_prompt` puts its question to the
person at the terminal, and `visible` is the only way by which text that somebody else
wrote reaches that terminal. Data goes to stdout, everything else to stderr.
"""
