"""Tools of a file or a module, and their context.

A file contains `@tool` functions, or it is a plugin: a module or a class with `get_tool_schemas`
and `execute_tool`, optionally `init` and others, sync or async. Each method declares the parameters
that it needs, by name:

    def init(config): return {"count": 0}                         # the state
    def get_tool_schemas(): return [{"name": ..., "input_schema": ...}]
    def execute_tool(tool_name, arguments, state, emit, context): ...

`state` is changed in place. `emit` streams a part, `context` is the `ToolContext` of the call, and
`params` is the whole request, as one dict. Progress, output and log lines become
events of the call. Each file operation is a request to the runtime, which checks it.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from msgspec import UNSET

from callgate.core.errors import EXCEPTION, ToolError, ToolExecutionError
from callgate.core.local.environment import WorkspaceFiles
from callgate.core.tools import OutputStream, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.host.pipes import Call, Pipe
from callgate.protocol.host_v1 import frames, values
from callgate.protocol.host_v1.frames import Failure, Object, OfHost, Result
from callgate.protocol.host_v1.values import to_failure, to_value
from callgate.protocol.strict_json import MAX_DEPTH, Unsendable
from callgate.sources.functions import ToolFunction, ToolLoadError, load_module, tools_of
from callgate.sources.signatures import as_output

MAX_LEVELS = MAX_DEPTH - 2
"""Maximum depth of a value, which is nested in a result or event, and that in a frame."""


def plain(value: Any) -> Any:
    """Convert a value to plain JSON: text keys, lists, no other types."""
    try:
        output = as_output(value)
    except ToolExecutionError as error:
        raise Unsendable(error.message) from None
    plain = output.value
    if plain is UNSET or isinstance(value, ToolOutput):
        plain = to_value(output)
    check_depth(plain)
    return plain


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner += each.values()
            elif type(each) is list:
                inner += each
        if not inner:
            return
        level = inner
    raise Unsendable(f"it is nested deeper than {MAX_LEVELS} levels")


_NOWHERE = frames.CallContext(session_id="", tool_use_id="", workspace_path="")


class HostContext(ToolContext):
    __slots__ = ("_pipe", "_traceparent", "request")

    def __init__(self, request: frames.Request[frames.ExecuteTool], pipe: Pipe) -> None:
        given = request.params.context
        context = _NOWHERE if given is UNSET else given
        self.request = Call(request.id)
        self.session_id = context.session_id
        self.turn_id = context.turn_id
        self.tool_use_id = context.tool_use_id or request.id
        self.workspace_path = context.workspace_path or os.getcwd()
        self.scope = context.scope or None
        self._cancel_event = asyncio.Event()
        self._logger = self._files = self._environment = self._launcher = None
        self._pipe = pipe
        self.trace = None
        self._traceparent = request.params.traceparent

    @property
    def traceparent(self) -> str | None:
        return None if self._traceparent is UNSET else self._traceparent

    @property
    def call(self) -> str:
        """The id of the call for the runtime, on this pipe."""
        return self.request.id

    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
        if self._logger is None:
            logger = logging.Logger("callgate.tool", logging.INFO)  # outside the logger tree
            logger.addHandler(_Telling(self))
            self._logger = logger
        return self._logger

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        self._pipe.emit(self.request, values.progress(message, fraction))

    def output(self, text: str, stream: OutputStream = "text") -> None:
        self._pipe.emit(self.request, values.output(text, stream))

    def log(self, message: str, level: str = "info") -> None:
        self._pipe.emit(self.request, values.log(message, level))

    def emit(self, event: Any) -> bool:
        """Emit an event with a type, or else the payload of a part, for a plugin.

        Return False if the call has ended. Raises `Unsendable`.
        """
        kind, payload = "part", event
        if type(event) is dict and type(event.get("type")) is str:
            kind, payload = event["type"], event.get("payload")
        return self._pipe.emit(self.request, frames.Event(type=kind, payload=plain(payload)))

    def is_cancelled(self) -> bool:
        """Whether the call should stop, according to the runtime."""
        if self.cancel_event.is_set() or not self._pipe.agreed_on("is_cancelled"):
            return self.cancel_event.is_set()
        return self._pipe.ask(self.request, frames.IsCancelled(call=self.call)) is True

    def _open_files(self) -> WorkspaceFiles:
        return HostFiles(self.request, self.workspace_path, self._pipe)

    def _artifact(self, name: str) -> str | None:
        request = frames.KeepArtifact(call=self.call, name=name)
        path: str | None = self._pipe.ask(self.request, request)
        return path


class _Telling(logging.Handler):
    """Converts log records of one call to its events."""

    def __init__(self, context: HostContext) -> None:
        super().__init__()
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        self._context.log(self.format(record), record.levelname.lower())


class HostFiles:
    """The files of the session's workspace, over the pipe."""

    def __init__(self, call: Call, workspace_root: str, pipe: Pipe) -> None:
        self._call = call.id
        self._ask = partial(pipe.ask, call)
        self.workspace_root = workspace_root

    def read(self, path: str) -> str:
        content: str = self._ask(frames.ReadFile(call=self._call, path=path))
        return content

    def read_bytes(self, path: str) -> bytes:
        request = frames.ReadFile(call=self._call, path=path, encoding="base64")
        return base64.b64decode(self._ask(request))

    def write(self, path: str, content: str) -> None:
        self._ask(frames.WriteFile(call=self._call, path=path, content=content))

    def write_bytes(self, path: str, content: bytes) -> None:
        text = base64.b64encode(content).decode()
        self._ask(frames.WriteFile(call=self._call, path=path, content=text, encoding="base64"))

    def append(self, path: str, content: str) -> None:
        self._ask(frames.AppendFile(call=self._call, path=path, content=content))

    def exists(self, path: str) -> bool:
        return self._ask(frames.FileExists(call=self._call, path=path)) is True

    def list(self, path: str) -> list[str]:
        names: list[str] = self._ask(frames.ListFiles(call=self._call, path=path))
        return names

    def delete(self, path: str) -> None:
        self._ask(frames.DeleteFile(call=self._call, path=path))

    def patch(self, path: str, old: str, new: str) -> None:
        self._ask(frames.PatchFile(call=self._call, path=path, old=old, new=new))


