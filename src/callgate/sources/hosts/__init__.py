"""Tools of other processes: `links` speaks to one process, `hosts` keeps it alive, `tools` are
what the dispatcher sees of it, `host_tools` is the source of them all."""
