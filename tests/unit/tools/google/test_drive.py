"""Files in Google Drive: what is read how, what is changed, and what a query cannot break out of."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.content import ImageBlock
from callgate.core.errors import ToolErrorClass
from tests.google_services import NATIVE
from tests.unit.tools.google.desk import FILE, Desk

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.mark.parametrize(
    ("media_type", "content", "text"),
    [
        ("text/plain", b"plain", "plain"),
        ("text/plain", "\ufeffwith a mark".encode(), "with a mark"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("text/plain; charset=iso-8859-1", "größer".encode("latin-1"), "größer"),
        ("text/csv", "größer".encode("latin-1"), "größer"),
        ("text/plain", "weit".encode("utf-16"), "weit"),
        ("application/octet-stream", b"really a text", "really a text"),
        ("text/plain", b"", ""),
    ],
)
async def test_a_text_is_read_in_its_charset(media_type: str, content: bytes, text: str, desk: Desk) -> None:
    id = desk.google.drive.put("f", media_type, content)
    assert (await desk.value("drive_read", fileId=id))["content"] == text


@pytest.mark.parametrize(
    ("kind", "export", "content"),
    [("document", "text/markdown", b"# A"), ("spreadsheet", "text/csv", b"a,b\n"), ("presentation", "text/plain", b"Slide")],
)
async def test_googles_own_documents_are_exported(kind: str, export: str, content: bytes, desk: Desk) -> None:
    id = desk.google.drive.put("f", NATIVE + kind, None)
    desk.google.drive.exports[id, export] = content
    assert (await desk.value("drive_read", fileId=id))["content"] == content.decode()
    await desk.value("drive_download", fileId=id, path="f.out")
    assert (desk.workspace / "f.out").read_bytes() == content
    desk.google.drive.exports[id, "application/pdf"] = b"%PDF"
    await desk.value("drive_download", fileId=id, path="f.pdf", mimeType="application/pdf")
    assert (desk.workspace / "f.pdf").read_bytes() == b"%PDF"


async def test_a_picture_is_shown_and_other_bytes_are_not(desk: Desk) -> None:
    picture = desk.google.drive.put("p.png", "image/png", PNG)
    result = await desk.call("drive_read", fileId=picture)
    assert isinstance(result.content[0], ImageBlock)
    archive = desk.google.drive.put("a.zip", "application/zip", b"PK\0\xff")
    assert await desk.reason("drive_read", fileId=archive) == "not_text"
    await desk.value("drive_download", fileId=archive, path="a.zip")
    assert (desk.workspace / "a.zip").read_bytes() == b"PK\0\xff"


async def test_a_folder_has_no_content_and_a_link_leads_to_its_file(desk: Desk) -> None:
    folder = desk.google.drive.put("d", NATIVE + "folder", None)
    assert await desk.reason("drive_read", fileId=folder) == "no_content"
    link = desk.google.drive.put("l", NATIVE + "shortcut", None, shortcutDetails={"targetId": FILE})
    assert (await desk.value("drive_read", fileId=link))["content"] == "The plan."
    loop = desk.google.drive.put("l", NATIVE + "shortcut", None)
    desk.google.drive.files[loop]["shortcutDetails"] = {"targetId": loop}
    assert await desk.reason("drive_read", fileId=loop) == "no_content"


@pytest.mark.parametrize("words", ["it's", "a' or name contains '", "back\\slash", "\\'", "plan' in parents"])
async def test_no_word_breaks_out_of_a_query(words: str, desk: Desk) -> None:
    id = desk.google.drive.put(f"about {words} here")
    assert [each["id"] for each in await desk.value("drive_search", query=words)] == [id]
    assert await desk.value("drive_list", folderId=words) == []


async def test_a_list_shows_what_is_in_a_folder_and_not_in_the_trash(desk: Desk) -> None:
    folder = desk.google.drive.put("d", NATIVE + "folder", None)
    inside = await desk.value("drive_create", name="in.txt", content="x", folderId=folder)
    assert [each["id"] for each in await desk.value("drive_list", folderId=folder)] == [inside["id"]]
    await desk.value("drive_delete", fileId=inside["id"])
    assert await desk.value("drive_list", folderId=folder) == []


@pytest.mark.spec("S3-48")
async def test_delete_means_the_trash_unless_it_is_to_be_for_good(desk: Desk) -> None:
    assert (await desk.value("drive_delete", fileId=FILE))["trashed"] is True
    assert desk.google.drive.files[FILE]["trashed"] is True
    await desk.value("drive_delete", fileId=FILE, permanent=True)
    assert FILE not in desk.google.drive.files
    tool = desk.bench.dispatcher.registry.find("drive_delete")
    assert tool is not None
    shown = [await tool.factory().preview({"fileId": FILE, "permanent": each}, None) for each in (False, True)]  # type: ignore[attr-defined]
    assert ["trash" in each for each in shown] == [True, False]


async def test_a_file_is_made_of_a_text_or_of_a_file(desk: Desk) -> None:
    made = await desk.value("drive_create", name="a.md", content="--b\r\n\r\nÄ", mimeType="text/markdown")
    assert desk.google.drive.contents[made["id"]] == "--b\r\n\r\nÄ".encode()
    assert made["mimeType"] == "text/markdown"
    made = await desk.value("drive_create", name="note.txt", path="note.txt")
    assert (desk.google.drive.contents[made["id"]], made["mimeType"]) == (b"A note.", "text/plain")
    (desk.workspace / "b.bin").write_bytes(b"\0\r\n--\xff")
    made = await desk.value("drive_create", name="b.bin", path="b.bin")
    assert desk.google.drive.contents[made["id"]] == b"\0\r\n--\xff"
    made = await desk.value("drive_create", name="empty.txt")
    assert (desk.google.drive.contents[made["id"]], made["mimeType"]) == (b"", "text/plain")


async def test_an_update_changes_what_it_names(desk: Desk) -> None:
    await desk.value("drive_update", fileId=FILE, content="New")
    assert desk.google.drive.contents[FILE] == b"New"
    await desk.value("drive_update", fileId=FILE, name="new.txt")
    assert (desk.google.drive.files[FILE]["name"], desk.google.drive.contents[FILE]) == ("new.txt", b"New")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("drive_update", {"fileId": FILE}),
        ("drive_update", {"fileId": FILE, "content": "a", "path": "note.txt"}),
        ("drive_create", {"name": "n", "content": "a", "mimeType": "text/plain\r\nX: y"}),
        ("drive_create", {"name": "n", "content": "a", "mimeType": "nonsense"}),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_sent(tool: str, arguments: Any, desk: Desk) -> None:
    result = await desk.call(tool, **arguments)
    assert result.error is not None
    assert result.error.error_class is ToolErrorClass.VALIDATION_ERROR
    assert desk.google.exchanges == []


@pytest.mark.parametrize("path", ["../out.txt", "/etc/passwd"])
async def test_files_come_from_the_workspace_and_go_there(path: str, desk: Desk) -> None:
    for tool, arguments in (("drive_create", {"name": "n"}), ("drive_download", {"fileId": FILE}), ("drive_update", {"fileId": FILE})):
        result = await desk.call(tool, path=path, **arguments)
        assert result.error is not None
        assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
    assert desk.google.exchanges == []
