"""Previews: a tool's own description of a call's effect, for the approver."""

from __future__ import annotations

import asyncio
import inspect
import logging

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolPermissionDenied
from callgate.core.tools import CannotSucceed, Preview
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.call_records import MISMATCH
from callgate.dispatch.environments import Environments
from callgate.dispatch.foreign_code import log_failure
from callgate.dispatch.subjects import Subject

_PREVIEW_S = 60.0
"""Time limit; after it, the question has no preview. A host may have to start first."""

_log = logging.getLogger("callgate")


async def preview_call(
    files: CallFiles, environments: Environments, call: ToolCall, subject: Subject
) -> Preview | None:
    """Return the tool's preview of the call, for the arguments that will run."""
    tool = subject.tool.previewer if subject.work is None else subject.work.previewer
    preview = getattr(tool, "preview", None)
    if preview is None:
        return None
    if hasattr(tool, "preview_for"):  # a host's: it sees the state of the session
        preview = lambda input, environment: tool.preview_for(call.session.id, input)  # noqa: E731
    in_pool = call.session.pool is not None  # its files are on another machine
    environment = None if in_pool else environments.open(call.session, files.open(call, subject))
    try:
        async with asyncio.timeout(_PREVIEW_S):
            result = preview(subject.checked.arguments, environment)
            if inspect.isawaitable(result):
                result = await result
        return result if result is None or isinstance(result, Preview) else Preview(str(result))
    except CannotSucceed:
        raise
    except ToolPermissionDenied as error:
        if error.reason == MISMATCH:  # the preview tried to write: the call is refused
            raise
        log_failure(_log, error, "preview of tool %s failed", subject.tool.name)
        return None
    except Exception as error:  # a tool's own code: the question has no preview
        log_failure(_log, error, "preview of tool %s failed", subject.tool.name)
        return None
