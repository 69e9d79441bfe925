"""Documents, sheets and tasks: what is read of them, and what changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.catalogue.google.desk import DOCUMENT, SHEET, TASK, Desk
from tests.google_server import Fault


def paragraph(text: str, style: str = "NORMAL_TEXT", **more: Any) -> dict[str, Any]:
    run = {
        "textRun": {
            "content": f"{text}\n",
            **({"textStyle": {"link": {"url": more.pop("url")}}} if "url" in more else {}),
        }
    }
    return {"paragraph": {"elements": [run], "paragraphStyle": {"namedStyleType": style}, **more}}


async def test_a_document_is_read_as_markdown(desk: Desk) -> None:
    cell = {"content": [paragraph("a|b")]}
    body = [
        {"sectionBreak": {}},
        paragraph("Title", "HEADING_1"),
        paragraph("Text"),
        paragraph("one", bullet={"listId": "l"}),
        paragraph("two", bullet={"listId": "l", "nestingLevel": 1}),
        {"table": {"tableRows": [{"tableCells": [cell, cell]}, {"tableCells": [cell, cell]}]}},
        paragraph("here", url="https://x.example"),
        {"paragraph": {"elements": [{"person": {"personProperties": {"name": "Ann"}}}, {"pageBreak": {}}]}},
    ]
    id = desk.google.documents.put("Rich", body=body)
    value = await desk.value("docs_read", documentId=id)
    assert value["text"].splitlines() == [
        "# Title",
        "Text",
        "- one",
        "  - two",
        r"| a\|b | a\|b |",
        "| --- | --- |",
        r"| a\|b | a\|b |",
        "[here](https://x.example)",
        "Ann",
    ]


async def test_a_document_is_read_without_what_others_suggest(desk: Desk) -> None:
    await desk.value("docs_read", documentId=DOCUMENT)
    assert dict(desk.google.asked()[0].query)["suggestionsViewMode"] == "PREVIEW_WITHOUT_SUGGESTIONS"


async def test_a_document_without_tabs_is_read_as_well(desk: Desk) -> None:
    desk.google.faults = [
        Fault(
            200,
            body=b'{"title": "Old", "body": {"content": [{"paragraph": {"elements": [{"textRun": {"content": "x\\n"}}]}}]}}',
        )
    ]
    assert (await desk.value("docs_read", documentId=DOCUMENT))["text"] == "x"


async def test_a_document_is_made_with_its_text(desk: Desk) -> None:
    made = await desk.value("docs_create", title="T", text="Words\nmore")
    assert desk.google.documents.documents[made["documentId"]] == {"title": "T", "text": "Words\nmore"}
    made = await desk.value("docs_create", title="Empty")
    assert desk.google.documents.documents[made["documentId"]]["text"] == ""


async def test_a_document_whose_text_failed_is_not_kept_secret(desk: Desk) -> None:
    desk.google.faults = [Fault(200, body=b'{"documentId": "1New", "title": "T"}'), Fault(403, "forbidden")]
    result = await desk.call("docs_create", title="T", text="x")
    assert result.error is not None
    assert "1New" in result.text


async def test_a_replacement_says_how_often(desk: Desk) -> None:
    assert (await desk.value("docs_replace", documentId=DOCUMENT, findText="e", replaceText="E"))[
        "occurrencesChanged"
    ] == 2
    assert (await desk.value("docs_replace", documentId=DOCUMENT, findText="nowhere", replaceText=""))[
        "occurrencesChanged"
    ] == 0
    changed = await desk.value("docs_replace", documentId=DOCUMENT, findText="UPON", replaceText="at", matchCase=False)
    assert (changed["occurrencesChanged"], desk.google.documents.documents[DOCUMENT]["text"]) == (1, "OncE at a timE")


async def test_cells_are_read_and_without_a_range_the_sheets(desk: Desk) -> None:
    result = await desk.call("sheets_read", spreadsheetId=SHEET, range="Sheet1!A1:B2")
    assert result.value["values"] == [["what", "cost"], ["tea", 3]]
    assert result.text == "what,cost\ntea,3\n"
    await desk.value("sheets_read", spreadsheetId=SHEET, range="A1", valueRenderOption="FORMULA")
    assert [dict(each.query)["valueRenderOption"] for each in desk.google.asked()] == ["FORMATTED_VALUE", "FORMULA"]
    about = await desk.value("sheets_read", spreadsheetId=SHEET)
    assert about["sheets"][0]["properties"]["title"] == "Sheet1"
    assert (await desk.value("sheets_read", spreadsheetId=SHEET, range="C5"))["values"] == []


async def test_cells_are_written_added_and_cleared(desk: Desk) -> None:
    await desk.value("sheets_write", spreadsheetId=SHEET, range="'Sheet1'!A2:B2", values=[["milk", None]])
    await desk.value("sheets_append", spreadsheetId=SHEET, range="A1:B1", values=[["jam", 4], ["=1+1", True]])
    assert desk.google.sheets.rows(SHEET) == [["what", "cost"], ["milk", 3], ["jam", 4], ["=1+1", True]]
    await desk.value("sheets_clear", spreadsheetId=SHEET, range="A1:B3")
    assert desk.google.sheets.rows(SHEET) == [[], [], [], ["=1+1", True]]


@pytest.mark.parametrize("values", [[], [1], "x", [[{"a": 1}]], [[[1]]]])
async def test_values_are_rows_of_cells(values: Any, desk: Desk) -> None:
    result = await desk.call("sheets_write", spreadsheetId=SHEET, range="A1", values=values)
    assert result.error is not None
    assert desk.google.exchanges == []


async def test_a_task_is_done_and_undone(desk: Desk) -> None:
    assert (await desk.value("tasks_complete", taskId=TASK))["status"] == "completed"
    listed = await desk.value("tasks_list")
    assert listed == {"tasks": [], "taskLists": [{"id": "list-1", "title": "My Tasks"}]}
    assert len((await desk.value("tasks_list", showCompleted=True))["tasks"]) == 1
    assert (await desk.value("tasks_update", taskId=TASK, status="needsAction")).get("completed") is None


async def test_one_task_is_read_with_all_of_its_notes(desk: Desk) -> None:
    task = desk.google.tasks.put("A", notes="one\ntwo")
    assert (await desk.call("tasks_get", taskId=task)).text == f"[ ] {task}  A\n\none\ntwo"


async def test_a_task_is_due_on_a_day(desk: Desk) -> None:
    made = await desk.value("tasks_create", title="A", due="2035-02-01T23:00:00-11:00")
    assert made["due"] == "2035-02-01T00:00:00.000Z"
    result = await desk.call("tasks_create", title="A", due="next week!")
    assert result.error is not None
