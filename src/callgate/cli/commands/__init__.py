"""One module a command, named like it, with a function for each subcommand."""
