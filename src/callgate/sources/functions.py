"""Tools made of Python functions: `@tool` reads the function once and makes a tool of it.

    @tool(side_effects="read")
    async def count_words(path: str, context: ToolContext) -> int:
        '''Count the words of a file in the workspace.'''
        return len(context.workspace_files.read(path).split())

The decorated name is the tool's factory: calling it makes a fresh tool for one call, and
`count_words.function` is the function as it was written. Whatever is wrong with a
definition is said here, where its author sees it, and not in the first call.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from callgate.core.content import Label
from callgate.core.effects import Capability, SideEffects
from callgate.core.tools import ToolContext, ToolDefinition, ToolKind, ToolOutput
from callgate.dispatch.tools.checks import examine
from callgate.dispatch.tools.sources import SourceTool
from callgate.sources.constraints import refuse
from callgate.sources.outputs import as_output
from callgate.sources.signatures import Prepare, Signature, read_signature

P = ParamSpec("P")
R = TypeVar("R")

EffectName = Literal["none", "read", "write", "network", "execute"]


class ToolOptions(TypedDict, total=False):
    """What `@tool` takes; one of `side_effects` and `capabilities` must be given."""

    side_effects: SideEffects | EffectName | None
    """The highest class the function can reach."""
    capabilities: Iterable[Capability | str] | None
    destructive: bool
    name: str | None
    """Instead of the function's."""
    description: str | None
    """Instead of the docstring's."""
    path_params: Iterable[str] | None
    """Parameters that name files in the workspace, beside those annotated as `Path`."""
    destination_params: Iterable[str] | None
    """Parameters that say where an effect goes; None: found by their names."""
    output_labels: Iterable[Label | str] | None
    """What its output is: `private`, `untrusted`, `vouched`, `workspace`, `memory`."""
    timeout_s: float | None
    max_concurrent: int | None
    requires_workspace: bool
    kind: ToolKind
    tags: Iterable[str]
    required_tags: Iterable[str]
    hidden_from_workers: bool
    aliases: Iterable[str]
    argument_aliases: Mapping[str, str]
    """Other spellings of parameters that a caller may use."""
    input: Literal["object", "text"]
    """`text`: the function takes one str, which the model writes freely."""
    isolate: bool | None
    """Whether a sync function runs in a process of its own, where it can be stopped."""


class FunctionTool(msgspec.Struct, frozen=True, eq=False):
    """One execution of a function. Made by its `ToolFunction`."""

    _factory: ToolFunction[..., Any]

    @property
    def definition(self) -> ToolDefinition:
        return self._factory.definition

    @property
    def stoppable(self) -> bool:
        """Whether ending the call ends the work: nothing can stop a running thread."""
        return self._factory.is_async

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        factory = self._factory
        prepare = factory.prepare
        keywords = input if prepare is None else prepare(input, context)
        if factory.is_async:
            return as_output(await factory.function(**keywords))
        result = await asyncio.to_thread(_call, factory.function, keywords)
        if inspect.isawaitable(result):  # a sync wrapper around an async function
            result = await result
        return as_output(result)

    async def cancel(self) -> bool:
        """There is nothing to end: the dispatcher cancels what waits on the function."""
        return False


class ToolFunction(Generic[P, R]):
    """A function with its definition. Calling it makes a fresh tool."""

    def __init__(
        self,
        function: Callable[P, R],
        definition: ToolDefinition,
        prepare: Prepare | None = None,
        isolate: bool | None = None,
    ) -> None:
        self.function = function
        self.definition = definition
        self.prepare = prepare
        self.isolate = isolate
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = definition.name

    def __call__(self) -> FunctionTool:
        return FunctionTool(self)

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}>"


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> ToolFunction[P, R]: ...
@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function; raises `ToolRegistrationError` where it cannot be one."""
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"@tool takes no {', '.join(sorted(unknown))}")
    if function is None:
        return lambda decorated: _tool_function(decorated, options)
    return _tool_function(function, options)


def _tool_function(given: Any, options: ToolOptions) -> ToolFunction[..., Any]:
    function = given.__func__ if isinstance(given, staticmethod) else given
    name: str = options.get("name") or getattr(function, "__name__", None) or repr(function)
    if not isinstance(function, types.FunctionType | types.MethodType):
        refuse(name, "@tool takes a function, not a class or another object")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        refuse(name, "a generator cannot be a tool; use context.output to stream")
    signature = read_signature(function, name, options.get("input", "object"))
    definition = _definition(name, signature, options)
    # The registry's own examination, so that what can be decorated can be registered.
    examined = examine(SourceTool(factory=ToolFunction(function, definition)))
    paths = dict.fromkeys((*examined.path_params, *signature.paths))
    definition = msgspec.structs.replace(
        definition,
        side_effects=examined.effect,
        capabilities=examined.capabilities,
        path_params=tuple(paths) if signature.paths else definition.path_params,
    )
    return ToolFunction(function, definition, signature.prepare, options.get("isolate"))


def _definition(name: str, signature: Signature, options: ToolOptions) -> ToolDefinition:
    description = options.get("description")
    path_params = options.get("path_params")
    destinations = options.get("destination_params")
    return ToolDefinition(
        name=name,
        description=signature.description if description is None else description,
        input_schema=signature.schema,
        side_effects=_effect(options.get("side_effects"), name),
        capabilities=_capabilities(options, name),
        path_params=None if path_params is None else tuple(path_params),
        destination_params=None if destinations is None else tuple(destinations),
        output_labels=_labels(options.get("output_labels"), name),
        timeout_s=options.get("timeout_s"),
        max_concurrent=options.get("max_concurrent"),
        requires_workspace=options.get("requires_workspace", True),
        kind=options.get("kind", "other"),
        tags=frozenset(options.get("tags", ())),
        required_tags=frozenset(options.get("required_tags", ())),
        hidden_from_workers=options.get("hidden_from_workers", False),
        aliases=tuple(options.get("aliases", ())),
        argument_aliases=dict(options.get("argument_aliases", {})),
        input=options.get("input", "object"),
    )


def _effect(given: SideEffects | str | None, name: str) -> SideEffects | None:
    try:
        return None if given is None else SideEffects.parse(given)
    except ValueError as error:
        refuse(name, str(error))


def _labels(given: Iterable[Label | str] | None, name: str) -> frozenset[Label] | None:
    try:
        return None if given is None else frozenset(Label(each) for each in given)
    except ValueError as error:
        refuse(name, str(error))


def _capabilities(options: ToolOptions, name: str) -> frozenset[Capability]:
    try:
        given = {Capability(each) for each in options.get("capabilities") or ()}
    except ValueError as error:
        refuse(name, str(error))
    return frozenset(given | {Capability.DESTRUCTIVE} if options.get("destructive") else given)


def _call(function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    try:
        return function(**keywords)
    except StopIteration as error:  # a future cannot carry it: its waiter would wait for ever
        raise RuntimeError(f"the function raised {error!r}") from error
