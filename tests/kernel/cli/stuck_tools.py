"""Tools that keep the interpreter's lock in C for longer than anyone waits."""

import re

from callgate import tool

ENDLESS = r"(a+)+$"
TEXT = "a" * 64 + "b"


@tool(side_effects="none", isolate=False)
async def stuck_on_the_loop() -> str:
    """Match on the event loop."""
    print("stuck", flush=True)
    re.match(ENDLESS, TEXT)
    return "never"


@tool(side_effects="none", isolate=False)
def stuck_in_a_thread() -> str:
    """Match in a thread, which has the lock all the same."""
    print("stuck", flush=True)
    re.match(ENDLESS, TEXT)
    return "never"
