"""MCP servers that are packages: `npx NAME`, `uvx NAME`, `pipx run NAME`.

    package_commands  a command line -> which packages, and which program of them
    managers          how npm, uv and pip put these into a directory, and what they put there
    environment       what the fetching step sees of the user's settings, and where caches are
    trees             whether a directory is as it was
    installations     where the packages of a server are
    server_packages   fetches them, in a sandbox of that step's own

Packages are fetched once. The server then runs
from its directory, which it cannot change.
"""
