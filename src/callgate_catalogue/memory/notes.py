"""What the memory tools do. A secret is taken out before a text is kept."""

from __future__ import annotations

from typing import Any

from callgate import TextBlock, ToolContext, ToolError, ToolOutput
from callgate.packs.files import redact
from callgate.packs.tools import Environment
from callgate_catalogue.memory.pack import Notes
from callgate_catalogue.memory.store import Entry, Memory


def memory_of(notes: Notes, workspace: str) -> Memory:
    table = notes.table
    return Memory(
        notes.home, workspace, max_entries=table.max_entries, max_chars=table.max_chars
    )


async def add(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    kept = redact(input["content"])
    entry = memory_of(notes, context.workspace_path).add(kept, input.get("scope", "workspace"))
    return _done(f"Noted as {entry.id}", entry, input)


async def replace(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    entry = memory_of(notes, context.workspace_path).replace(input["id"], redact(input["content"]))
    return _done(f"Replaced {entry.id}", entry, input)


async def consolidate(input: dict[str, Any], context: ToolContext, notes: Notes) -> ToolOutput:
    ids, kept = input["ids"], redact(input["content"])
    entry = memory_of(notes, context.workspace_path).consolidate(ids, kept)
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
    said = _said(memory_of(notes, environment.files.workspace_root), input["id"])
    return f"In place of\n{said}\nnote\n{redact(input['content'])}"


def consolidate_preview(input: dict[str, Any], environment: Environment, notes: Notes) -> str:
    memory = memory_of(notes, environment.files.workspace_root)
    said = "\n".join(_said(memory, id) for id in input["ids"])
    return f"In place of\n{said}\nnote\n{redact(input['content'])}"


def _said(memory: Memory, id: str) -> str:
    try:
        return f"{id}: {memory.get(id).text}"
    except ToolError as error:
        return f"{id}: {error}"


def _done(said: str, entry: Entry, input: dict[str, Any]) -> ToolOutput:
    left_out = redact(input["content"]).strip() != input["content"].strip()
    more = "; what looked like a secret was left out" if left_out else ""
    return ToolOutput(
        content=[TextBlock(said + more)],
        value={"id": entry.id, "scope": entry.scope, "content": entry.text},
    )
