"""Spreadsheets: read, write, append, create, clear."""

from __future__ import annotations

import csv
import io
from typing import Any

from callgate import ToolOutput
from callgate_catalogue.google.outputs import given, one_line, text_output
from callgate_catalogue.google.requests import Call, path

_ABOUT = "spreadsheetId,spreadsheetUrl,properties(title,timeZone),sheets(properties)"


async def read_values(call: Call) -> ToolOutput:
    input = call.input
    if "range" not in input:
        return await _about(call)
    where = path(
        "/spreadsheets/{id}/values/{range}", id=input["spreadsheetId"], range=input["range"]
    )
    found = await call.google.get("sheets", where, given(input, "valueRenderOption"))
    values = [list(row) for row in found.get("values") or ()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(values)
    value = {"range": found.get("range"), "values": values}
    return text_output(text.getvalue() or f"{found.get('range')} is empty", value)


async def _about(call: Call) -> ToolOutput:
    where = path("/spreadsheets/{id}", id=call.input["spreadsheetId"])
    found = await call.google.get("sheets", where, {"fields": _ABOUT})
    sheets = [each.get("properties") or {} for each in found.get("sheets") or ()]
    lines = [one_line((found.get("properties") or {}).get("title", ""))]
    for each in sheets:
        size = each.get("gridProperties") or {}
        rows, columns = size.get("rowCount", 0), size.get("columnCount", 0)
        lines.append(f"  {one_line(each.get('title', ''))}  {rows} rows, {columns} columns")
    return text_output("\n".join(lines), found)


def _values(call: Call) -> dict[str, Any]:
    return {"majorDimension": "ROWS", "values": call.input["values"]}


async def write_values(call: Call) -> ToolOutput:
    input = call.input
    where = path(
        "/spreadsheets/{id}/values/{range}", id=input["spreadsheetId"], range=input["range"]
    )
    params = {"valueInputOption": input["valueInputOption"]}
    done = await call.google.send("PUT", "sheets", where, _values(call), params)
    return text_output(
        f"Wrote {done.get('updatedCells', 0)} cells in {done.get('updatedRange')}", done
    )


async def append_values(call: Call) -> ToolOutput:
    input = call.input
    where = path(
        "/spreadsheets/{id}/values/{range}:append", id=input["spreadsheetId"], range=input["range"]
    )
    params = {
        "valueInputOption": input["valueInputOption"],
        "insertDataOption": "INSERT_ROWS",
    }
    done = await call.google.send("POST", "sheets", where, _values(call), params)
    updates = done.get("updates") or {}
    rows = updates.get("updatedRows", 0)
    return text_output(f"Added {rows} rows in {updates.get('updatedRange')}", done)


async def create_spreadsheet(call: Call) -> ToolOutput:
    body = {"properties": {"title": call.input["title"]}}
    created = await call.google.send("POST", "sheets", "/spreadsheets", body, {"fields": _ABOUT})
    text = f"Created {one_line(call.input['title'])}, as {created['spreadsheetId']}"
    return text_output(f"{text}\n{created.get('spreadsheetUrl', '')}".rstrip(), created)


async def clear_values(call: Call) -> ToolOutput:
    input = call.input
    where = path(
        "/spreadsheets/{id}/values/{range}:clear", id=input["spreadsheetId"], range=input["range"]
    )
    done = await call.google.send("POST", "sheets", where, {}, again=True)
    return text_output(f"Emptied {done.get('clearedRange')}", done)
