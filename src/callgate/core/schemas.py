"""Argument schemas: the supported subset of JSON Schema, and validation against it.

    schema --check_subset--> ArgumentSchema --check--> Checked (arguments of the tool, and their
    bytes)

The subset is understood by every model provider. Stricter than Draft 7, validation refuses keys
that the schema does not name, fills in defaults, converts whole floats to integers where the
schema says integer, and bounds depth and size. The tool receives a value decoded from the canonical
bytes. So approval, hash and tool use the same bytes.

A `foreign` schema (of an MCP server or a framework) may use all of JSON Schema, by default 2020-12.
It must not refer to other documents, and its defaults are not filled in.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from callgate.core.errors import ToolRegistrationError, ToolValidationError
from callgate.core.patterns import Scan
from callgate.core.schema_sizes import LARGEST, depth_of, refers, size_of
from callgate.core.schema_validators import MOST_PARTS, TooMuch, Validator, count_parts, nodes
from callgate.core.texts import nearest

MAX_DEPTH = 64
MAX_BYTES = 8 * 1024 * 1024
MAX_DIGITS = 400
"""Maximum digits of one integer, as in documents from a wire."""
MAX_VIOLATIONS = 50

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_CHECKS = frozenset(
    {
        "type",
        "enum",
        "const",
        "required",
        "properties",
        "items",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "additionalProperties",
    }
)
ALLOWED_KEYWORDS = _ANNOTATIONS | _CHECKS

_OPENING = frozenset(
    {
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "then",
        "else",
        "not",
        "dependencies",
        "dependentSchemas",
    }
)
"""Keywords that can concern keys that `properties` does not list."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WHOLE_FLOAT = re.compile(rb"\.0+[,}\]]").search
_DIGITS = bytes(ord("0") if chr(code).isdigit() else code for code in range(256))
_TOO_LARGE = 10**MAX_DIGITS
_SAMPLE = MAX_DIGITS // 8
"""Sampling distance: a run of `MAX_DIGITS` digits contains eight sampled digits in sequence."""

_UNUSUAL = Scan([r"\.0", "[0-9]e", "null"])
"""Signs of rare input: a float that may be a whole number, and `null`, which NaN becomes."""
_PLAIN_SIZE = 2 * MAX_DEPTH
"""Maximum bytes of a value that cannot be nested too deeply or have too many parts."""

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


def canonical_json(value: Any) -> bytes:
    """Serialize canonically: sorted keys, no spaces, UTF-8."""
    return _encode(value)


