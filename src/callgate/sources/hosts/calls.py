"""One call of a host's tool: from a tool's context to a request, and from its outcome to a value
or to the error that says why there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from callgate.core.errors import ToolExecutionError, ToolProtocolError
from callgate.core.tools import ToolContext
from callgate.protocol.host_v1 import failures, frames, parts
from callgate.protocol.ndjson import Unsendable
from callgate.sources.hosts.hosts import Host, HostCall
from callgate.sources.hosts.in_flight import InvalidAnswer, Refused
from callgate.sources.hosts.links import HostExited, Link
from callgate.sources.hosts.runtime_requests import RuntimeRequests


async def call(
    host: Host,
    tool: str,
    arguments: dict[str, Any],
    context: ToolContext,
    on_start: Callable[[HostCall], None],
    *,
    trusted: bool = False,
    check: Callable[[], None] = lambda: None,
    watch: Callable[[Link], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Any:
    """What `execute_tool` gave. Raises a `ToolError`.

    `on_start` gets the call, to cancel it; `trusted`: the host runs our own functions.
    `check` may refuse the process that the call would go to, `watch` is around its work there.
    """

    def tell(event: frames.Event) -> asyncio.Future[None] | None:
        context.publish(*parts.to_event(event))
        return context.backpressure()

    requests = RuntimeRequests(context)
    try:
        returned = await host.execute(
            tool, arguments, context, tell, requests.answer, on_start, check, watch
        )
    except Refused as refused:
        if refused.failure.stack:
            host.log.note(refused.failure.stack)
        raise failures.to_error(refused.failure, trusted=trusted) from None
    except InvalidAnswer as error:
        problem = f"Host {host.settings.name!r}: {error}."
        raise ToolProtocolError(problem, reason="host_answer") from None
    except HostExited as exited:
        raise host.lifecycle.died(exited.exit) from None
    except Unsendable as error:
        raise ToolExecutionError(f"The call does not fit: {error}.", reason="unsendable") from None
    finally:
        if requests.any:
            await requests.ended()
        if requests.undeclared is not None and not trusted:
            host.distrust(f"tool {tool} went beyond what it declares: {requests.undeclared}")
    return returned.result.value
