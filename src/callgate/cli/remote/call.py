"""`callgate call` through a running instance: the same output, and in a fraction of the time.

    find one -> list_tools: does it serve this directory? -> tool_call -> events -> tool_result
       |                |                                         |
       +----------------+-- no: a runtime of our own              +-- lost: an error, never a
                                                                      second try

A call is made once. Until the line with it has left us as a whole, and where the instance says
that it did not take it, somebody else may make it; after that nobody may. An instance that was
named by hand is never replaced: what it cannot do is an error.
"""

from __future__ import annotations

import os
import sys

from callgate.cli import handshake
from callgate.cli.fast import instances
from callgate.cli.fast.connection import ConnectionLost, InstanceConnection
from callgate.cli.handshake import InstanceDeclined
from callgate.cli.remote.connection import Interrupted, RemoteCall, problem
from callgate.cli.ui.terminal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


def call(options: Any) -> int | None:
    """Make a call through an instance; the exit code. None: none takes it, and none was named."""
    _refuse_within_a_call()
    return through(options, _call)


def through(options: Any, work: Callable[..., T]) -> T | None:
    """Have `work(connection, path, options, named=...)` done with the instance that was named, or
    with the first that takes it. None: none takes it, and none was named."""
    if options.socket is None and options.instance is None:
        for path in instances.candidates(instances.home()):
            try:
                return _with(path, options, work, named=False)
            except InstanceDeclined as refusal:
                if refusal.aloud or getattr(options, "verbose", False):
                    say(f"callgate: {refusal}; a runtime of its own is used")
        return None
    try:
        named: str | None = options.socket
        if named is None:
            named = instances.find_socket(instances.home(), options.instance)
        if named is None:
            raise InstanceDeclined(
                f"no instance {options.instance!r} runs",
                "host_unavailable",
                "callgate status shows what runs.",
            )
        return _with(named, options, work, named=True)
    except InstanceDeclined as refusal:
        raise problem(str(refusal), refusal.error_class, "not_taken", refusal.hint) from None


def _with(path: str, options: Any, work: Callable[..., T], *, named: bool) -> T:
    try:
        connection = InstanceConnection(path, handshake.GREETING_S)
    except ConnectionLost as error:
        raise InstanceDeclined(
            f"no instance answers at {path}: {error}",
            "host_unavailable",
            "callgate status shows what runs.",
            aloud=instances.is_live_socket(instances.home(), path),
        ) from None
    with connection:
        return work(connection, path, options, named=named)


def _call(connection: InstanceConnection, path: str, options: Any, *, named: bool) -> int:
    try:
        return RemoteCall(connection, path, options, named=named).run()
    except Interrupted as interrupt:
        return interrupt.exit_code


def _refuse_within_a_call() -> None:
    """`nested_calls` decides; it is loaded only where this process looks as if it might."""
    marked = bool(os.environ.get("CALLGATE_CALL"))
    if sys.platform == "linux" and not marked:
        import resource  # lazy: only on Linux  # noqa: PLC0415

        soft, hard = resource.getrlimit(10)  # RLIMIT_LOCKS: see `sandbox.processes.command_marks`
        marked = soft != hard or soft != resource.RLIM_INFINITY
    if marked:
        from callgate.cli.nested_calls import refuse_within_a_call  # lazy: see above  # noqa: PLC0415

        refuse_within_a_call("callgate call")
