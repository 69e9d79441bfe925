"""The process in which Python tools run: the host's side of `protocol.host_v1`.

    reading -> serving  -+-> the main thread: sync work, one a time
                         +-> tasks, the loop's thread: async work, side by side

Start with `serving`: what becomes of each request. `reading` says which thread reads the next
one: that which is likely to run it. `plugins` is what a file or module offers,
`contexts` what a tool in here may use, and `pipes` the one way to the runtime, from any thread.
`streams` keeps what plugins print away from it. `scripts` makes a plugin of executables, and
`zygote` is a warm process from which ready hosts are forked.
"""
