"""The command line. A command loads its own module when it runs, and next to nothing else.

    main ---> dispatch ---> command_line: which command, its options (`families`)
      |           |
      |           +-------> command_modules ---> the function of the command
      |
      +-----> options ---> remote.call: `callgate call` through a running instance
                     ---> editor.acp:  `callgate acp`

Start reading at `main`. `commands/call` is the command that matters; `embedded` opens the runtime
that it and most others use where no instance is asked.

    commands/   one module a command, for those that need no more
    chat/       `chat` and `run`: a model at work
    hosts/      `host`, `hosts`              mcp/      `mcp ...`
    serving/    `serve`, `status`, `stop`, `dashboard`
    editor/     `acp`                        setup/    `init`
    doctor/     the checks of `doctor`       records/  what commands read from the store
    remote/     what a running instance does for a command
    ui/         what a person at a terminal sees and types
    families/   what each command takes, and its help

Data goes to stdout, everything else to stderr. Text that somebody else wrote reaches a terminal
through `ui.visible` alone. What `remote.call` imports is light: no argparse, asyncio, json or re.
"""
