"""Names of parameters: the same in the documents, in the schema and in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from callgate.core.tools import ToolDefinition
from callgate.tools.loading import CUSTOM
from callgate.tools.shell import Shell
from callgate_catalogue.documents.pack import CATALOGUE as DOCUMENTS
from callgate_catalogue.documents.pack import FILES
from callgate_catalogue.google.catalogue import CATALOGUE as GOOGLE
from callgate_catalogue.memory.pack import CATALOGUE as MEMORY
from callgate_catalogue.web.pack import CATALOGUE as WEB

GOOGLE_PAGE = Path(__file__).parents[2] / "docs" / "use" / "google.md"
LOADED = [(row.definition, row.function) for row in (*CUSTOM, *FILES, *DOCUMENTS, *MEMORY, *WEB)]
LOADED += [(spec.definition, spec.function) for spec in GOOGLE]
TOOLS = {definition.name: definition for definition, _ in LOADED} | {"terminal_execute": Shell.definition}

SEED = {
    "gmail_list": "maxResults labelIds",
    "gmail_read": "messageId",
    "gmail_send": "to subject body",
    "gmail_search": "query maxResults",
    "drive_list": "folderId maxResults",
    "drive_read": "fileId",
    "drive_create": "name content mimeType",
    "drive_update": "fileId content",
    "drive_delete": "fileId",
    "drive_search": "query maxResults",
    "calendar_list": "",
    "calendar_events": "calendarId timeMin timeMax",
    "calendar_create": "summary start end",
    "calendar_update": "eventId summary",
    "calendar_delete": "eventId",
    "docs_read": "documentId",
    "docs_create": "title text",
    "docs_append": "documentId text",
    "docs_replace": "documentId findText replaceText",
    "sheets_read": "spreadsheetId range",
    "sheets_write": "spreadsheetId range values",
    "sheets_append": "spreadsheetId range values",
    "sheets_create": "title",
    "sheets_clear": "spreadsheetId range",
    "tasks_list": "taskListId",
    "tasks_get": "taskListId taskId",
    "tasks_create": "taskListId title notes",
    "tasks_update": "taskListId taskId title",
    "tasks_complete": "taskListId taskId",
    "tasks_delete": "taskListId taskId",
    "web_search": "query maxTokens",
    "terminal_execute": "command timeout",
    "api_call": "url method headers body",
    "search": "query scope limit",
}
"""What the format that models are taught calls them."""


def properties(definition: ToolDefinition) -> set[str]:
    return set(definition.input_schema.get("properties", {}))


@pytest.mark.spec("T-18")
@pytest.mark.parametrize("name", SEED)
def test_a_tool_takes_the_names_that_models_are_taught(name: str) -> None:
    definition = TOOLS[name]
    assert set(SEED[name].split()) - properties(definition) - set(definition.argument_aliases) == set()


def documented() -> Iterator[tuple[str, set[str], set[str]]]:
    """Each row of the page on Google: the tool, its arguments, those that may be missing."""
    for line in GOOGLE_PAGE.read_text().splitlines():
        if found := re.match(r"\| `(\w+_\w+)` \|(.*)\|[^|]*\|$", line):
            names = re.findall(r"`(\w+)(\??)`", found[2])
            yield found[1], {name for name, _ in names}, {name for name, mark in names if mark}


@pytest.mark.spec("T-18")
def test_the_page_on_google_names_the_parameters_of_the_schemas() -> None:
    rows = {tool: (every, optional) for tool, every, optional in documented()}
    assert sorted(rows) == sorted(spec.definition.name for spec in GOOGLE)
    for spec in GOOGLE:
        every, optional = rows[spec.definition.name]
        known, required = properties(spec.definition), set(spec.definition.input_schema.get("required", ()))
        if spec.definition.name == "calendar_update":  # "and any of those" of the row above
            every |= rows["calendar_create"][0]
        assert (every - known, required - every, required & optional) == (set(), set(), set())
        assert known - every <= {"account"}, spec.definition.name


@pytest.mark.spec("T-18")
def test_the_code_reads_no_parameter_that_no_schema_has() -> None:
    by_module: dict[str, set[str]] = {}
    for definition, function in LOADED:
        by_module.setdefault(function().__module__, set()).update(properties(definition))
    unknown = {module: stray for module, known in by_module.items() if (stray := set(read_from_input(module)) - known)}
    assert unknown == {}


def read_from_input(module: str) -> Iterator[str]:
    """The keys that a module takes out of what is called `input`, there or in a call."""
    source = Path(str(import_module(module).__file__)).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and is_input(node.value):
            key: ast.expr = node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and (node.func.attr == "get" and is_input(node.func.value))
        ):
            key = node.args[0]
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def is_input(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "input") or (
        isinstance(node, ast.Attribute) and node.attr == "input"
    )
