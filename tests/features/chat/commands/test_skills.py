"""`callgate skills`, and skills in a run and in a chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.features.chat.commands.chatting import Chatting, script
from tests.kernel.cli.running import Ran, callgate

SKILL = "---\ndescription: {about}\n---\nFollow ${{CALLGATE_SKILL_DIR}} in {name}.\n"


def write(place: Path, name: str, about: str = "For tests") -> Path:
    directory = place / "skills" / name
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(SKILL.format(about=about, name=name))
    return directory


def run(ws: Path, path: Path, *words: str, expect: str, stdin: bytes = b"") -> Ran:
    model = script(path, {"expect": expect, "text": "Done."})
    return callgate("run", "--model", model, *words, cwd=ws, stdin=stdin)


def test_a_list_says_what_is_there_and_what_is_not_used(home: Path, ws: Path) -> None:
    mine = write(home, "review", r'"red \x1b[31m"')
    theirs = write(ws / ".callgate", "deploy")
    (home / "skills" / "empty").mkdir()
    ran = callgate("skills", "list", cwd=ws)
    assert (ran.code, ran.out) == (0, "review  user       red \\x1b[31m\n")
    assert f"{home / 'skills' / 'empty'}: " in ran.err
    assert str(ws / ".callgate" / "skills") in ran.err
    assert callgate("trust", str(ws), cwd=ws).code == 0
    write(ws / ".callgate", "review")
    assert "the present files of the workspace are not trusted" in callgate("skills", "list", cwd=ws).err
    assert callgate("trust", str(ws), cwd=ws).code == 0
    listed = callgate("skills", "list", "--json", cwd=ws).json
    assert [(each["name"], each["directory"]) for each in listed["skills"]] == [
        ("deploy", str(theirs)),
        ("review", str(mine)),
    ]
    assert [each["origin"] for each in listed["shadowed"]] == ["workspace"]
    assert [each["name"] for each in listed["broken"]] == ["empty"]
    assert listed["untrusted"] is None
    assert callgate("skills", "list", "--names", cwd=ws).out == "deploy\nreview\n"


def test_show_prints_a_skill_as_it_stands_in_its_file(home: Path, ws: Path) -> None:
    directory = write(home, "review")
    ran = callgate("skills", "show", "review", cwd=ws)
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "review  For tests",
            f"  from       {directory}/SKILL.md (user)",
            "",
            "Follow ${CALLGATE_SKILL_DIR} in review.",
        ],
    )
    shown = callgate("skills", "show", "review", "--json", cwd=ws).json
    assert shown["text"] == "Follow ${CALLGATE_SKILL_DIR} in review."


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("show", "reviw"), 1, "unknown_skill"),
        (("show", "empty"), 1, "skill_unreadable"),
        (("show",), 2, "usage"),
        (("list", "x"), 2, "usage"),
        (("new",), 2, "usage"),
        (("new", "review"), 2, "exists"),
        (("new", "../x"), 2, "usage"),
        (("new", "tool"), 2, "usage"),
        (("new", ".x"), 2, "usage"),
    ],
)
def test_what_cannot_be_done_says_why(words: tuple[str, ...], code: int, reason: str, home: Path, ws: Path) -> None:
    write(home, "review")
    (home / "skills" / "empty").mkdir()
    ran = callgate("skills", *words, "--json", cwd=ws)
    assert (ran.code, ran.json["error"]["reason"]) == (code, reason)


def test_a_new_skill_can_be_used_at_once(ws: Path, tmp_path: Path) -> None:
    assert callgate("skills", "new", "review", cwd=ws).code == 0
    assert callgate("skills", "list", "--names", cwd=ws).out == "review\n"
    ran = run(ws, tmp_path / "s.toml", "/review a.txt", expect="The skill review, from")
    assert (ran.code, ran.out) == (0, "Done.\n")


def test_a_new_skill_of_a_workspace_waits_for_trust(ws: Path) -> None:
    wrote = callgate("skills", "new", "review", "--workspace", "--json", cwd=ws).json["wrote"]
    assert wrote == str(ws / ".callgate" / "skills" / "review" / "SKILL.md")
    assert callgate("skills", "list", "--names", cwd=ws).out == ""
    callgate("trust", ".", cwd=ws)
    assert callgate("skills", "list", "--names", cwd=ws).out == "review\n"


@pytest.mark.parametrize("link", [".callgate", ".callgate/skills"])
def test_a_new_skill_is_not_written_through_a_link(link: str, ws: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (ws / link).parent.mkdir(exist_ok=True)
    (ws / link).symlink_to(tmp_path / "outside")
    assert callgate("skills", "new", "review", "--workspace", cwd=ws).code == 2
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.spec("S2-67")
def test_a_run_follows_a_skill(home: Path, ws: Path, tmp_path: Path) -> None:
    directory = write(home, "review")
    header = f"The skill review, from the directory {directory}:"
    expect = f"a.txt\n\n{header}\n\nFollow {directory} in review."
    assert run(ws, tmp_path / "s.toml", "/review", "a.txt", expect=expect).code == 0
    assert run(ws, tmp_path / "s.toml", "/skill review a.txt", expect=expect).code == 0
    piped = f"<stdin>\nX\n</stdin>\n\n{header}"
    assert run(ws, tmp_path / "s.toml", "/review", expect=piped, stdin=b"X").code == 0
    assert run(ws, tmp_path / "s.toml", "/etc/hosts", expect="/etc/hosts").code == 0


@pytest.mark.spec("S2-68", "T-11")
def test_a_run_with_an_unknown_skill_asks_no_model(home: Path, ws: Path, tmp_path: Path) -> None:
    ran = run(ws, tmp_path / "s.toml", "/nosuch", expect="")
    assert (ran.code, ran.out) == (1, "")
    (home / "settings.toml").write_text('[agent]\nunknown_slash = "pass"\n')
    assert run(ws, tmp_path / "s.toml", "/nosuch", expect="/nosuch").out == "Done.\n"


def test_a_chat_follows_skills_and_its_own_commands_come_first(home: Path, ws: Path, tmp_path: Path) -> None:
    write(home, "review")
    write(home, "mode")
    (home / "skills" / "empty").mkdir()
    typed = [
        "/skills",
        "/mode",
        "/review first",
        "/skill mode second",
        "/reviw",
        "/skill nosuch",
        "/skill",
        "/empty",
        "/review third\\",
        "line",
    ]
    replies = [
        {"expect": "first\n\nThe skill review", "text": "One."},
        {"expect": "second\n\nThe skill mode", "text": "Two."},
        {"expect": "third\nline\n\nThe skill review", "text": "Three."},
    ]
    model = script(tmp_path / "s.toml", *replies)
    ran = callgate("chat", "--model", model, cwd=ws, stdin="\n".join([*typed, ""]).encode())
    assert ran.code == 0
    assert [line for line in ran.out.splitlines()[3:] if line.strip("> ")] == [
        "mode    user       For tests",
        "review  user       For tests",
        "Mode ask.",
        "One.",
        "Two.",
        "there is no /reviw; /review?",
        "there is no skill 'nosuch'; /skills lists the skills",
        "a name is missing; /skills lists the skills",
        "The skill empty cannot be used: SKILL.md: it does not exist.",
        "Three.",
    ]


def test_tab_completes_the_name_of_a_skill(home: Path, ws: Path, tmp_path: Path) -> None:
    write(home, "frobnicate")
    model = script(tmp_path / "s.toml", {"expect": "now\n\nThe skill frob", "text": "Done."})
    talk = Chatting("chat", "--model", model, cwd=ws)
    try:
        talk.prompted()
        talk.press("/fro\t").until("/frobnicate")
        talk.press(" now\r").until("Done.")
    finally:
        talk.kill()
