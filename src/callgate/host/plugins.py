"""What a file or a module offers to a host: `@tool` functions, or a plugin with methods.

A plugin is a module, or a class, with `get_tool_schemas` and `execute_tool`, perhaps `init` and
the optional methods, sync or async. Each takes what it needs, by name:

    def init(config): return {"count": 0}                         # the state
    def get_tool_schemas(): return [{"name": ..., "input_schema": ...}]
    def execute_tool(tool_name, arguments, state, emit, context): ...

`state` is changed in place. `emit` streams a part, `context` is the `ToolContext` of the call,
and `params` all that the runtime sent, as one dict.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any, Protocol

from msgspec import UNSET

from callgate.core.errors import EXCEPTION, ToolError, ToolExecutionError
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.host.contexts import HostContext
from callgate.host.plain import check_depth, plain
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.failures import to_failure
from callgate.protocol.host_v1.frames import Failure, Object, OfHost, Result
from callgate.protocol.host_v1.values import to_value
from callgate.protocol.ndjson import Unsendable
from callgate.sources.functions import ToolFunction
from callgate.sources.modules import ToolLoadError, load_module, tools_of
from callgate.sources.outputs import as_output

_MOST_STACK = 16 * 1024
"""Characters."""
_REQUIRED = ("execute_tool", "get_tool_schemas")
_APART = ("context", "runtime", "traceparent")
"""Fields of a request that are no arguments of a plugin's method: its `context` has them."""
_GIVEN: dict[type, tuple[str, ...]] = {frames.ExecuteTool: ("emit", "context")}
"""What a method may take beside the params that it was sent."""


class UnknownTool(ToolError):
    """There is no tool of that name here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no tool {name!r} here.")


class Plugin(Protocol):
    """What `serving` needs of whatever is behind it."""

    @property
    def methods(self) -> Collection[str]:
        """Those of the protocol that it has, without `cancel`, which the host answers itself."""

    def is_async(self, params: OfHost) -> bool:
        """Whether `call` gives something to be awaited, and does not wait itself."""

    def call(self, params: OfHost, context: HostContext | None) -> Any:
        """Do it. `execute_tool` has a context."""

    def result(self, params: OfHost, returned: Any) -> Result:
        """What `call` gave, as the answer. Raises where it cannot be sent."""

    def failure(self, error: BaseException) -> Failure:
        """What `call` or `result` raised, as the answer."""


def load_plugin(spec: str) -> Plugin:
    """The plugin in a `.py` file or a dotted module. Raises `ToolLoadError`."""
    here = os.getcwd()
    # Beside the file, and in the working directory, its author expects more modules.
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
    """The module, the object `plugin` in it, or its one class that is a plugin."""
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
    """Tools of Python. What they raise and return is what it would be in the runtime itself."""

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
        # The text may hold anything the tool came across: only the log gets it.
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
    """An object with the methods of the protocol."""

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
        if method is None:  # an init that it can do without
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
    """Which of what there is a method takes; said here where it wants what there is not."""
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
        problem = f"{name} wants {', '.join(sorted(missing))}; it can have "
        raise ToolLoadError(spec, line, problem + ", ".join(sorted(offered)))
    return frozenset(named & offered)


def _stack(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-_MOST_STACK:]
