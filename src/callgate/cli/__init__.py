"""The command line. Each command imports its module when it runs, and little else.

    main ---> dispatch ---> command_line: which command, its options, its function
      |                         |
      |                         +--> COMMANDS of each package and of each feature (`feature.load`)
      |
      +-----> options ---> remote_call: `callgate call` through a running instance

Start reading at `main`. `commands/call` is the most important command. `embedded` opens the
runtime of commands that use no running instance.

    commands/   all commands of the kernel, except
    hosts/      `host`, `hosts`
    ui/         terminal input and output

`connection` and `instance_http` send the requests of commands to a running instance. `remote_call`
and `connection` are light to import.

Data goes to stdout, everything else to stderr. Untrusted text reaches a terminal only through
`ui.visible`. For a fast start, `remote_call` imports no argparse, asyncio, json or re.
"""
