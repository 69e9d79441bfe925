"""`callgate diff` and `checkout`: the changes of a call, and the workspace as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.kernel.cli.running import callgate
from tests.kernel.cli.test_undo import write
from tests.needs import needs


def shell(ws: Path, command: str) -> str:
    """Run a command as a call; return its id."""
    ran = callgate("call", "shell", f"command={command}", "--yes", "--json", cwd=ws)
    assert ran.code == 0, ran.out + ran.err
    return str(ran.json["call_id"])


def seen(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Return every path with its mode, and its content or target."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        content: bytes | str | None = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (mode, content)
    return found


def test_the_diff_of_a_call_stays_when_later_calls_change_the_file(ws: Path, tmp_path: Path) -> None:
    first = write(ws, "a.txt", "one\n2\n")
    second = write(ws, "a.txt", "three\n")
    (ws / "a.txt").write_text("by hand\n")
    ran = callgate("diff", first, cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "--- a.txt\n+++ a.txt\n@@ -1,3 +1,2 @@\n one\n-two\n-three\n+2\n")
    assert callgate("diff", second, cwd=tmp_path).out == "--- a.txt\n+++ a.txt\n@@ -1,2 +1 @@\n-one\n-2\n+three\n"


@needs("linux")
def test_the_diff_of_a_command_names_every_kind_of_change(ws: Path) -> None:
    (ws / "old").write_text("old\n")
    (ws / "goes").write_text("goes\n")
    (ws / "run").write_text("run\n")
    (ws / "run").chmod(0o644)
    call = shell(
        ws,
        "mv old new; rm goes; chmod 755 run; ln -s a.txt link; mkdir d; printf 'x\\000' > d/binary;"
        " printf 'one\\n' > a.txt",
    )
    shell(ws, "rm -rf d link; echo later > a.txt; echo later > new")
    ran = callgate("diff", call, cwd=ws)
    assert ran.out.splitlines() == [
        "--- a.txt",
        "+++ a.txt",
        "@@ -1,3 +1 @@",
        " one",
        "-two",
        "-three",
        "created: d (directory)",
        "created: d/binary (binary)",
        "deleted: goes",
        "--- goes",
        "+++ goes",
        "@@ -1 +0,0 @@",
        "-goes",
        "created: link (link, to a.txt)",
        "renamed: old -> new",
        "changed: run (mode 0644 -> 0755)",
    ]
    listed = callgate("diff", call, "--json", cwd=ws).json
    assert (listed["ok"], listed["call"], listed["count"], listed["truncated"]) == (True, call, 7, False)
    assert [(each["path"], each["kind"]) for each in listed["files"]] == [
        ("a.txt", "changed"),
        ("d", "created"),
        ("d/binary", "created"),
        ("goes", "deleted"),
        ("link", "created"),
        ("new", "renamed"),
        ("run", "mode"),
    ]


def test_a_diff_shows_no_secret_and_no_control_character(ws: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    call = write(ws, "a.txt", f"token = {secret}\n\x1b[2Jgone\u202e\n")
    for ran in (callgate("diff", call, cwd=ws), callgate("diff", call, "--json", cwd=ws)):
        assert ran.code == 0 and secret not in ran.out and "\x1b" not in ran.out
    assert "+\\x1b[2Jgone\\u202e" in callgate("diff", call, cwd=ws).out
    later = write(ws, "a.txt", f"token = {secret.replace('a1', 'b2')}\n\x1b[2Jgone\u202e\n")
    assert callgate("diff", later, cwd=ws).out == "changed: a.txt (only redacted text differs)\n"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["diff"], 2, "usage"),
        (["diff", "a", "b"], 2, "usage"),
        (["diff", "tu_none"], 1, "not_found"),
        (["checkout", "tu_none"], 2, "usage"),
        (["checkout", "tu_none", "there"], 1, "not_found"),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(ws: Path, words: list[str], code: int, reason: str) -> None:
    ran = callgate(*words, "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (code, reason)
    assert not (ws / "there").exists()


def test_neither_runs_inside_a_call(ws: Path) -> None:
    call = write(ws, "a.txt", "x")
    for words in (["diff", call], ["checkout", call, str(ws.parent / "there")]):
        ran = callgate(*words, "--json", cwd=ws, env={"CALLGATE_CALL": "1"})
        assert (ran.code, ran.json["error"]["reason"]) == (3, "within_a_call")


@needs("linux")
def test_a_workspace_is_written_as_it_was_before_and_after_a_call(ws: Path, tmp_path: Path) -> None:
    (ws / "src").mkdir()
    (ws / "src/app.py").write_text("print(1)\n")
    (ws / "src/link").symlink_to("app.py")
    (ws / "tool.sh").write_text("true\n")
    (ws / "tool.sh").chmod(0o755)
    states = [seen(ws)]
    calls = []
    for command in (
        "sed -i s/1/2/ src/app.py; rm tool.sh",
        "mv src lib; mkdir -m 750 lib/new; echo x > lib/new/x; chmod 600 a.txt",
        "rm lib/link; ln -s new lib/link; mv lib/app.py .; echo end >> app.py",
        "rm -rf lib; echo src > src",
    ):
        calls.append(shell(ws, command))
        states.append(seen(ws))
    before = seen(ws)
    for number, call in enumerate(calls):
        for words, state in ((["--before"], states[number]), ([], states[number + 1])):
            target = tmp_path / f"out{number}{len(words)}"
            ran = callgate("checkout", call, str(target), *words, "--json", cwd=tmp_path)
            assert (ran.code, ran.json["missing"], ran.json["skipped"]) == (0, [], []), ran
            assert seen(target) == state
    assert seen(ws) == before


def test_a_checkout_writes_only_to_an_empty_directory_elsewhere(ws: Path, home: Path, tmp_path: Path) -> None:
    call = write(ws, "a.txt", "changed\n")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(ws)
    for target in (full, tmp_path / "file", ws, ws / "in", tmp_path / "link" / "in", home / "in", ws.parent):
        ran = callgate("checkout", call, str(target), "--json", cwd=tmp_path)
        assert (ran.code, ran.json["error"]["reason"]) == (2, "usage"), target
    assert seen(full) == {"mine": (0o644, b"mine")} and not (ws / "in").exists()


def test_a_link_of_the_workspace_does_not_lead_the_checkout_elsewhere(ws: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    call = write(ws, "d/x", "inside\n")
    write(ws, "d/x", "later\n")
    (ws / "d/x").unlink()
    (ws / "d").rmdir()
    (ws / "d").symlink_to(outside)
    target = tmp_path / "out"
    ran = callgate("checkout", call, str(target), "--json", cwd=tmp_path)
    assert (ran.code, ran.json["changed"]) == (0, ["d/x"])
    assert os.readlink(target / "d") == str(outside)
    assert list(outside.iterdir()) == []


def test_a_file_that_changed_since_has_its_present_content_and_is_named(ws: Path, tmp_path: Path) -> None:
    call = write(ws, "a.txt", "by the call\n")
    write(ws, "a.txt", "later\n")
    (ws / "a.txt").write_text("by hand\n")
    ran = callgate("checkout", call, str(tmp_path / "out"), cwd=tmp_path)
    assert (ran.code, "a.txt" in ran.err) == (0, True)
    assert (tmp_path / "out/a.txt").read_text() == "by hand\n"
