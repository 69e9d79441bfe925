"""Files in Google Drive: what is read how, what is changed, and what a query cannot break out of."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from callgate.core.content import ImageBlock
from callgate.core.errors import ToolErrorClass
from tests.catalogue.google.desk import FILE, Desk
from tests.google_services import NATIVE
from tests.small_pdfs import pdf

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
    [
        ("document", "text/markdown", b"# A"),
        ("spreadsheet", "text/csv", b"a,b\n"),
        ("presentation", "text/plain", b"Slide"),
    ],
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


async def test_a_pdf_is_read_where_that_can_be_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdf", reason="needs pypdf: not installed")
    report = desk.google.drive.put("r.pdf", "application/pdf", pdf("All is well."))
    assert (await desk.call("drive_read", fileId=report)).text == "[page 1]\nAll is well."
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert await desk.reason("drive_read", fileId=report) == "not_installed"


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


async def test_a_new_content_leaves_the_type_of_a_file_as_it_is(desk: Desk) -> None:
    drive = desk.google.drive
    table = drive.put("data.csv", "text/csv", b"a")
    await desk.value("drive_update", fileId=table, content="b")
    await desk.value("drive_update", fileId=table, name="d.csv", path="note.txt")
    assert (drive.files[table]["mimeType"], drive.contents[table]) == ("text/csv", b"A note.")
    await desk.value("drive_update", fileId=table, content="{}", mimeType="application/json")
    assert drive.files[table]["mimeType"] == "application/json"


@pytest.mark.parametrize(
    ("kind", "said", "sent", "sent_as"),
    [
        ("document", {"content": "Words"}, b"Words", "text/plain"),
        ("spreadsheet", {"content": "a,b"}, b"a,b", "text/csv"),
        ("document", {"path": "old.doc"}, b"Old", "application/msword"),
    ],
)
async def test_documents_of_googles_own_are_made_of_what_it_can_convert(
    kind: str, said: dict[str, str], sent: bytes, sent_as: str, desk: Desk
) -> None:
    (desk.workspace / "old.doc").write_bytes(b"Old")
    media_type = f"application/vnd.google-apps.{kind}"
    made = await desk.value("drive_create", name="New", mimeType=media_type, **said)
    assert (made["mimeType"], desk.google.drive.contents[made["id"]]) == (media_type, sent)
    await desk.value("drive_update", fileId=made["id"], name="Newer", **said)
    await desk.value("drive_update", fileId=made["id"], **said)
    assert (desk.google.drive.files[made["id"]]["mimeType"], desk.google.drive.contents[made["id"]]) == (
        media_type,
        sent,
    )
    assert desk.google.asked()[-1].headers["content-type"] == sent_as


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("report", "r.pdf", "application/pdf"),
        ("r.csv", "made", "text/csv"),
        ("r.tar.gz", "r.tar.gz", "application/octet-stream"),
        ("made", "made", "application/octet-stream"),
    ],
)
async def test_the_name_of_a_file_says_its_type(name: str, path: str, kind: str, desk: Desk) -> None:
    (desk.workspace / path).write_bytes(b"x")
    assert (await desk.value("drive_create", name=name, path=path))["mimeType"] == kind


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
    for tool, arguments in (
        ("drive_create", {"name": "n"}),
        ("drive_download", {"fileId": FILE}),
        ("drive_update", {"fileId": FILE}),
    ):
        result = await desk.call(tool, path=path, **arguments)
        assert result.error is not None
        assert result.error.error_class is ToolErrorClass.PERMISSION_DENIED
    assert desk.google.exchanges == []
