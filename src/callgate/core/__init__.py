"""The values, errors and ports that every other package speaks.

Nothing here touches a file, a socket, a process or a clock, and nothing here imports the
rest of callgate. Start with `calls` and `results` (what goes in and what comes out), then
`tools` (what runs in between) and `errors` (every way in which it does not).
"""
