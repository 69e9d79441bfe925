"""Generate the page of all settings from the classes that represent `settings.toml`.

The text below a key in its class describes the key; the docstring of a class describes its table.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as kinds

from callgate.config.schema import Settings, WorkspaceSettings, part_type
from callgate.feature import FEATURES, PACKS
from callgate.features.mcp.settings import NOT_FOR_A_WORKSPACE, McpSettings

_HEAD = """\
# Settings

<!-- Made by `make reference` from the classes that settings are read into: do not edit. -->

`settings.toml` in the home (`CALLGATE_HOME`, default `~/.callgate`; `callgate init` writes one with
comments). Every key may be absent. A key that is not listed here, or a value of another kind, is an
error that names its line, and the file is not used. What the decisions mean is on the page about
[policy](../decide/policy.md).
"""
_WORKSPACE = """\
## In a workspace

`.callgate/settings.toml` of a workspace, read once you trust that directory
([policy](../decide/policy.md#two-kinds-of-trust)). It may narrow what your own settings allow, and
name MCP servers, each of which has to be approved. It has these tables and keys, which mean the
same as above:
"""
_NOT_IN_A_WORKSPACE = (
    *("load", "trusted_workspaces", "trusted_workspace_overrides"),
    *NOT_FOR_A_WORKSPACE,
)
Struct = type[msgspec.Struct]
_TOP = {"Settings": "Before the first table", "ChatSettings": "The model, before the first table"}


def settings_page() -> str:
    parts = [_HEAD, *_table("", Settings)]
    owners = (*(each.name for each in FEATURES), *(each.name for each in PACKS))
    for owner in dict.fromkeys(owners):  # `web` is a feature and a package of tools
        part = part_type(owner)
        parts += [] if part is None else _table("", part)
    parts += [_WORKSPACE, *_narrowing()]
    return "\n".join(parts)


def undescribed(struct: Struct, prefix: str = "") -> list[str]:
    """Return the keys without a description, in this table and its nested tables."""
    found = []
    for field in msgspec.structs.fields(struct):
        name, inner = f"{prefix}{field.encode_name}", _inner(kinds.type_info(field.type))
        if inner is not None:
            found += undescribed(inner, f"{name}.")
        elif not _descriptions(struct).get(field.name):
            found.append(name)
    return found


def _table(path: str, struct: Struct) -> Iterator[str]:
    """Return the keys of a table, then its nested tables."""
    tables = {}
    keys = []
    for field in msgspec.structs.fields(struct):
        if field.name == "parts":  # no key: tables of features, which are listed by their owners
            continue
        kind = kinds.type_info(field.type)
        inner = _inner(kind)
        if inner is not None:
            tables[_heading(path, field)] = inner
        if inner is None or _others(kind):
            keys.append(_key(struct, field))
    if keys:
        yield f"## `{path}`\n" if path else f"## {_TOP[struct.__name__]}\n"
        yield from _about(struct)
        yield "\n".join([*keys, ""])
    for heading, inner in tables.items():
        yield from _table(heading, inner)


def _about(struct: Struct) -> Iterator[str]:
    """Return the description of a table from its class, after the table's name."""
    _, _, about = inspect.cleandoc(struct.__doc__ or "").rpartition("]`: ")
    if about and struct is not Settings:
        yield f"{about[0].upper()}{about[1:]}\n"


def _heading(path: str, field: msgspec.structs.FieldInfo) -> str:
    base = f"{path.strip('[]')}.{field.encode_name}".lstrip(".")
    kind = kinds.type_info(field.type)
    if isinstance(kind, kinds.DictType):
        return f"[{base}.NAME]"
    return f"[[{base}]]" if isinstance(kind, kinds.ListType) else f"[{base}]"


def _key(struct: Struct, field: msgspec.structs.FieldInfo) -> str:
    text = _descriptions(struct).get(field.name, "")
    kind = kinds.type_info(field.type)
    value = _kind(kind) + (", instead of a table" if _inner(kind) else "")
    return f"- `{field.encode_name}`: {value}{_default(field)}. {text}".rstrip()


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return ", required"
    if value is None or value in ({}, [], "") or isinstance(value, msgspec.Struct):
        return ""
    return f"; default `{_toml(msgspec.to_builtins(value))}`"


def _toml(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _kind(kind: kinds.Type) -> str:
    """Describe a type."""
    match kind:
        case kinds.StrType():
            return "text"
        case kinds.BoolType():
            return "`true` or `false`"
        case kinds.IntType():
            return f"whole number{_range(kind)}"
        case kinds.FloatType():
            return f"number{_range(kind)}"
        case kinds.LiteralType(values=values):
            return _choice([f"`{_toml(value)}`" for value in values])
        case kinds.EnumType(cls=enum):
            return _choice([f"`{_toml(each.value)}`" for each in enum])
        case kinds.ListType(item_type=item) | kinds.VarTupleType(item_type=item):
            return f"list ({_kind(item)})"
        case kinds.DictType(value_type=value):
            return f"table (name to {_kind(value)})"
        case kinds.UnionType():
            return _choice([_kind(each) for each in _others(kind)])
        case kinds.AnyType():
            return "anything"
    raise ValueError(f"no words for {kind}")


def _range(kind: kinds.IntType | kinds.FloatType) -> str:
    bounds = {"above": kind.gt, "at least": kind.ge, "at most": kind.le}
    return "".join(f", {word} {bound:,}" for word, bound in bounds.items() if bound is not None)


def _choice(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _inner(kind: kinds.Type) -> Struct | None:
    """Return the table class of a key, its named tables or its list; None for a plain value."""
    match kind:
        case kinds.StructType(cls=struct):
            return struct
        case kinds.DictType(value_type=kinds.StructType(cls=struct)):
            return struct
        case kinds.ListType(item_type=kinds.StructType(cls=struct)):
            return struct
        case kinds.UnionType(types=types):
            return next((t.cls for t in types if isinstance(t, kinds.StructType)), None)
    return None


def _others(kind: kinds.Type) -> list[kinds.Type]:
    """Return the permitted values besides a table and None."""
    types = kind.types if isinstance(kind, kinds.UnionType) else ()
    return [each for each in types if not isinstance(each, kinds.NoneType | kinds.StructType)]


@cache
def _descriptions(struct: Struct) -> dict[str, str]:
    """Return the text below each key of the class and its base classes."""
    found: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if issubclass(cls, msgspec.Struct) and cls is not msgspec.Struct:
            parsed = ast.parse(inspect.getsource(cls)).body[0]
            assert isinstance(parsed, ast.ClassDef)
            found |= _texts(parsed)
    return found


def _texts(cls: ast.ClassDef) -> dict[str, str]:
    found = {}
    for key, after in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(after, ast.Expr):
            name, text = ast.unparse(key.target), ast.literal_eval(after.value)
            found[name] = " ".join(text.split())
    return found


def _narrowing() -> Iterator[str]:
    fields = (*msgspec.structs.fields(WorkspaceSettings), *msgspec.structs.fields(McpSettings))
    for table in fields:
        if table.name == "parts":
            continue
        struct = _inner(kinds.type_info(table.type))
        assert struct is not None
        names = ", ".join(
            f"`{field.encode_name}`"
            for field in msgspec.structs.fields(struct)
            if field.name not in _NOT_IN_A_WORKSPACE
        )
        yield f"- `{_heading('', table)}`: {names}"
    yield ""
