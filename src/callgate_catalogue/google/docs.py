"""Documents and spreadsheets: read, write, append, create, clear."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from callgate import ToolError, ToolExecutionError, ToolOutput
from callgate_catalogue.google.outputs import given, one_line, text_output
from callgate_catalogue.google.requests import Call, path
from callgate_catalogue.web.markdown import without_unseen

_LINK = "https://docs.google.com/document/d/{}/edit"
_MAX_DEPTH = 20
_AS_IT_STANDS = {
    "includeTabsContent": True,
    "suggestionsViewMode": "PREVIEW_WITHOUT_SUGGESTIONS",  # otherwise both texts remain
}


async def read_document(call: Call) -> ToolOutput:
    where = path("/documents/{id}", id=call.input["documentId"])
    document = await call.google.get("docs", where, _AS_IT_STANDS)
    text = without_unseen("\n\n".join(_tabs(document))).strip()
    value = {
        "documentId": document.get("documentId"),
        "title": document.get("title", ""),
        "revisionId": document.get("revisionId"),
        "text": text,
    }
    return text_output(f"# {one_line(value['title'])}\n\n{text}", value)


def _tabs(document: Mapping[str, Any]) -> Iterator[str]:
    tabs = list(_all_tabs(document.get("tabs") or []))
    if not tabs:
        yield _body(document)
    for tab in tabs:
        text = _body(tab.get("documentTab") or {})
        title = one_line((tab.get("tabProperties") or {}).get("title", ""))
        yield f"## {title}\n\n{text}" if len(tabs) > 1 else text


def _all_tabs(tabs: list[Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    for tab in tabs:
        yield tab
        if depth < _MAX_DEPTH:
            yield from _all_tabs(tab.get("childTabs") or [], depth + 1)


def _body(holder: Mapping[str, Any]) -> str:
    content = (holder.get("body") or {}).get("content") or []
    return "\n".join(_blocks(content)).replace("\v", "\n")


def _blocks(content: list[Any], depth: int = 0) -> Iterator[str]:
    for element in content:
        if "paragraph" in element:
            yield _paragraph(element["paragraph"])
        elif "table" in element and depth < _MAX_DEPTH:
            yield from _table(element["table"], depth)


def _paragraph(paragraph: Mapping[str, Any]) -> str:
    text = "".join(_run(each) for each in paragraph.get("elements") or ()).rstrip("\n")
    style = str((paragraph.get("paragraphStyle") or {}).get("namedStyleType", ""))
    if style.startswith("HEADING_") and text:
        return f"{'#' * int(style.removeprefix('HEADING_'))} {text}"
    bullet = paragraph.get("bullet")
    if bullet is not None:
        return f"{'  ' * int(bullet.get('nestingLevel') or 0)}- {text}"
    return text


def _run(element: Mapping[str, Any]) -> str:
    run = element.get("textRun")
    if run is None:
        link = (element.get("richLink") or {}).get("richLinkProperties") or {}
        person = (element.get("person") or {}).get("personProperties") or {}
        return str(link.get("title") or person.get("name") or person.get("email") or "")
    text = str(run.get("content", ""))
    url = ((run.get("textStyle") or {}).get("link") or {}).get("url")
    words = text.rstrip("\n")
    return f"[{words}]({url})" if url and words.strip() else text


def _table(table: Mapping[str, Any], depth: int) -> Iterator[str]:
    for number, row in enumerate(table.get("tableRows") or ()):
        cells = [
            one_line(" ".join(_blocks(cell.get("content") or [], depth + 1))).replace("|", "\\|")
            for cell in row.get("tableCells") or ()
        ]
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{' --- |' * len(cells)}"


async def create_document(call: Call) -> ToolOutput:
    document = await call.google.send("POST", "docs", "/documents", {"title": call.input["title"]})
    document_id = document["documentId"]
    if call.input.get("text"):
        insert = {"insertText": {"location": {"index": 1}, "text": call.input["text"]}}
        try:
            await _change(call, document_id, insert)
        except ToolError as error:
            raise ToolExecutionError(
                f"The document was created, as {document_id}, but its text is missing:"
                f" {error.message}",
                reason=error.reason,
            ) from None
    link = _LINK.format(document_id)
    value = {"documentId": document_id, "title": document.get("title"), "url": link}
    return text_output(
        f"Created {one_line(document.get('title', ''))}, as {document_id}\n{link}", value
    )


async def append_text(call: Call) -> ToolOutput:
    document_id, text = call.input["documentId"], call.input["text"]
    await _change(call, document_id, {"insertText": {"endOfSegmentLocation": {}, "text": text}})
    return text_output(f"Added {len(text):,} characters", {"documentId": document_id})


async def replace_text(call: Call) -> ToolOutput:
    input = call.input
    wanted = {"text": input["findText"], "matchCase": input["matchCase"]}
    request = {"replaceAllText": {"containsText": wanted, "replaceText": input["replaceText"]}}
    response = await _change(call, input["documentId"], request)
    replies = response.get("replies") or [{}]
    count = int((replies[0].get("replaceAllText") or {}).get("occurrencesChanged") or 0)
    times = {0: "The text does not occur: nothing changed", 1: "Replaced it once"}
    value = {"documentId": input["documentId"], "occurrencesChanged": count}
    return text_output(times.get(count, f"Replaced it {count} times"), value)


async def _change(call: Call, document_id: str, request: dict[str, Any]) -> Any:
    where = path("/documents/{id}:batchUpdate", id=document_id)
    return await call.google.send("POST", "docs", where, {"requests": [request]})


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
