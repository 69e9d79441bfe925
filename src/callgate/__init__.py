"""callgate: a permission layer for every tool call of an AI agent.

Most programs need `Gate` and `tool`. `Tool`, `ToolDispatcher` and similar classes are for tools
that are classes, and for programs with a separate dispatcher. Each name is loaded when it
is first used, because a command line that prints its version must not import a validator.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take longer than the rest of the start
    from typing import Any

_EXPORTS = {
    "callgate.core.version": ("__version__",),
    "callgate.gate": ("Gate",),
    "callgate.instance.instance": ("serve", "Instance"),
    "callgate.instance.startup": ("CannotServe",),
    "callgate.client.link": ("ClientError", "NoInstance", "InstanceGone", "RequestRefused"),
    "callgate.client.remote": ("RemoteGate",),
    "callgate.client.blocking": ("BlockingGate", "connect"),
    "callgate.sources.functions": ("tool",),
    "callgate.sources.signatures": ("ok_result", "error_result"),
    "callgate.core.tools": ("Tool", "ToolContext", "ToolDefinition", "ToolOutput", "Preview"),
    "callgate.core.content": (
        "ContentBlock",
        "Message",
        "TextBlock",
        "ImageBlock",
        "ImageSource",
        "JsonBlock",
        "ToolUseBlock",
        "ToolResultBlock",
        "ThinkingBlock",
        "FileDiff",
        "Label",
    ),
    "callgate.core.calls": ("ToolCall", "CallerKind", "ToolResult", "ErrorInfo", "Diagnostic"),
    "callgate.core.effects": ("SideEffects", "Capability"),
    "callgate.core.sessions": ("Session", "Mode", "Root"),
    "callgate.core.events": ("Event",),
    "callgate.core.errors": (
        "ToolErrorClass",
        "ToolError",
        "ToolNotFound",
        "ToolValidationError",
        "ToolPermissionDenied",
        "WorkspaceEscapeError",
        "ToolUserDenied",
        "ToolTimeout",
        "ToolExecutionError",
        "ToolCancelled",
        "ConfirmationTimeout",
        "ToolRegistrationError",
    ),
    "callgate.instance.wiring.builder": ("ToolDispatcher",),
    "callgate.dispatch.permission.confirmations": ("Confirmation", "Answer", "Scope"),
    "callgate.policy.rules": ("Outcome", "Policy"),
    "callgate.workspace.files": ("WorkspaceFileAPI",),
    "callgate.instance.wiring.runtime": ("Wired", "BUILT_IN"),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from callgate.client.blocking import BlockingGate as BlockingGate
    from callgate.client.blocking import connect as connect
    from callgate.client.link import ClientError as ClientError
    from callgate.client.link import InstanceGone as InstanceGone
    from callgate.client.link import NoInstance as NoInstance
    from callgate.client.link import RequestRefused as RequestRefused
    from callgate.client.remote import RemoteGate as RemoteGate
    from callgate.core.calls import CallerKind as CallerKind
    from callgate.core.calls import Diagnostic as Diagnostic
    from callgate.core.calls import ErrorInfo as ErrorInfo
    from callgate.core.calls import ToolCall as ToolCall
    from callgate.core.calls import ToolResult as ToolResult
    from callgate.core.content import ContentBlock as ContentBlock
    from callgate.core.content import FileDiff as FileDiff
    from callgate.core.content import ImageBlock as ImageBlock
    from callgate.core.content import ImageSource as ImageSource
    from callgate.core.content import JsonBlock as JsonBlock
    from callgate.core.content import Label as Label
    from callgate.core.content import Message as Message
    from callgate.core.content import TextBlock as TextBlock
    from callgate.core.content import ThinkingBlock as ThinkingBlock
    from callgate.core.content import ToolResultBlock as ToolResultBlock
    from callgate.core.content import ToolUseBlock as ToolUseBlock
    from callgate.core.effects import Capability as Capability
    from callgate.core.effects import SideEffects as SideEffects
    from callgate.core.errors import ConfirmationTimeout as ConfirmationTimeout
    from callgate.core.errors import ToolCancelled as ToolCancelled
    from callgate.core.errors import ToolError as ToolError
    from callgate.core.errors import ToolErrorClass as ToolErrorClass
    from callgate.core.errors import ToolExecutionError as ToolExecutionError
    from callgate.core.errors import ToolNotFound as ToolNotFound
    from callgate.core.errors import ToolPermissionDenied as ToolPermissionDenied
    from callgate.core.errors import ToolRegistrationError as ToolRegistrationError
    from callgate.core.errors import ToolTimeout as ToolTimeout
    from callgate.core.errors import ToolUserDenied as ToolUserDenied
    from callgate.core.errors import ToolValidationError as ToolValidationError
    from callgate.core.errors import WorkspaceEscapeError as WorkspaceEscapeError
    from callgate.core.events import Event as Event
    from callgate.core.sessions import Mode as Mode
    from callgate.core.sessions import Root as Root
    from callgate.core.sessions import Session as Session
    from callgate.core.tools import Preview as Preview
    from callgate.core.tools import Tool as Tool
    from callgate.core.tools import ToolContext as ToolContext
    from callgate.core.tools import ToolDefinition as ToolDefinition
    from callgate.core.tools import ToolOutput as ToolOutput
    from callgate.core.version import __version__ as __version__
    from callgate.dispatch.permission.confirmations import Answer as Answer
    from callgate.dispatch.permission.confirmations import Confirmation as Confirmation
    from callgate.dispatch.permission.confirmations import Scope as Scope
    from callgate.gate import Gate as Gate
    from callgate.instance.instance import Instance as Instance
    from callgate.instance.instance import serve as serve
    from callgate.instance.startup import CannotServe as CannotServe
    from callgate.instance.wiring.builder import ToolDispatcher as ToolDispatcher
    from callgate.instance.wiring.runtime import BUILT_IN as BUILT_IN
    from callgate.instance.wiring.runtime import Wired as Wired
    from callgate.policy.rules import Outcome as Outcome
    from callgate.policy.rules import Policy as Policy
    from callgate.sources.functions import tool as tool
    from callgate.sources.signatures import error_result as error_result
    from callgate.sources.signatures import ok_result as ok_result
    from callgate.workspace.files import WorkspaceFileAPI as WorkspaceFileAPI


def __getattr__(name: str) -> Any:
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'callgate' has no attribute {name!r}") from None
    __import__(module)
    value = globals()[name] = getattr(sys.modules[module], name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