_MOST_STACK = 16 * 1024
"""Maximum characters of a traceback."""
_REQUIRED = ("execute_tool", "get_tool_schemas")
_APART = ("context", "runtime", "traceparent")
"""Fields of a request that are not arguments of a plugin's method, but part of its `context`."""
_GIVEN: dict[type, tuple[str, ...]] = {frames.ExecuteTool: ("emit", "context")}
"""Parameters that a method can have in addition to the fields of its request."""


class UnknownTool(ToolError):
    """No tool of this plugin has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no tool {name!r} here.")


class Plugin(Protocol):
    """The interface of `serving` for tools of any kind."""

    @property
    def methods(self) -> Collection[str]:
        """Its protocol methods, without `cancel`, which the host handles itself."""

    def is_async(self, params: OfHost) -> bool:
        """Whether `call` returns an awaitable, and does not wait itself."""

    def call(self, params: OfHost, context: HostContext | None) -> Any:
        """Handle a request. `execute_tool` has a context."""

    def result(self, params: OfHost, returned: Any) -> Result:
        """Convert the return value of `call` to an answer. Raises if it cannot be sent."""

    def failure(self, error: BaseException) -> Failure:
        """Convert an exception of `call` or `result` to an answer."""


def load_plugin(spec: str) -> Plugin:
    """Load the plugin in a `.py` file or a dotted module. Raises `ToolLoadError`."""
    here = os.getcwd()
    # The plugin may import modules next to the file, and in the working directory.
    file = os.path.abspath(os.path.expanduser(spec))
    for directory in dict.fromkeys((os.path.dirname(file) if spec.endswith(".py") else here, here)):
        if directory not in sys.path:
            sys.path.append(directory)
    module = load_module(spec, beside=here)
    written = _find(module, spec)
    if written is not None:
        return WrittenPlugin(written, spec)
    return FunctionPlugin(tools_of(module, module.__file__ or spec))


def _find(module: ModuleType, spec: str) -> object | None:
    """Return the module, the object `plugin` in it, or its one class that is a plugin."""
    if _is_written(module):
        return module
    named = getattr(module, "plugin", None)
    tools = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]
    found = [each for each in ([named] if _is_written(named) else tools) if _is_written(each)]
    if len(found) > 1:
        raise ToolLoadError(spec, None, "has several plugins: name one of them `plugin`")
    if not found or not isinstance(found[0], type):
        return found[0] if found else None
    try:
        plugin: object = found[0]()
    except Exception as error:  # the plugin's own code
        problem = f"{found[0].__name__}() raised {type(error).__name__}: {error}"
        raise ToolLoadError(spec, None, problem) from error
    return plugin


def _is_written(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in _REQUIRED)


class FunctionPlugin:
    """Python tools. Results and errors are the same as in the runtime's own process."""

    methods = ("execute_tool", "get_tool_schemas", "init")

    def __init__(self, factories: Iterable[ToolFactory]) -> None:
        self._factories: dict[str, ToolFactory] = {}
        self._definitions: list[ToolDefinition] = []
        for factory in factories:
            described = factory if isinstance(factory, ToolFunction) else factory()
            definition = described.definition
            self._factories[definition.name] = factory
            self._definitions.append(definition)

    def is_async(self, params: OfHost) -> bool:
        if not isinstance(params, frames.ExecuteTool):
            return False
        factory = self._factories.get(params.tool_name)
        if isinstance(factory, ToolFunction):
            return factory.is_async
        return factory is not None

    def call(self, params: OfHost, context: HostContext | None) -> Any:
        if not isinstance(params, frames.ExecuteTool):
            return None
        assert context is not None
        factory = self._factories.get(params.tool_name)
        if factory is None:
            raise UnknownTool(params.tool_name)
        if isinstance(factory, ToolFunction) and not factory.is_async:
            prepare, given = factory.prepare, params.arguments
            return factory.function(**(given if prepare is None else prepare(given, context)))
        return factory().execute(params.arguments, context)

    def result(self, params: OfHost, returned: Any) -> Result:
        match params:
            case frames.ExecuteTool():
                value = to_value(as_output(returned))
                check_depth(value)
                return Result(value=value, state=params.state)
            case frames.GetToolSchemas():
                schemas = [_schema(each) for each in self._definitions]
                return Result(value=schemas, state=params.state)
        return Result(value={}, state={})

    def failure(self, error: BaseException) -> Failure:
        if isinstance(error, UnknownTool):
            return Failure(type="UnknownTool", detail=error.message)
        if isinstance(error, ToolError):
            return to_failure(error)
        if isinstance(error, Unsendable):
            return Failure(type="Unsendable", detail=str(error))
        # The text may contain any data of the tool: it goes only to the log.
        details = {EXCEPTION: type(error).__name__}
        hidden = ToolExecutionError(is_user_visible=False, reason="exception", details=details)
        return to_failure(hidden, _stack(error))


