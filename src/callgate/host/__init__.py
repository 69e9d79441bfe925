"""The process in which Python tools run: the host's side of `protocol.host_v1`.

    reader thread          main thread                     loop thread
    pipes -> serving  -+-> turns: sync work, one a time
                       +-> tasks: async work, side by side ----^

Start with `serving`: what becomes of each request. `plugins` is what a file or module offers,
`contexts` what a tool in here may use, and `pipes` the one way to the runtime, from any thread.
`streams` keeps what plugins print away from it. `scripts` makes a plugin of executables, and
`zygote` is a warm process that forks ready hosts.
"""
