"""What arguments a tool takes: the JSON Schema subset we accept, and checking against it.

    schema --check_subset--> ArgumentSchema --check--> Checked (what the tool gets, and its bytes)

The subset is what every model provider understands. Beyond Draft 7 we refuse
keys the schema does not name, fill in defaults, hand an int where the schema says integer,
and bound depth and size. The tool receives what was decoded from the canonical bytes, so
what a person approved, what is hashed and what runs are the same bytes.

A `foreign` schema (an MCP server's, a framework's) may use all of JSON Schema, by default 2020-12.
It refers to nothing outside of itself, and its defaults are its owner's own matter.
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
from callgate.core.json_schema.sizes import LARGEST, depth_of, refers, size_of
from callgate.core.json_schema.validators import MOST_PARTS, TooMuch, Validator, count_parts, nodes
from callgate.core.text.scans import Scan
from callgate.core.text.spelling import nearest

MAX_DEPTH = 64
MAX_BYTES = 8 * 1024 * 1024
MAX_DIGITS = 400
"""Digits of one integer, as in documents that are read from a wire."""
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
"""Where a schema may speak of keys that its properties do not list."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_WHOLE = re.compile(rb"\.0+[,}\]]").search
_DIGITS = bytes(ord("0") if chr(code).isdigit() else code for code in range(256))
_TOO_LARGE = 10**MAX_DIGITS
_SAMPLE = MAX_DIGITS // 8
"""Every such byte of a long run of digits is a digit, eight times in a row."""

_UNUSUAL = Scan([r"\.0", "[0-9]e", "null"])
"""What most arguments have nothing of: a float that may be a whole number, and what NaN becomes."""
_PLAIN_SIZE = 2 * MAX_DEPTH
"""In no more bytes than this, nothing is nested too deep or has too many parts."""

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


def canonical_json(value: Any) -> bytes:
    """The one spelling of a value: sorted keys, no spaces, UTF-8."""
    return _encode(value)


