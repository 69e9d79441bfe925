"""File calls that a model writes as text meet the same wall as any other."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from callgate import tool
from callgate.config.schema import Settings, part_type
from callgate.core.events import CALLED
from callgate.feature import FEATURES
from callgate.tools.files import ListDir, ReadFile, WriteFile
from tests.features.chat.agent.talks import END, call, calls, talk

FILES = (ReadFile, WriteFile, ListDir)


@pytest.mark.spec("S3-56")
@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        "link/passwd",
        "..",
        "a/..\\..\\secret\0",
        "\0",
        "..\\secret",
        "%2e%2e/secret",
        "a/./../../secret",
        "~/secret",
        "file:///etc/passwd",
    ],
)
async def test_no_spelling_leaves_the_workspace(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    reply = calls(call("write_file", "w", path=path, content="owned"), call("read_file", "r", path=path))
    async with talk(tmp_path, reply, calls(END), tools=FILES, mode="write") as bench:
        workspace = tmp_path / "workspace"
        (workspace / "a").mkdir()
        (workspace / "link").symlink_to("/etc")
        await bench.turn()
    assert (tmp_path / "secret").read_text() == "secret"
    assert "owned" not in Path("/etc/passwd").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "secret", "workspace"}
    for result in bench.results():
        if result["success"]:  # a legal name inside, however odd it looks
            assert result["result"] != "secret" and "root:" not in str(result["result"])


@pytest.mark.spec("S3-57", "T-17")
async def test_a_name_with_two_dots_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    reply = calls(call("write_file", path="v1..2/a..b.txt", content="kept"), END)
    async with talk(tmp_path, reply, tools=FILES, mode="write") as bench:
        await bench.turn()
    assert (tmp_path / "workspace" / "v1..2" / "a..b.txt").read_text() == "kept"


@pytest.mark.spec("S3-58")
@pytest.mark.parametrize("name", ["run.sh", "autoexec.py", ".envrc", "package.json", "Makefile"])
async def test_nothing_runs_because_it_was_written(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {marker}\n"
    reply = calls(call("write_file", path=name, content=script, mode="755"), END)
    plain = calls(call("write_file", path=name, content=script), END)
    done = calls(END)
    async with talk(tmp_path, reply, done, plain, done, tools=FILES, mode="write") as bench:
        await bench.turn()
        await bench.turn()
    assert not marker.exists()
    assert {event.payload["tool_name"] for event in bench.of(CALLED)} <= {"write_file"}
    written = tmp_path / "workspace" / name
    assert not written.exists() or not os.access(written, os.X_OK)


@pytest.mark.spec("S3-59")
def test_no_setting_turns_that_on() -> None:
    def names(struct: type) -> set[str]:
        return set(struct.__struct_fields__)  # type: ignore[attr-defined]

    parts = [Settings(), *(kind() for each in FEATURES if (kind := part_type(each.name)) is not None)]
    every = set().union(*(names(type(part)) for part in parts)) | set().union(
        *(
            names(type(getattr(part, field)))
            for part in parts
            for field in names(type(part))
            if hasattr(type(getattr(part, field)), "__struct_fields__")
        )
    )
    assert {"mode", "speak", "delegate_terminal"} <= every
    assert not [name for name in every if re.search("auto_?(exec|run)|exec_on", name)]


@pytest.mark.spec("S3-23")
async def test_other_spellings_of_an_argument_are_taken(tmp_path: Path) -> None:
    @tool(side_effects="none", argument_aliases={"content": "text"})
    async def append(text: str) -> str:
        """Append a text."""
        return text

    reply = calls(
        call("append", "a", text="one"),
        call("append", "b", content="two"),
        call("append", "c", content="two", text="one"),
    )
    async with talk(tmp_path, reply, calls(END), tools=[append]) as bench:
        await bench.turn()
    assert [r.get("result") for r in bench.results()][:2] == ["one", "two"]
    assert [r["success"] for r in bench.results()] == [True, True, False]
