"""Tools that write where they should not, and tools that end badly."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings

from callgate import tool

print("printed while it was imported")
os.write(1, b"written while it was imported\n")
warnings.warn("warned while it was imported", stacklevel=1)


def _everywhere() -> None:
    print("printed")
    print("printed to the first stdout", file=sys.__stdout__, flush=True)
    sys.stdout.write("written")
    sys.stdout.flush()
    os.write(1, b"raw\n")
    os.write(1, b'{"jsonrpc": "2.0", "method": "session/update", "params": {}}\n')
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    libc.fflush(None)
    subprocess.run(["/bin/echo", "from a child"], check=True)
    os.system("echo from a shell; echo and from its descriptor 1 >&1")
    warnings.warn("warned", stacklevel=1)


@tool(side_effects="none")
async def noisy_here() -> str:
    """In the process of the agent."""
    _everywhere()
    return "done"


@tool(side_effects="none")
def noisy_apart() -> str:
    """In a process of its own."""
    _everywhere()
    return "done"


@tool(side_effects="none")
async def fails_here() -> str:
    """An exception that nobody expected."""
    raise RuntimeError("raised by a tool")


@tool(side_effects="none")
def dies_apart() -> str:
    """Its process ends under it."""
    os.write(1, b"last words\n")
    os.abort()


@tool(side_effects="none")
async def dies_here() -> str:
    """The agent ends under it."""
    print("last words", flush=True)
    os.write(1, b"last words\n")
    os.abort()
