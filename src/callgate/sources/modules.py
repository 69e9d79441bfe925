"""Tools from a file or a module of the user's: what `[tools] load` in the settings names.

A file is run as Python with all the rights of the user, so only the user's own settings may
name one, and a relative path never means the directory in which somebody works. Either every
tool of a file is found or `ToolLoadError` says on which line of it that failed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from callgate.core.tools import ToolFactory
from callgate.sources.functions import ToolFunction


class ToolLoadError(ValueError):
    """A tool file that is not used, and why: `file:line: what is wrong`."""

    def __init__(self, file: str, line: int | None, problem: str) -> None:
        super().__init__(f"{file}{'' if line is None else f':{line}'}: {problem}")
        self.file, self.line, self.problem = file, line, problem


def load_tools(spec: str, *, beside: str | None = None) -> list[ToolFactory]:
    """The tools of a `.py` file (`~` is expanded) or of a dotted module.

    They are its `@tool` functions, and what its list `TOOLS` names. A relative path counts
    from the directory `beside`.
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
    """The same file or module, run, whatever it defines."""
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
    """Run a file as a module of its own, which is forgotten again if it fails."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"callgate_tools_{hashlib.sha256(path.encode()).hexdigest()[:12]}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations and dataclasses look their module up there
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
    if not inside:  # a module, whose frames come after those of the import
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
    """Raises `ToolLoadError`, which names `file`, where there are none."""
    named: Any = getattr(module, "TOOLS", ())
    if not isinstance(named, list | tuple) or not all(map(callable, named)):
        raise ToolLoadError(file, None, "TOOLS must be a list of tools or of their classes")
    functions = [each for each in vars(module).values() if isinstance(each, ToolFunction)]
    found: list[ToolFactory] = list({id(each): each for each in (*functions, *named)}.values())
    if not found:
        raise ToolLoadError(file, None, "defines no tool: use @tool, or a list TOOLS")
    return found