def check_subset(schema: Any, tool: str) -> None:
    """Raise `ToolRegistrationError` with the tool and the location of the first violation."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ToolRegistrationError(
            f"tool {tool!r}: input_schema must be an object schema (type: object at the top)"
        )
    for location, problem in _offences(schema, "input_schema", 0):
        raise ToolRegistrationError(f"tool {tool!r}: {location}: {problem}")


def _offences(schema: Any, location: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, Mapping):
        yield location, "a schema must be an object"
        return
    if depth > MAX_DEPTH:
        yield location, f"nested deeper than {MAX_DEPTH}"
        return
    for keyword in schema:
        if keyword not in ALLOWED_KEYWORDS:
            yield f"{location}.{keyword}", f"keyword {keyword!r} is not in the allowed subset"
    declared = schema.get("type", [])
    for name in declared if isinstance(declared, list | tuple) else [declared]:
        if not isinstance(name, str) or name not in _TYPES:
            yield f"{location}.type", f"unknown type {name!r}"
    if not isinstance(schema.get("additionalProperties", True), bool):
        yield f"{location}.additionalProperties", "must be true or false, not a schema"
    properties = schema.get("properties", {})
    if isinstance(properties, Mapping):
        for name, child in properties.items():
            yield from _offences(child, f"{location}.properties.{name}", depth + 1)
    if "items" in schema:
        yield from _offences(schema["items"], f"{location}.items", depth + 1)


class Checked(msgspec.Struct, frozen=True):
    """Validated arguments of a tool."""

    arguments: dict[str, Any]
    canonical: bytes
    sha256: str
    """Hash of the canonical bytes. An approval is bound to it."""
    size: int
    """Number of canonical bytes."""


class _Plan(msgspec.Struct):
    """Changes to a value before validation; empty if there are none."""

    integer: bool = False
    defaults: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    """Plans of the properties that have one."""
    items: Any = None

    @property
    def empty(self) -> bool:
        return not (self.integer or self.defaults or self.properties or self.items)

    @property
    def has_defaults(self) -> bool:
        below = [*self.properties.values(), *([self.items] if self.items else [])]
        return bool(self.defaults) or any(plan.has_defaults for plan in below)


class ArgumentSchema:
    """One tool's schema, compiled once: at registration or, if `lazy`, at the first call.

    Lazy is for built-in tools, whose schemas the tests compile: a process calls few of them.
    """

    __slots__ = (
        "_always_mend",
        "_foreign",
        "_free_bytes",
        "_plan",
        "_tool",
        "_validate",
        "_validator",
        "max_bytes",
        "schema",
    )

    def __init__(
        self,
        schema: Mapping[str, Any],
        tool: str,
        *,
        max_bytes: int = MAX_BYTES,
        foreign: bool = False,
        lazy: bool = False,
    ) -> None:
        self.schema = schema
        self.max_bytes = max_bytes
        self._tool, self._foreign = tool, foreign
        self._validator: Validator | None = None
        if not lazy:
            self.compile()

    def compile(self) -> None:
        """Compile the schema. Raises `ToolRegistrationError` if it is invalid."""
        schema, tool = self.schema, self._tool
        if not self._foreign:
            check_subset(schema, tool)
        try:
            self._validator = _foreign(schema) if self._foreign else _native(schema)
        except (ValueError, TypeError, RecursionError) as error:
            raise ToolRegistrationError(
                f"tool {tool!r}: input_schema: {first_line(error)}"
            ) from None
        self._validate = self._validator.is_quickly_valid
        self._free_bytes = self._validator.free_bytes
        if self._foreign:
            self._plan, self._always_mend = None, False
            return
        plan = _plan(schema)
        self._plan = None if plan.empty else plan
        self._always_mend = plan.has_defaults
        self._check_defaults(tool)

    def check(self, arguments: Any) -> Checked:
        """Validate. Raises `ToolValidationError` with every violation and its path."""
        if type(arguments) is not dict and not isinstance(arguments, dict):
            raise _invalid([("", "the arguments must be an object")])
        if self._validator is None:
            self.compile()
        try:
            canonical = _encode(arguments)
        except (RecursionError, TypeError, ValueError, OverflowError) as error:
            raise _unencodable(error) from None
        size = len(canonical)
        if size > _PLAIN_SIZE or size > self.max_bytes:
            _check_bounds(arguments, canonical, self.max_bytes)
        is_unusual = _UNUSUAL.search(canonical.decode())
        if is_unusual and b"null" in canonical:
            _check_walk(arguments)
        value: dict[str, Any] = _decode(canonical)
        plan = self._plan
        if plan is not None and (
            self._always_mend or (is_unusual and _may_hold_whole_float(canonical))
        ):
            value = _mend(value, plan)
            canonical = _encode(value)
            size = len(canonical)
        if size > self._free_bytes:
            self._check_costly(value)
        elif not self._validate(value):
            raise _invalid(self._violations(value))
        return Checked(value, canonical, sha256(canonical).hexdigest(), size)

    def _check_costly(self, value: Any) -> None:
        assert self._validator is not None
        try:
            if not self._validator.is_valid(value):
                raise _invalid(self._violations(value))
        except TooMuch as error:
            raise _invalid([("", str(error))]) from None

    def _violations(self, value: Any) -> list[tuple[str, str]]:
        assert self._validator is not None
        found: list[tuple[str, str]] = []
        for error in self._validator.iter_errors(value):
            if len(found) > MAX_VIOLATIONS:
                break
            location = _location(error.instance_path)
            unexpected = getattr(error.kind, "unexpected", None)
            if unexpected is None:
                found.append((location, error.message))
                continue
            known = self._known_keys(error.instance_path)
            found += [
                (f"{location}.{key}" if location else key, f"unknown key{_nearest(key, known)}")
                for key in unexpected[:MAX_VIOLATIONS]
            ]
        return found[:MAX_VIOLATIONS] or [("", "they do not match the tool's schema")]

    def _known_keys(self, path: list[str | int]) -> list[str]:
        node: Any = self.schema
        for step in path:
            if isinstance(step, int):
                node = _part(node, "items")
            else:
                node = _part(_part(node, "properties"), step)
        known = _part(node, "properties")
        return list(known) if isinstance(known, Mapping) else []

    def _check_defaults(self, tool: str) -> None:
        """Reject invalid defaults: each would fail every call that relies on it."""
        for location, schema in _walk(self.schema, "input_schema"):
            if "default" not in schema:
                continue
            without_default = {k: v for k, v in schema.items() if k != "default"}
            validator = Validator(without_default, draft7=True, formats=True)
            if not validator.is_valid(schema["default"]):
                raise ToolRegistrationError(
                    f"tool {tool!r}: {location}.default does not match its own schema"
                )


def first_line(error: Exception) -> str:
    """Return the problem of a schema, without its location."""
    return str(error).strip().split("\n")[0]


def _part(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, Mapping) else None


def _native(schema: Mapping[str, Any]) -> Validator:
    sealed = _seal(copy.deepcopy(dict(schema)))
    # The subset applies one part of the schema to one part of a value.
    part_limit = max(len(part) + len(part.get("enum", ())) for _, part in _walk(sealed, ""))
    return Validator(sealed, draft7=True, formats=True, part_limit=part_limit)


def _foreign(schema: Mapping[str, Any]) -> Validator:
    """Compile a schema in the dialect that it declares.

    A schema that lists its keys and does not mention others refuses unknown keys here too.
    """
    if schema.get("type") != "object":
        raise ValueError("must be an object schema (type: object at the top)")
    if "properties" in schema and _OPENING.isdisjoint(schema):
        schema = {**schema, "additionalProperties": False}
    return ForeignSchema(schema)


class ForeignSchema(Validator):
    """A third-party schema without external references, which can be checked in bounded time.

    Raises `ValueError` for any other schema.
    """

    __slots__ = ("_size",)

    def __init__(
        self, schema: Mapping[str, Any], *, plain: bool = False, formats: bool = False
    ) -> None:
        """`plain` forbids internal references too. A form needs none, and no user approves its
        schema before the check.
        """
        if plain and refers(schema):
            raise ValueError("it refers to itself")
        try:
            _check_walk(schema)
        except ToolValidationError as error:
            raise ValueError(error.message) from None
        self._size = size_of(schema)
        part_limit = max(self._size.part_count, sum(1 for _ in nodes(schema)))
        super().__init__(dict(schema), formats=formats, part_limit=part_limit)

    def iter_errors(self, value: Any) -> Iterable[Any]:
        """Yield the violations, or none if the search could take too long.

        The search examines every alternative that does not match, and every alternative within it.
        """
        if self._size.at_depth(depth_of(value)) > LARGEST:
            return ()
        return super().iter_errors(value)


def _unencodable(error: Exception) -> ToolValidationError:
    """Return the error for arguments that have no canonical JSON."""
    if isinstance(error, RecursionError):
        return _invalid([("", f"nested deeper than {MAX_DEPTH}")])
    if isinstance(error, UnicodeEncodeError):
        return _invalid([("", "text contains a lone surrogate, which is not Unicode")])
    if isinstance(error, ValueError):  # the interpreter does not print such an integer
        return _invalid([("", _TOO_MANY_DIGITS)])
    return _invalid([("", f"not JSON: {error}")])


def _check_bounds(arguments: dict[str, Any], canonical: bytes, max_bytes: int) -> None:
    size = len(canonical)
    if size > max_bytes:
        raise _invalid([("", f"{size} bytes; the maximum is {max_bytes}")])
    # Cheap bounds first: only suspicious input is walked.
    if size > MOST_PARTS and canonical.count(b",") >= MOST_PARTS:
        _ensure_few_parts(arguments)
    nested = canonical.count(b"{") + canonical.count(b"[") > MAX_DEPTH
    digits = size > MAX_DIGITS and b"00000000" in canonical[::_SAMPLE].translate(_DIGITS)
    if nested or digits:
        _check_walk(arguments)


def _ensure_few_parts(arguments: dict[str, Any]) -> None:
    """Refuse too many parts, before later checks visit each of them."""
    try:
        count_parts(arguments)
    except TooMuch as error:
        raise _invalid([("", str(error))]) from None


def _may_hold_whole_float(canonical: bytes) -> bool:
    """Whether a number may be written like 1.0 or 1e3. A false positive does no harm."""
    return _WHOLE_FLOAT(canonical) is not None or b"0e" in canonical.translate(_DIGITS)


def _check_walk(arguments: Any) -> None:
    level = [arguments]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            below += container.values() if isinstance(container, dict) else container
        if [each for each in below if type(each) is float and not math.isfinite(each)]:
            raise _invalid([("", "NaN and infinity are not JSON")])
        if [each for each in below if isinstance(each, int) and abs(each) >= _TOO_LARGE]:
            raise _invalid([("", _TOO_MANY_DIGITS)])
        level = [each for each in below if isinstance(each, _CONTAINERS)]
        if not level:
            return
    raise _invalid([("", f"nested deeper than {MAX_DEPTH}")])


_TOO_MANY_DIGITS = f"an integer has more than {MAX_DIGITS} digits"


def _invalid(violations: list[tuple[str, str]]) -> ToolValidationError:
    lines = [f"{path}: {message}" if path else message for path, message in violations]
    return ToolValidationError(
        "Invalid arguments: " + "; ".join(lines),
        validation_errors=lines,
        details={"errors": [{"path": path, "message": text} for path, text in violations]},
    )


def _location(path: list[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _nearest(key: str, known: list[str]) -> str:
    near = nearest(key, known)
    if near:
        return f"; did you mean {near!r}?"
    return f"; known: {', '.join(known)}" if known else "; no keys are allowed"


def _walk(schema: Any, location: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    yield location, schema
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, child in properties.items():
            yield from _walk(child, f"{location}.properties.{name}")
    yield from _walk(schema.get("items"), f"{location}.items")


def _seal(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown keys where the schema names some and does not mention others."""
    for _, node in _walk(schema, ""):
        if "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False  # type: ignore[index]  # our own deep copy
    return schema


def _plan(schema: Any) -> _Plan:
    if not isinstance(schema, Mapping):
        return _Plan()
    declared = schema.get("type", ())
    types = {declared} if isinstance(declared, str) else set(declared)
    properties: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    named = schema.get("properties")
    for name, child in named.items() if isinstance(named, Mapping) else ():
        below = _plan(child)
        if not below.empty:
            properties[name] = below
        if isinstance(child, Mapping) and "default" in child:
            defaults[name] = child["default"]
    items = _plan(schema.get("items"))
    return _Plan(
        integer="integer" in types and "number" not in types,
        defaults=defaults,
        properties=properties,
        items=None if items.empty else items,
    )


def _mend(value: Any, plan: _Plan) -> Any:
    if isinstance(value, dict):
        for key, default in plan.defaults.items():
            if key not in value:
                value[key] = copy.deepcopy(default)
        for key, below in plan.properties.items():
            if key in value:
                value[key] = _mend(value[key], below)
    elif isinstance(value, list) and plan.items is not None:
        return [_mend(item, plan.items) for item in value]
    elif plan.integer and type(value) is float and value.is_integer():
        return int(value)
    return value
