"""Commands that are one module each, named like it, with a function for each subcommand."""
