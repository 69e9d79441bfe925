"""No pattern that somebody else wrote meets a matcher that goes back: whoever adds one is found.

`re` tries again and again where a pattern allows it, and holds the interpreter's lock while it does.
So only patterns of our own, written out in the source, are given to it. Globs are matched by
`core/patterns`, schemas by `core/schema_validators`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from re._constants import MAXREPEAT  # type: ignore[import-not-found]
from re._parser import parse  # type: ignore[import-not-found]
from typing import Any

import callgate
import callgate_catalogue
from tests.spec.test_process_starts import modules

LISTED = {
    "core/patterns.py": "pieces of a glob between its stars, in which nothing repeats",
    "workspace/search.py": "checks a model's pattern; matches it only where one repetition is all",
    "workspace/match_lines.py": "matches a model's pattern in a process that is ended when it takes too long",
    "redaction/masking.py": "the options and programs of the module's own tables",
    "redaction/assignments.py": "its own plain and rare characters, put together; the end of a quotation",
    "redaction/shapes.py": "put together from the prefixes of the module's own table",
    "redaction/texts.py": "a secret, as it stands",
    "protocol/toolcalls/stream.py": "an object in objects, put together from the module's own patterns",
    "protocol/toolcalls/mend.py": "all but one of three quotation marks",
    "callgate_catalogue/web/html.py": "the end tag of a fixed list of names",
}
VALIDATOR = "core/schema_validators.py"
SCANS = "core/patterns.py"
MATCHERS = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer", "template"}
)
BACKTRACKING = frozenset({"fnmatch", "glob", "pathspec", "jsonschema", "regex", "sre_compile", "wcmatch"})
_SUSPECT = re.compile("|".join((r"\bre\b", *sorted(BACKTRACKING))))
"""A module without one of these words matches no pattern, and is not parsed."""


def matchers(source: str) -> Iterator[str]:
    """The patterns of a module that are not written out in it, and the libraries that would match
    them."""
    if not _SUSPECT.search(source):
        return
    tree = ast.parse(source)
    written = {"re"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] in BACKTRACKING:
                    yield f"import {each.name}"
                if each.name == "re" and each.asname:
                    written.add(each.asname)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {*BACKTRACKING, "re"}:
            yield f"from {node.module} import {', '.join(each.name for each in node.names)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            of_re = isinstance(owner, ast.Name) and owner.id in written and node.func.attr in MATCHERS
            if of_re and not (node.args and _is_written_out(node.args[0])):
                yield ast.unparse(node)
            if node.func.attr in ("glob", "rglob") and not (node.args and isinstance(node.args[0], ast.Constant)):
                yield ast.unparse(node)


def _is_written_out(node: ast.expr) -> bool:
    """Whether a pattern consists of constants of the source alone."""
    match node:
        case ast.Constant():
            return True
        case ast.JoinedStr():
            return all(map(_is_written_out, node.values))
        case ast.FormattedValue():
            return _is_written_out(node.value)
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            return _is_written_out(node.left) and _is_written_out(node.right)
        case ast.Name():
            return node.id.isupper()
        case ast.Attribute():
            return node.attr == "pattern" and _is_written_out(node.value) or node.attr.isupper()
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="escape")):
            return all(map(_is_written_out, node.args))
        case ast.Call(func=ast.Attribute(attr="replace" | "join", value=owner)):
            return all(map(_is_written_out, (owner, *node.args)))
    return False


def test_only_patterns_of_our_own_are_given_to_re() -> None:
    found = {name: list(matchers(source)) for name, source in modules()}
    assert {name: ways for name, ways in found.items() if ways and name not in LISTED} == {}
    assert [name for name in LISTED if not found.get(name)] == []


def test_only_one_module_makes_validators() -> None:
    """One more uses its engine, with bounded patterns: it searches for our own words."""
    found = [name for name, source in modules() if "jsonschema_rs" in source]
    assert sorted(found) == sorted([VALIDATOR, SCANS])


def test_every_way_to_match_a_foreign_pattern_would_be_found() -> None:
    ways = [
        "import re\nre.compile(x)",
        "import re\nre.search(f'a{x}', y)",
        "import re as r\nr.match(x, y)",
        "from re import compile",
        "import fnmatch",
        "from fnmatch import fnmatchcase",
        "import glob",
        "from pathspec import GitIgnoreSpec",
        "import jsonschema",
        "path.glob(x)",
        "import re\nre.sub(x + 'a', y, z)",
    ]
    assert [way for way in ways if not list(matchers(way))] == []


# --- our own patterns ---------------------------------------------------------------------------

_ONE = "its first character begins each round, and nothing else holds that"
_FREE = "nothing stands behind it, so it never has to be read in another way"
NESTED = {
    "redaction.assignments._BARE": _ONE,
    "redaction.assignments._ENCODED": _ONE,
    "redaction.masking._COMMAND": _FREE,
    "redaction.names._NO_SECRET": _ONE,
    "redaction.names._REFERENCE": _ONE,
    "protocol.toolcalls.find._BRACKETS": _ONE,
    "protocol.toolcalls.preview.STRING": _ONE,
    "protocol.toolcalls.preview._NESTED": _ONE,
    "protocol.toolcalls.preview._OTHER_TYPE": _ONE,
    "protocol.toolcalls.preview._USUAL": _ONE,
    "protocol.toolcalls.preview._LEGIBLE": _ONE,
    "protocol.toolcalls.find._CLOSING": _FREE,
    "protocol.toolcalls.stream._FLAT": _ONE,
    "protocol.toolcalls.stream._COMPLETE_CALL": _ONE,
    "redaction.assignments._INDENTED": _FREE,
    "redaction.names._HUMPS": "what stands behind each run says where it ends",
    "policy.shell_reader._JOINED_LINE": _ONE,
    "policy.shell_words._BACKTICKS": _ONE,
    "policy.shell_words._ANSI_C": _ONE,
    "protocol.host_v1.lines._NAMED": _ONE,
    "sources.shapes._NUMPY_ENTRY": "a comma begins each round; the text is that of a tool's author",
}
"""Patterns with a repetition in a repetition, and why each text is read in one way only."""


def nested(parsed: Any, within: bool = False) -> bool:
    """Whether something that has no end repeats within something that has none."""
    for operation, value in parsed:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            endless = value[1] == MAXREPEAT
            if (endless and within) or nested(value[2], within or endless):
                return True
        elif name == "SUBPATTERN":
            if nested(value[3], within):
                return True
        elif name == "BRANCH":
            if any(nested(each, within) for each in value[1]):
                return True
        elif name in ("ASSERT", "ASSERT_NOT", "POSSESSIVE_REPEAT", "ATOMIC_GROUP"):  # read in one way
            inner = value if name == "ATOMIC_GROUP" else value[-1]
            if nested(inner):
                return True
    return False


def _patterns(value: Any) -> Iterator[re.Pattern[Any]]:
    value = getattr(value, "__self__", value)  # a method of one
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _patterns(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _patterns(each)


def _own_patterns() -> dict[str, re.Pattern[Any]]:
    """By where each is first found."""
    found: dict[tuple[Any, int], str] = {}
    for info in (
        *pkgutil.walk_packages(callgate.__path__, "callgate."),
        *pkgutil.walk_packages(callgate_catalogue.__path__, "callgate_catalogue."),
    ):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError:  # of an adapter, whose framework is not here
            assert info.name.startswith("callgate.adapters.")
            source = importlib.util.find_spec(info.name).origin
            assert "import re\n" not in Path(source).read_text()
            continue
        for name, value in vars(module).items():
            for pattern in _patterns(value):
                at = f"{info.name.removeprefix('callgate.')}.{name}"
                if name.startswith("_") or (pattern.pattern, pattern.flags) not in found:
                    found.setdefault((pattern.pattern, pattern.flags), at)
    return {at: re.compile(*key) for key, at in found.items()}


def test_no_pattern_of_our_own_repeats_within_a_repetition_without_a_reason() -> None:
    own = _own_patterns()
    assert len(own) > 150
    found = {at for at, pattern in own.items() if nested(parse(pattern.pattern, pattern.flags & ~re.UNICODE))}
    assert found == set(NESTED)


def test_a_repetition_within_a_repetition_would_be_found() -> None:
    assert all(nested(parse(each)) for each in ["(a+)+", "(?:a|b*)+x", "((ab)*c)*", "(?=(a*)*)", "(a+){2,}"])
    assert not any(nested(parse(each)) for each in ["a+b+", "(?:ab)+", "(?:a{2,3})+", "[a-z]*"])
