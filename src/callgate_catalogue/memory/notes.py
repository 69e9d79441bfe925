"""What the memory tools do. A secret is taken out before a text is kept."""

from __future__ import annotations

from typing import Any

from callgate import TextBlock, ToolContext, ToolError, ToolOutput
from callgate.packs.files import off_loop, redact
from callgate.packs.tools import Environment
from callgate_catalogue.memory.pack import Notes
from callgate_catalogue.memory.store import Entry, Memory


def memory_of(notes: Notes, workspace: str) -> Memory:
    table = notes.table
    return Memory(notes.home, workspace, max_entries=table.max_entries, max_chars=table.max_chars)


async def add(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    text = redact(input["content"])
    memory, scope = memory_of(notes, context.workspace_path), input.get("scope", "workspace")
    entry = await off_loop(memory.add, text, scope)
    return _done(f"Noted as {entry.id}", entry, input)


async def replace(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    memory = memory_of(notes, context.workspace_path)
    entry = await off_loop(memory.replace, input["id"], redact(input["content"]))
    return _done(f"Replaced {entry.id}", entry, input)


async def consolidate(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    ids, text = input["ids"], redact(input["content"])
    memory = memory_of(notes, context.workspace_path)
    entry = await off_loop(memory.consolidate, ids, text)
    return _done(f"{entry.id} stands for {', '.join(ids)}", entry, input)


async def search(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    memory = memory_of(notes, context.workspace_path)
    scopes = (input["scope"],) if "scope" in input else ()
    found = memory.search(input["query"], input.get("limit", 10), *scopes)
    text = "\n".join(f"{entry.id}: {entry.text}" for entry in found)
    return ToolOutput(
        content=[TextBlock(text or "Nothing of that was noted")],
        value=[{"id": each.id, "scope": each.scope, "content": each.text} for each in found],
        metadata={"count": len(found)},
    )


def add_preview(input: dict[str, Any], environment: Environment, notes: Notes) -> str:
    where = "everywhere" if input.get("scope") == "user" else "in this workspace"
    return f"Note for later, {where}:\n{redact(input['content'])}"


def replace_preview(input: dict[str, Any], environment: Environment, notes: Notes) -> str:
    current = _current_text(memory_of(notes, environment.files.workspace_root), input["id"])
    return f"In place of\n{current}\nnote\n{redact(input['content'])}"


def consolidate_preview(input: dict[str, Any], environment: Environment, notes: Notes) -> str:
    memory = memory_of(notes, environment.files.workspace_root)
    current = "\n".join(_current_text(memory, id) for id in input["ids"])
    return f"In place of\n{current}\nnote\n{redact(input['content'])}"


def _current_text(memory: Memory, id: str) -> str:
    try:
        return f"{id}: {memory.get(id).text}"
    except ToolError as error:
        return f"{id}: {error}"


def _done(message: str, entry: Entry, input: dict[str, Any]) -> ToolOutput:
    left_out = redact(input["content"]).strip() != input["content"].strip()
    more = "; what looked like a secret was left out" if left_out else ""
    return ToolOutput(
        content=[TextBlock(message + more)],
        value={"id": entry.id, "scope": entry.scope, "content": entry.text},
    )
