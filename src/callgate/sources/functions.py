"""Tools from Python functions: `@tool`, and the files or modules of `[tools] load`.

    @tool(side_effects="read")
    async def count_words(path: str, context: ToolContext) -> int:
        '''Count the words of a file in the workspace.'''
        return len(context.workspace_files.read(path).split())

The decorated name is the tool's factory: calling it creates a new tool for one call, and
`count_words.function` is the original function. An invalid definition raises an error at the
decorator, not in the first call.

A loaded file runs as Python with all rights of the user, so only the user's own settings may name
one, and a relative path never means the current directory. Either every tool of a file is found,
or `ToolLoadError` names the failing line.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from callgate.core.content import Label
from callgate.core.effects import Capability, SideEffects
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolKind, ToolOutput
from callgate.dispatch.tools.checks import examine
from callgate.dispatch.tools.sources import SourceTool
from callgate.sources.constraints import refuse
from callgate.sources.signatures import Prepare, Signature, as_output, read_signature

P = ParamSpec("P")
R = TypeVar("R")

EffectName = Literal["none", "read", "write", "network", "execute"]


class ToolOptions(TypedDict, total=False):
    """Options of `@tool`; one of `side_effects` and `capabilities` is required."""

    side_effects: SideEffects | EffectName | None
    """The highest effect that the function can have."""
    capabilities: Iterable[Capability | str] | None
    destructive: bool
    name: str | None
    """In place of the function's name."""
    description: str | None
    """In place of the docstring's."""
    path_params: Iterable[str] | None
    """Parameters that name files in the workspace, in addition to those annotated as `Path`."""
    destination_params: Iterable[str] | None
    """Parameters that are destinations of an effect; None: found by their names."""
    output_labels: Iterable[Label | str] | None
    """Labels of its output: `private`, `untrusted`, `vouched`, `workspace`, `memory`."""
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
    """Whether a sync function runs in a separate process, where it can be stopped."""


class FunctionTool(msgspec.Struct, frozen=True, eq=False):
    """One execution of a function, created by its `ToolFunction`."""

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
        """Return False: the dispatcher cancels the task that awaits the function."""
        return False


class ToolFunction(Generic[P, R]):
    """A function with its definition. Calling it creates a new tool."""

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
    """Make a function a tool. Raises `ToolRegistrationError` if it cannot be one."""
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
    # The registry's own check, so that every decorated function can be registered.
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
    except StopIteration as error:  # a future cannot carry it, and its waiter would never end
        raise RuntimeError(f"the function raised {error!r}") from error


class ToolLoadError(ValueError):
    """A tool file that is refused, with the reason: `file:line: problem`."""

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(f"{file}{'' if line is None else f':{line}'}: {problem}")
        self.file, self.line, self.problem = file, line, problem


def load_tools(spec: str, *, beside: str | None = None) -> list[ToolFactory]:
    """Return the tools of a `.py` file (`~` is expanded) or of a dotted module.

    The tools are its `@tool` functions, and the items of its list `TOOLS`. A relative path is
    relative to the directory `beside`.
    """
    module = load_module(spec, beside=beside)
    if not spec.endswith(".py"):
        return tools_of(module, spec)
    try:
        return tools_of(module, module.__file__ or spec)
    except ToolLoadError:
        del sys.modules[module.__name__]
        raise


def load_module(spec: str, *, beside: str | None = None) -> ModuleType:
    """Run and return a file or module of tools."""
    if not spec.endswith(".py"):
        return _import(spec)
    path = os.path.expanduser(spec)
    if not os.path.isabs(path):
        if beside is None:
            raise ToolLoadError(spec, None, "a relative path to a tool file")
        path = os.path.join(beside, path)
    return _run(path)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ToolLoadError(name, None, "there is no such module") from None
        raise _failed(name, error) from error
    except Exception as error:  # the module's own code
        raise _failed(name, error) from error


def _run(path: str) -> ModuleType:
    """Run a file as a separate module, which is removed again if it fails."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"callgate_tools_{hashlib.sha256(path.encode()).hexdigest()[:12]}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations and dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file's own code
        del sys.modules[name]
        if isinstance(error, FileNotFoundError) and error.filename == path:
            raise ToolLoadError(path, None, "there is no such file") from None
        raise _failed(path, error) from error
    return module


def _failed(file: str, error: Exception) -> ToolLoadError:
    if isinstance(error, SyntaxError):
        return ToolLoadError(error.filename or file, error.lineno, f"{error.msg}")
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename == file]
    if not inside:  # a dotted module: its frames come after the frames of the import
        ours = (__file__, importlib.__file__)
        inside = [
            frame
            for frame in frames
            if frame.filename not in ours and not frame.filename.startswith("<frozen ")
        ][:1]
    where = inside[-1] if inside else None
    return ToolLoadError(
        where.filename if where else file,
        where.lineno if where else None,
        f"{type(error).__name__}: {error}",
    )


def tools_of(module: ModuleType, file: str) -> list[ToolFactory]:
    """Return the tools of a module. Raises `ToolLoadError`, which names `file`, if it has none."""
    named: Any = getattr(module, "TOOLS", ())
    if not isinstance(named, list | tuple) or not all(map(callable, named)):
        raise ToolLoadError(file, None, "TOOLS must be a list of tools or of their classes")
    functions = [each for each in vars(module).values() if isinstance(each, ToolFunction)]
    found: list[ToolFactory] = list({id(each): each for each in (*functions, *named)}.values())
    if not found:
        raise ToolLoadError(file, None, "defines no tool: use @tool, or a list TOOLS")
    return found
