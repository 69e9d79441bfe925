"""Google documents: read as Markdown, create, append, replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from callgate import ToolError, ToolExecutionError, ToolOutput
from callgate_catalogue.google.outputs import one_line, text_output
from callgate_catalogue.google.requests import Call, path
from callgate_catalogue.web.markdown import without_unseen

_LINK = "https://docs.google.com/document/d/{}/edit"
_MAX_DEPTH = 20
_AS_IT_STANDS = {
    "includeTabsContent": True,
    "suggestionsViewMode": "PREVIEW_WITHOUT_SUGGESTIONS",  # else both texts stand there
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
    times = {0: "The text is not there: nothing changed", 1: "Replaced it once"}
    value = {"documentId": input["documentId"], "occurrencesChanged": count}
    return text_output(times.get(count, f"Replaced it {count} times"), value)


async def _change(call: Call, document_id: str, request: dict[str, Any]) -> Any:
    where = path("/documents/{id}:batchUpdate", id=document_id)
    return await call.google.send("POST", "docs", where, {"requests": [request]})
