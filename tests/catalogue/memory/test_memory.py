"""What agents note for later: kept in files, found again, never lost silently."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.core.errors import ToolError
from callgate.core.sessions import Mode, Session
from callgate.sandbox.processes.command_marks import MARK
from callgate.tools.loading import factories
from callgate_catalogue.memory.pack import CATALOGUE, Notes
from callgate_catalogue.memory.store import Memory, prompt_text
from callgate_catalogue.settings import MemoryTable
from tests.features.chat.agent.talks import PlayedModel, text
from tests.kernel.cli.running import callgate
from tests.support import Bench, FakeHuman

SECRET = "sk-ant-api03-" + "Ab3dEf6hIj9kLm2nOp5q" * 4


def bench(home: Path, workspace: Path, mode: Mode = Mode.WRITE, **table: Any) -> Bench:
    return Bench(workspace, *factories(CATALOGUE, Notes(str(home), MemoryTable(**table))), mode=mode)


def memory(home: Path, workspace: Path) -> Memory:
    return Memory(str(home), str(workspace), max_entries=10, max_chars=200)


def history(home: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in home.glob("memory/**/history/*.md"))


async def test_what_is_noted_is_found_again_in_its_workspace_and_the_user_everywhere(
    home: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    here, there = bench(home, one), bench(home, two)
    added = await here.run("memory_add", {"content": "The build needs make."})
    assert added.value == {"id": "w1", "scope": "workspace", "content": "The build needs make."}
    await here.run("memory_add", {"content": "They prefer short answers.", "scope": "user"})
    found = await here.run("memory_search", {"query": "Short BUILD"})
    assert {row["id"] for row in found.value} == {"w1", "u1"}
    elsewhere = await there.run("memory_search", {"query": "short build"})
    assert [row["id"] for row in elsewhere.value] == ["u1"]
    assert (await here.run("memory_search", {"query": "build", "scope": "user"})).value == []
    (home / "memory" / "user" / "1.md").write_text("Edited by hand: long answers.\n")
    assert (await there.run("memory_search", {"query": "long"})).text == "u1: Edited by hand: long answers."


@pytest.mark.parametrize(
    ("query", "found"),
    [("日本語", ["u1"]), ("答え", ["u1"]), ("tab", ["u2"]), ("abs", []), ("größe", ["u3"]), ("the", [])],
)
def test_a_part_of_a_word_is_enough_where_words_have_no_spaces_between(
    query: str, found: list[str], home: Path, tmp_path: Path
) -> None:
    kept = memory(home, tmp_path)
    for note in ("必ず日本語で答えてください", "Tabs, no spaces", "Übergröße zuerst"):
        kept.add(note, "user")
    assert [entry.id for entry in kept.search(query, 9)] == found


async def test_replacing_and_consolidating_keep_what_was_said_before(home: Path, tmp_path: Path) -> None:
    desk = bench(home, tmp_path)
    for letter in ("a", "b", "c"):
        await desk.run("memory_add", {"content": letter})
    await desk.run("memory_replace", {"id": "w1", "content": "A"})
    merged = await desk.run("memory_consolidate", {"ids": ["w1", "w2"], "content": "A and b"})
    assert merged.value["id"] == "w4"
    assert [(entry.id, entry.text) for entry in sorted(memory(home, tmp_path).entries())] == [
        ("w3", "c"),
        ("w4", "A and b"),
    ]
    assert history(home) == ["A", "a", "b"]


@pytest.mark.parametrize(
    ("tool", "arguments", "error_class", "reason"),
    [
        ("memory_replace", {"id": "w9", "content": "x"}, "execution_error", "unknown_entry"),
        ("memory_replace", {"id": "../1", "content": "x"}, "validation_error", "invalid_id"),
        ("memory_replace", {"id": "w0", "content": "x"}, "validation_error", "invalid_id"),
        ("memory_consolidate", {"ids": ["w1", "w1"], "content": "x"}, "validation_error", "invalid_id"),
        ("memory_consolidate", {"ids": ["w1", "u1"], "content": "x"}, "validation_error", "invalid_id"),
        ("memory_consolidate", {"ids": ["w1", "w9"], "content": "x"}, "execution_error", "unknown_entry"),
        ("memory_add", {"content": "  \n "}, "validation_error", "invalid_content"),
        ("memory_add", {"content": "x" * 201}, "validation_error", "too_large"),
        ("memory_add", {"content": "one too many"}, "execution_error", "memory_full"),
    ],
)
async def test_what_cannot_be_noted_changes_nothing(
    tool: str, arguments: Any, error_class: str, reason: str, home: Path, tmp_path: Path
) -> None:
    kept = memory(home, tmp_path)
    kept.add("one", "workspace"), kept.add("two", "user")
    desk = bench(home, tmp_path, max_chars=200, max_entries=1)
    result = await desk.run(tool, arguments)
    assert (result.error.error_class, result.error.reason) == (error_class, reason)
    assert sorted(entry.text for entry in kept.entries()) == ["one", "two"]


@pytest.mark.spec("T43")
async def test_a_secret_is_not_noted(home: Path, tmp_path: Path) -> None:
    result = await bench(home, tmp_path).run("memory_add", {"content": f"The key is {SECRET} for now."})
    assert result.ok and SECRET not in str(result)
    assert SECRET not in "".join(path.read_text() for path in home.rglob("*.md"))


@pytest.mark.spec("S4-11")
async def test_sub_agents_do_not_see_the_memory(home: Path, tmp_path: Path) -> None:
    desk = bench(home, tmp_path)
    worker = Session(workspace=str(tmp_path), is_worker=True, mode=Mode.WRITE)
    assert len(desk.dispatcher.get_definitions_for_session(desk.session)) == 4
    assert desk.dispatcher.get_definitions_for_session(worker) == []
    for name in ("memory_add", "memory_search"):
        result = await desk.run(name, {"content": "x", "query": "x"}, session=worker)
        assert result.error.error_class == "not_found"


async def test_noting_is_asked_about_with_what_would_be_kept(home: Path, tmp_path: Path) -> None:
    human = FakeHuman(False)
    async with Gate(tmp_path, home=home, confirm=human) as gate:
        denied = await gate.call("memory_add", {"content": f"Use tabs. {SECRET}"})
        assert denied.error is not None and denied.error.error_class == "user_denied"
        assert (await gate.call("memory_search", {"query": "tabs"})).value == []
    (question,) = human.questions
    assert question.preview is not None
    assert "Use tabs." in question.preview and SECRET not in question.preview


def test_numbers_are_given_out_once_whoever_adds_at_the_same_time(home: Path, tmp_path: Path) -> None:
    def add() -> None:
        for _ in range(5):
            Memory(str(home), str(tmp_path), max_entries=100, max_chars=100).add("x", "user")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = memory(home, tmp_path)
    assert sorted(int(entry.id[1:]) for entry in kept.entries()) == list(range(1, 21))
    kept.forget("u20")
    with pytest.raises(ToolError):
        kept.get("u20")
    assert Memory(str(home), str(tmp_path), max_entries=100, max_chars=100).add("y", "user").id == "u21"


def test_only_its_owner_reads_the_memory_and_a_link_in_it_leads_nowhere(home: Path, tmp_path: Path) -> None:
    kept = memory(home, tmp_path)
    kept.add("x", "user")
    path = home / "memory" / "user" / "1.md"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (tmp_path / "secret").write_text("outside")
    os.symlink(tmp_path / "secret", home / "memory" / "user" / "2.md")
    assert [entry.text for entry in kept.entries()] == ["x"]


async def test_a_model_is_told_of_the_memory_only_where_the_settings_say_so(home: Path, tmp_path: Path) -> None:
    memory(home, tmp_path).add("The canary sings.", "workspace")
    for settings, is_told in (("", False), ("[memory]\ntold_chars = 100\n", True)):
        (home / "settings.toml").write_text(settings)
        model = PlayedModel([text("Done.")], native=True)
        async with Gate(tmp_path, home=home) as gate:
            await gate.run("Hello", model=model)
        assert ("The canary sings." in str(model.prompts[0])) is is_told


def test_what_is_told_is_bounded_and_the_newest(home: Path, tmp_path: Path) -> None:
    kept = memory(home, tmp_path)
    for number in range(5):
        kept.add(f"fact {number}", "user")
        os.utime(home / "memory" / "user" / f"{number + 1}.md", (number, number))
    assert prompt_text(kept, 30).splitlines()[1:] == ["- u5: fact 4", "- u4: fact 3"]
    assert prompt_text(kept, 0) == ""


# --- the command --------------------------------------------------------------------------


def test_a_person_lists_edits_and_forgets(home: Path, tmp_path: Path) -> None:
    kept = memory(home, tmp_path)
    kept.add("first \x1b[31m", "workspace"), kept.add("second", "user")
    os.utime(home / "memory" / "user" / "1.md", (10**9, 10**9))
    listed = callgate("memory", "list", cwd=tmp_path)
    assert [(line.split()[0], line.split("  ")[2]) for line in listed.out.splitlines()] == [
        ("w1", "first \\x1b[31m"),
        ("u1", "second"),
    ]
    assert [row["id"] for row in callgate("memory", "list", "--scope", "user", "--json", cwd=tmp_path).json] == ["u1"]
    assert callgate("memory", "edit", "w1", "other", "words", cwd=tmp_path).code == 0
    assert callgate("memory", "edit", "u1", cwd=tmp_path, stdin=b"from stdin\n").code == 0
    assert {entry.text for entry in kept.entries()} == {"other words", "from stdin"}
    assert callgate("memory", "forget", "w1", "w7", cwd=tmp_path).code == 1
    assert callgate("memory", "forget", "w1", "w1", "--for-good", cwd=tmp_path).code == 0
    assert [entry.id for entry in kept.entries()] == ["u1"]
    assert history(home) == ["", "", "second"]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("edit",), 2), (("forget",), 2), (("list", "x"), 2), (("edit", "nope", "x"), 2), (("edit", "w1", "x"), 1)],
)
def test_what_a_command_cannot_do_it_says(words: tuple[str, ...], code: int, home: Path, tmp_path: Path) -> None:
    ran = callgate("memory", *words, cwd=tmp_path)
    assert (ran.code, ran.out) == (code, "") and ran.err


def test_a_running_call_cannot_change_the_memory_by_the_command(home: Path, tmp_path: Path) -> None:
    memory(home, tmp_path).add("x", "user")
    for words in (("edit", "u1", "y"), ("forget", "u1")):
        assert callgate("memory", *words, cwd=tmp_path, env={MARK: "1"}).code == 3
