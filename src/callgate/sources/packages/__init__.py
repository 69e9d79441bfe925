"""MCP servers that are packages: `npx NAME`, `uvx NAME`, `pipx run NAME`.

    package_commands  a command line -> which packages, and which program of them
    managers          how npm, uv and pip put these into a directory, and what they put there
    environment       what the fetching step sees of the user's settings, and where caches are
    trees             whether a directory is as it was

Packages are fetched once, in a sandbox of that step's own (`wiring_packages`). The server then runs
from its directory, which it cannot change.
"""