def check_subset(schema: Any, tool: str) -> None:
    """Raise `ToolRegistrationError` naming the tool and the place of the first offence."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ToolRegistrationError(
            f"tool {tool!r}: input_schema must be an object schema (type: object at the top)"
        )
    for place, problem in _offences(schema, "input_schema", 0):
        raise ToolRegistrationError(f"tool {tool!r}: {place}: {problem}")


def _offences(schema: Any, place: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, Mapping):
        yield place, "a schema must be an object"
        return
    if depth > MAX_DEPTH:
        yield place, f"nested deeper than {MAX_DEPTH}"
        return
    for keyword in schema:
        if keyword not in ALLOWED_KEYWORDS:
            yield f"{place}.{keyword}", f"keyword {keyword!r} is not in the allowed subset"
    declared = schema.get("type", [])
    for name in declared if isinstance(declared, list | tuple) else [declared]:
        if not isinstance(name, str) or name not in _TYPES:
            yield f"{place}.type", f"unknown type {name!r}"
    if not isinstance(schema.get("additionalProperties", True), bool):
        yield f"{place}.additionalProperties", "must be true or false, not a schema"
    properties = schema.get("properties", {})
    if isinstance(properties, Mapping):
        for name, child in properties.items():
            yield from _offences(child, f"{place}.properties.{name}", depth + 1)
    if "items" in schema:
        yield from _offences(schema["items"], f"{place}.items", depth + 1)


class Checked(msgspec.Struct, frozen=True):
    """Arguments that a tool may be given."""

    arguments: dict[str, Any]
    canonical: bytes
    sha256: str
    """Of the canonical bytes: what an approval is bound to."""
    size: int
    """Bytes of these."""


class _Plan(msgspec.Struct):
    """What to do to a value before it is validated; absent where there is nothing to do."""

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
    """One tool's schema, compiled once: at registration, or `lazy`, with the first call. Lazy is
    for our own tools, whose schemas the tests compile: most are not called in a process."""

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
        """Raises `ToolRegistrationError` where the schema is wrong."""
        schema, tool = self.schema, self._tool
        if not self._foreign:
            check_subset(schema, tool)
        try:
            self._validator = _foreign(schema) if self._foreign else _own(schema)
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
        """Validate; raise `ToolValidationError` that lists every violation with its path."""
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
            place = _place(error.instance_path)
            unexpected = getattr(error.kind, "unexpected", None)
            if unexpected is None:
                found.append((place, error.message))
                continue
            known = self._known_keys(error.instance_path)
            found += [
                (f"{place}.{key}" if place else key, f"unknown key{_nearest(key, known)}")
                for key in unexpected[:MAX_VIOLATIONS]
            ]
        return found[:MAX_VIOLATIONS] or [("", "they do not fit the tool's schema")]

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
        """A default that its own schema refuses would fail every call that relies on it."""
        for place, schema in _walk(self.schema, "input_schema"):
            if "default" not in schema:
                continue
            rest = {k: v for k, v in schema.items() if k != "default"}
            validator = Validator(rest, draft7=True, formats=True)
            if not validator.is_valid(schema["default"]):
                raise ToolRegistrationError(
                    f"tool {tool!r}: {place}.default does not fit its own schema"
                )


def first_line(error: Exception) -> str:
    """What is wrong with a schema, without where in it that stands."""
    return str(error).strip().split("\n")[0]


def _part(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, Mapping) else None


def _own(schema: Mapping[str, Any]) -> Validator:
    sealed = _seal(copy.deepcopy(dict(schema)))
    # In the subset, one part of a value is the matter of one part of the schema.
    parts = max(len(part) + len(part.get("enum", ())) for _, part in _walk(sealed, ""))
    return Validator(sealed, draft7=True, formats=True, parts=parts)


def _foreign(schema: Mapping[str, Any]) -> Validator:
    """In the dialect that it names. Where it lists its keys and says nothing of others, another
    key is a slip here as well."""
    if schema.get("type") != "object":
        raise ValueError("must be an object schema (type: object at the top)")
    if "properties" in schema and _OPENING.isdisjoint(schema):
        schema = {**schema, "additionalProperties": False}
    return ForeignSchema(schema)


class ForeignSchema(Validator):
    """A schema that a stranger wrote, which refers to nothing elsewhere and can be checked in a
    bounded time. Raises `ValueError` where it is none."""

    __slots__ = ("_size",)

    def __init__(
        self, schema: Mapping[str, Any], *, plain: bool = False, formats: bool = False
    ) -> None:
        """`plain`: it may not even refer to itself. A form has no need to, and is checked
        without anybody having approved it."""
        if plain and refers(schema):
            raise ValueError("it refers to itself")
        try:
            _check_walk(schema)
        except ToolValidationError as error:
            raise ValueError(error.message) from None
        self._size = size_of(schema)
        parts = max(self._size.parts, sum(1 for _ in nodes(schema)))
        super().__init__(dict(schema), formats=formats, parts=parts)

    def iter_errors(self, value: Any) -> Iterable[Any]:
        """What is wrong; nothing where finding that out could take for ever: every way in which
        an alternative does not fit is looked at, and within it every alternative."""
        if self._size.at_depth(depth_of(value)) > LARGEST:
            return ()
        return super().iter_errors(value)


def _unencodable(error: Exception) -> ToolValidationError:
    """What is said of arguments that have no canonical JSON."""
    if isinstance(error, RecursionError):
        return _invalid([("", f"nested deeper than {MAX_DEPTH}")])
    if isinstance(error, UnicodeEncodeError):
        return _invalid([("", "text contains a lone surrogate, which is not Unicode")])
    if isinstance(error, ValueError):  # the interpreter does not spell out such an integer
        return _invalid([("", _TOO_MANY_DIGITS)])
    return _invalid([("", f"not JSON: {error}")])


def _check_bounds(arguments: dict[str, Any], canonical: bytes, max_bytes: int) -> None:
    size = len(canonical)
    if size > max_bytes:
        raise _invalid([("", f"{size} bytes; at most {max_bytes} are taken")])
    # Cheap bounds first: only suspicious input is walked.
    if size > MOST_PARTS and canonical.count(b",") >= MOST_PARTS:
        _ensure_few_parts(arguments)
    nested = canonical.count(b"{") + canonical.count(b"[") > MAX_DEPTH
    digits = size > MAX_DIGITS and b"00000000" in canonical[::_SAMPLE].translate(_DIGITS)
    if nested or digits:
        _check_walk(arguments)


def _ensure_few_parts(arguments: dict[str, Any]) -> None:
    """All that follows walks through them, one by one."""
    try:
        count_parts(arguments)
    except TooMuch as error:
        raise _invalid([("", str(error))]) from None


def _may_hold_whole_float(canonical: bytes) -> bool:
    """Whether a number is written like 1.0 or 1e3; a text that looks so does no harm."""
    return _WHOLE(canonical) is not None or b"0e" in canonical.translate(_DIGITS)


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


def _place(path: list[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _nearest(key: str, known: list[str]) -> str:
    near = nearest(key, known)
    if near:
        return f"; did you mean {near!r}?"
    return f"; known: {', '.join(known)}" if known else "; none are taken"


def _walk(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, child in properties.items():
            yield from _walk(child, f"{place}.properties.{name}")
    yield from _walk(schema.get("items"), f"{place}.items")


def _seal(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown keys wherever the schema names some and says nothing about others."""
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
