"""Has a scenario run in a process that is forked from a warm one: argv[1] is where it listens.

The suite starts a client for each of its scenarios, and what a client loads takes seconds. This
one loads nothing: it hands over what it was given, and ends as the other does.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as door:
    door.connect(sys.argv[1])
    given = {key: value for key, value in os.environ.items() if key.startswith("MCP_")}
    door.sendall(json.dumps([sys.argv[2], given]).encode() + b"\n")
    with door.makefile() as answer:
        sys.exit(int(answer.readline() or "1"))