def _schema(definition: ToolDefinition) -> Object:
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
        "x-capabilities": sorted(definition.capabilities),
    }


class WrittenPlugin:
    """A plugin that implements the methods of the protocol."""

    def __init__(self, plugin: object, spec: str) -> None:
        self._calls: dict[type, Callable[..., Any]] = {}
        self._takes: dict[type, frozenset[str]] = {}
        names = []
        for name, kind in frames.OF_HOST.items():
            method = getattr(plugin, name, None)
            if callable(method) and kind is not frames.Cancel:
                self._calls[kind] = method
                self._takes[kind] = _parameters(method, name, kind, spec)
                names.append(name)
        self.methods = frozenset({*names, "init"})

    def is_async(self, params: OfHost) -> bool:
        return inspect.iscoroutinefunction(self._calls.get(type(params)))

    def call(self, params: OfHost, context: HostContext | None) -> Any:
        method = self._calls.get(type(params))
        if method is None:  # an optional init
            return None
        takes = self._takes[type(params)]
        sent = {name: getattr(params, name) for name in _sent(type(params))}
        given = {**sent, "params": sent}
        if context is not None:
            given.update(emit=context.emit, context=context)
        return method(**{name: value for name, value in given.items() if name in takes})

    def result(self, params: OfHost, returned: Any) -> Result:
        value = plain(returned)
        if isinstance(params, frames.Init):
            return Result(value=value, state=value if type(value) is dict else {})
        state = getattr(params, "state", UNSET)
        return Result(value=value, state=state if state is UNSET else plain(state))

    def failure(self, error: BaseException) -> Failure:
        if isinstance(error, ToolError):
            return to_failure(error)
        return Failure(type=type(error).__name__, detail=str(error), stack=_stack(error))


def _sent(kind: type) -> list[str]:
    return [name for name in kind.__struct_fields__ if name not in _APART]  # type: ignore[attr-defined]


def _parameters(method: Callable[..., Any], name: str, kind: type, spec: str) -> frozenset[str]:
    """Return the parameters of a method. Raises `ToolLoadError` for one that is not offered."""
    offered = {*_sent(kind), *_GIVEN.get(kind, ()), "params"}
    taken = inspect.signature(method).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in taken):
        return frozenset(offered - {"params"})
    wanted = {
        each.name
        for each in taken
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    }
    named = {each.name for each in taken if each.kind is not each.POSITIONAL_ONLY}
    if missing := wanted - (offered & named):
        line = getattr(getattr(method, "__code__", None), "co_firstlineno", None)
        problem = f"{name} wants {', '.join(sorted(missing))}; available are "
        raise ToolLoadError(spec, line, problem + ", ".join(sorted(offered)))
    return frozenset(named & offered)


def _stack(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_MOST_STACK:]
