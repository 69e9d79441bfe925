"""Skills: which there are, and what becomes of a prompt that asks for one."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from callgate import Gate
from callgate.core.sessions import Session
from callgate.sources.skill_files import MAX_BYTES, MAX_DESCRIPTION, MOST, Shelf, UserSkillDirectory
from callgate.sources.skills import Composed, Skill, Skills, SkillUnreadable, UnknownSkill
from tests.features.chat.agent.talks import PlayedModel, text, uses

BODY = "Look in ${CALLGATE_SKILL_DIR} for ${CALLGATE_SESSION_ID}."
OLD_NS = 1_000_000_000 * 1_600_000_000


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def session(ws: Path) -> Session:
    return Session(workspace=str(ws), id="sess_1")


@pytest.fixture
def skills(home: Path) -> Skills:
    return Skills(str(home), trusts=lambda workspace: True)


def write(place: Path, called: str, body: str = "Do it.", **said: str) -> Path:
    """Write a skill into a home, or into the `.callgate` of a workspace."""
    directory = place / "skills" / called
    directory.mkdir(parents=True, exist_ok=True)
    head = "".join(f"{key}: {value}\n" for key, value in {"description": "For tests", **said}.items())
    (directory / "SKILL.md").write_text(f"---\n{head}---\n{body}\n")
    return directory


def names(skills: Skills, session: Session) -> list[str]:
    return [skill.name for skill in skills.available(session)]


def why(skills: Skills, session: Session) -> dict[str, str]:
    return {each.name: each.why for each in skills.survey(session.workspace).broken}


@pytest.mark.parametrize("typed", ["plain words", "", "say /review", " /review", "\n/review", "a\n/review"])
@pytest.mark.spec("S2-66")
def test_plain_text_is_passed_unchanged(typed: str, home: Path, skills: Skills, session: Session) -> None:
    write(home, "review")
    assert skills.compose(typed, session) == Composed(typed, None, False)


@pytest.mark.spec("S2-69")
@pytest.mark.parametrize(
    "typed",
    [
        "/etc/hosts",
        "/etc/hosts is odd",
        "//comment",
        "//review",
        "/ review",
        "/-review",
        "/",
        "/_x",
        "/review/x",
        "/review.md",
        "/review: x",
        "/review,",
        "/réview",
        "/re\u200bview",
        "/" + "a" * 65,
        "/* review */",
        "/review\x00",
        "/review\u00a0x",
    ],
)
def test_what_is_no_name_is_no_command(typed: str, home: Path, skills: Skills, session: Session) -> None:
    write(home, "review")
    assert skills.compose(typed, session) == Composed(typed, None, False)


@pytest.mark.spec("S2-67")
@pytest.mark.parametrize("prefix", ["CALLGATE", "MEKA"])
def test_a_name_becomes_the_text_of_the_skill(prefix: str, home: Path, skills: Skills, session: Session) -> None:
    directory = write(home, "review", BODY.replace("CALLGATE", prefix))
    expected = f"The skill review, from the directory {directory}:\n\nLook in {directory} for sess_1."
    skill = Skill(name="review", description="For tests", directory=str(directory), origin="user")
    assert skills.compose("/review", session) == (expected, skill, False)
    assert skills.compose("/review  the diff ", session).text == f"the diff\n\n{expected}"
    assert skills.compose("/review a\r\nb\n", session).text == f"a\r\nb\n\n{expected}"
    assert skills.compose("/skill review a b", session).text == f"a b\n\n{expected}"
    assert skills.compose("/skill \treview\ta", session).text == f"a\n\n{expected}"


def test_what_was_filled_in_is_not_read_for_variables(home: Path, ws: Path, skills: Skills) -> None:
    write(home, "review", "${MEKA_SESSION_ID} ${CALLGATE_SKILL_DIRX} ${HOME} $CALLGATE_SESSION_ID")
    session = Session(workspace=str(ws), id="${CALLGATE_SKILL_DIR}")
    typed = "/review ${CALLGATE_SESSION_ID}"
    extra, _, rest = skills.compose(typed, session).text.partition("\n\n")
    assert extra == "${CALLGATE_SESSION_ID}"
    assert rest.endswith("\n\n${CALLGATE_SKILL_DIR} ${CALLGATE_SKILL_DIRX} ${HOME} $CALLGATE_SESSION_ID")


def test_a_skill_says_whether_it_is_for_a_sub_agent(home: Path, skills: Skills, session: Session) -> None:
    write(home, "review", delegate="true")
    write(home, "plan", delegate="false")
    assert skills.compose("/review", session).delegate
    assert not skills.compose("/plan", session).delegate


@pytest.mark.spec("S2-68", "T-11")
@pytest.mark.parametrize(
    "typed", ["/nonexistent", "/reviews x", "/REVIEW", "/skill nonexistent", "/skill", "/skill ../review"]
)
def test_a_name_that_nobody_knows_is_an_error(typed: str, home: Path, skills: Skills, session: Session) -> None:
    write(home, "review")
    with pytest.raises(UnknownSkill):
        skills.compose(typed, session)


def test_an_unknown_name_says_what_comes_near(home: Path, skills: Skills, session: Session) -> None:
    write(home, "Review")
    with pytest.raises(UnknownSkill) as raised:
        skills.compose("/reviw x", session)
    assert (raised.value.name, raised.value.near) == ("reviw", "Review")


def test_the_settings_may_pass_an_unknown_name_on(home: Path, session: Session) -> None:
    assert Skills(str(home), unknown="pass").compose("/tmp", session) == Composed("/tmp")


def test_what_belongs_to_the_surface_is_left_to_it(home: Path, skills: Skills, session: Session) -> None:
    for name in ("tool", "skill", "Tool"):
        write(home, name)
    assert skills.compose("/tool read_file", session) == Composed("/tool read_file")
    assert names(skills, session) == []
    assert set(why(skills, session)) == {"tool", "skill", "Tool"}


@pytest.mark.spec("S2-70")
@pytest.mark.parametrize("how", ["gone", "directory", "fifo", "bytes", "huge", "headless"])
def test_a_skill_that_cannot_be_read_any_more_is_not_called_unknown(
    how: str, home: Path, skills: Skills, session: Session
) -> None:
    file = write(home, "review") / "SKILL.md"
    write(home, "other")
    assert names(skills, session) == ["other", "review"]
    file.unlink()
    match how:
        case "directory":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "bytes":
            file.write_bytes(b"---\ndescription: x\n---\n\xff\xfe")
        case "huge":
            file.write_bytes(b"---\ndescription: x\n---\n" + b"x" * MAX_BYTES)
        case "headless":
            file.write_text("Do it.")
    with pytest.raises(SkillUnreadable) as raised:
        skills.compose("/review", session)
    assert raised.value.name == "review"
    assert names(skills, session) == ["other"]


@pytest.mark.spec("S2-71")
def test_broken_and_hidden_directories_are_skipped(home: Path, skills: Skills, session: Session) -> None:
    write(home, "good")
    write(home, ".hidden")
    (home / "skills" / "empty").mkdir()
    (home / "skills" / "README.md").write_text("no directory")
    write(home, "with space")
    write(home, "-dash")
    write(home, "x" * 65)
    write(home, "othername", name="another")
    write(home, "undescribed", description="")
    write(home, "wordy", description="x" * (MAX_DESCRIPTION + 1))
    write(home, "bodiless", body=" \n ")
    write(home, "perhaps", delegate="yes")
    write(home, "quoted", delegate='"true"')
    (home / "skills" / "esc\x1b[2J").mkdir()
    (home / "skills" / os.fsdecode(b"\xff\xfe")).mkdir()
    assert names(skills, session) == ["good"]
    assert set(why(skills, session)) == {
        "empty",
        "with space",
        "-dash",
        "x" * 65,
        "othername",
        "undescribed",
        "wordy",
        "bodiless",
        "perhaps",
        "quoted",
        "esc\\x1b[2J",
        "\\udcff\\udcfe",
    }


def test_devices_pipes_and_links_to_them_are_never_waited_for(
    home: Path, ws: Path, skills: Skills, session: Session
) -> None:
    for place in (home, ws / ".callgate"):
        for name in ("zero", "tty", "loop", "etc"):
            (place / "skills" / name).mkdir(parents=True)
        (place / "skills" / "zero" / "SKILL.md").symlink_to("/dev/zero")
        (place / "skills" / "tty" / "SKILL.md").symlink_to("/dev/tty")
        (place / "skills" / "loop" / "SKILL.md").symlink_to("SKILL.md")
        (place / "skills" / "etc" / "SKILL.md").symlink_to("/etc/passwd")
        (place / "skills" / "dangling").symlink_to("/nonexistent")
    survey = skills.survey(session.workspace)
    assert survey.skills == []
    assert len(survey.broken) == 10


def test_a_user_may_keep_skills_behind_links(home: Path, tmp_path: Path, skills: Skills, session: Session) -> None:
    real = write(tmp_path / "dotfiles", "review")
    (home / "skills").mkdir()
    (home / "skills" / "mine").symlink_to(real)
    assert names(skills, session) == ["mine"]


@pytest.mark.parametrize("at", ["file", "directory", "skills", "callgate"])
def test_no_link_leads_out_of_a_workspace(at: str, tmp_path: Path, ws: Path, skills: Skills, session: Session) -> None:
    outside = write(tmp_path / "outside", "review", "SECRET")
    inside = ws / ".callgate" / "skills" / "review"
    match at:
        case "file":
            inside.mkdir(parents=True)
            (inside / "SKILL.md").symlink_to(outside / "SKILL.md")
        case "directory":
            inside.parent.mkdir(parents=True)
            inside.symlink_to(outside)
        case "skills":
            (ws / ".callgate").mkdir()
            (ws / ".callgate" / "skills").symlink_to(outside.parent)
        case "callgate":
            (ws / ".callgate").symlink_to(outside.parent.parent)
    assert names(skills, session) == []
    assert len(why(skills, session)) == 1
    with pytest.raises((UnknownSkill, SkillUnreadable)):
        skills.compose("/review", session)


def test_a_link_that_turns_outwards_later_is_not_followed(
    tmp_path: Path, ws: Path, skills: Skills, session: Session
) -> None:
    inside, outside = write(ws / ".callgate", "review"), write(tmp_path / "outside", "review")
    os.utime(inside / "SKILL.md", ns=(OLD_NS, OLD_NS))
    os.utime(outside / "SKILL.md", ns=(OLD_NS, OLD_NS))
    assert names(skills, session) == ["review"]
    shutil.rmtree(inside)
    inside.symlink_to(outside)
    assert names(skills, session) == []


def test_a_workspace_brings_skills_only_once_it_is_trusted(home: Path, ws: Path, session: Session) -> None:
    write(ws / ".callgate", "review")
    trusted: set[str] = set()
    skills = Skills(str(home), trusts=trusted.__contains__)
    survey = skills.survey(session.workspace)
    assert (survey.skills, survey.untrusted) == ([], str(ws / ".callgate" / "skills"))
    with pytest.raises(UnknownSkill):
        skills.compose("/review", session)
    trusted.add(str(ws))
    composed = skills.compose("/review", session)
    assert composed.skill is not None
    assert composed.skill.origin == "workspace"
    trusted.clear()
    assert names(skills, session) == []


def test_the_users_skill_wins_over_one_of_the_workspace(home: Path, ws: Path, skills: Skills, session: Session) -> None:
    mine = write(home, "review", "Mine.")
    write(ws / ".callgate", "review", "Theirs.")
    write(ws / ".callgate", "Review", "A look-alike.")
    write(ws / ".callgate", "theirs", "Theirs.")
    survey = skills.survey(session.workspace)
    assert [(each.name, each.origin) for each in survey.skills] == [("review", "user"), ("theirs", "workspace")]
    assert {each.name for each in survey.shadowed} | {each.name for each in survey.broken} == {"review", "Review"}
    assert skills.compose("/review", session).text.endswith("Mine.")
    shutil.rmtree(mine)
    assert skills.compose("/theirs", session).text.endswith("Theirs.")


def test_of_two_names_that_differ_in_capitals_one_counts(home: Path, skills: Skills, session: Session) -> None:
    write(home, "Deploy")
    write(home, "deploy")
    assert names(skills, session) == ["Deploy"]
    assert list(why(skills, session)) == ["deploy"]


def test_a_description_is_one_line_in_which_everything_is_seen(home: Path, skills: Skills, session: Session) -> None:
    write(home, "review", description=r'"red \x1b[31m\u202e\u200b\n two  \t lines \x9b"')
    (skill,) = skills.available(session)
    assert skill.description == "red \\x1b[31m\\u202e\\u200b two lines \\x9b"


def test_what_changes_is_seen_at_the_next_look(home: Path, skills: Skills, session: Session) -> None:
    assert names(skills, session) == []
    write(home, "review")
    assert names(skills, session) == ["review"]
    write(home, "review", description="Others")  # of the same size, within a moment
    assert [each.description for each in skills.available(session)] == ["Others"]
    write(home, "plan")
    assert names(skills, session) == ["plan", "review"]
    shutil.rmtree(home / "skills" / "review")
    assert names(skills, session) == ["plan"]
    shutil.rmtree(home / "skills")
    assert names(skills, session) == []


class Counting(UserSkillDirectory):
    """A place that remembers what was opened in it."""

    def __init__(self, home_dir: str) -> None:
        super().__init__(home_dir)
        self.opened: list[str] = []

    def open(self, relative: str) -> int:
        self.opened.append(relative)
        return super().open(relative)


def test_what_did_not_change_is_not_opened_again(home: Path) -> None:
    file = write(home, "review") / "SKILL.md"
    os.utime(file, ns=(OLD_NS, OLD_NS))
    place = Counting(str(home))
    shelf = Shelf(place)
    assert shelf.look() == shelf.look()
    assert place.opened == [".", "review/SKILL.md", "."]
    file.write_text(file.read_text().replace("tests", "other"))
    os.utime(file, ns=(OLD_NS, OLD_NS))  # the same time and size, and yet not the same file
    (skill,) = shelf.look()
    assert isinstance(skill, Skill)
    assert skill.description == "For other"


def test_what_may_change_within_the_same_moment_is_opened_again(home: Path) -> None:
    file = write(home, "review") / "SKILL.md"
    soon_ns = time.time_ns() + 3_600_000_000_000
    os.utime(file, ns=(soon_ns, soon_ns))
    place = Counting(str(home))
    shelf = Shelf(place)
    assert shelf.look() == shelf.look()
    assert place.opened == [".", "review/SKILL.md"] * 2


def test_a_pipe_with_a_good_skill_in_it_is_not_read(home: Path, skills: Skills, session: Session) -> None:
    file = write(home, "review") / "SKILL.md"
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(file, os.O_WRONLY)
    os.write(writer, content)
    os.close(writer)
    assert names(skills, session) == []
    assert os.read(reader, 1000) == content
    os.close(reader)


def test_a_broken_skill_is_told_once_until_it_changes(
    home: Path, skills: Skills, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        caplog.clear()
        for _ in range(3):
            skills.available(session)
        return sum(each.levelno == logging.WARNING for each in caplog.records)

    write(home, "review", description="")
    assert told() == 1
    assert told() == 0
    write(home, "review", body="")
    assert told() == 1
    write(home, "review")
    assert told() == 0
    write(home, "review", body="")
    assert told() == 1


def test_a_thousand_skills_are_listed_and_more_are_told_in_part(home: Path, skills: Skills, session: Session) -> None:
    for number in range(MOST + 1):
        write(home, f"s{number:04}", description="x" * 200)
    survey = skills.survey(session.workspace)
    assert len(survey.skills) == MOST
    assert len(survey.broken) == 1
    told = skills.listing(session)
    assert len(told) < 9_000
    assert "- s0000: x" in told


def test_a_skill_that_comes_and_goes_is_there_or_not(
    home: Path, tmp_path: Path, skills: Skills, session: Session
) -> None:
    directory, aside, stop = write(home, "review"), tmp_path / "aside", threading.Event()
    expected = skills.compose("/review", session).text

    def come_and_go() -> None:
        while not stop.is_set():
            directory.rename(aside)
            aside.rename(directory)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(500):
            try:
                assert skills.compose("/review", session).text == expected
            except (UnknownSkill, SkillUnreadable):
                pass
    finally:
        stop.set()
        thread.join()
    assert skills.compose("/review", session).text == expected


async def test_a_model_is_told_of_skills_and_reads_them_itself(home: Path, ws: Path) -> None:
    directory = write(home, "review", BODY)
    (directory / "more.md").write_text("More.")
    (directory / "out.md").symlink_to("/etc/passwd")
    model = PlayedModel(
        [
            uses(
                ("t1", "use_skill", {"name": "review"}),
                ("t2", "use_skill", {"name": "review", "file": "more.md"}),
                ("t3", "use_skill", {"name": "nosuch"}),
                ("t4", "use_skill", {"name": "review", "file": "out.md"}),
                ("t5", "use_skill", {"name": "review", "file": "../../settings.toml"}),
            ),
            text("Done."),
        ],
        native=True,
    )
    async with Gate(ws, [], home=home) as gate:
        await gate.run("go", model=model)
        session_id = gate.session.id
    assert "- review: For tests" in model.prompts[0].system
    assert "use_skill" in [each.name for each in model.prompts[0].tools]
    results = model.prompts[1].messages[-1].content
    shown = [(block.is_error, block.content[0].text) for block in results]
    assert shown[:2] == [
        (False, f"The skill review, from the directory {directory}:\n\nLook in {directory} for {session_id}."),
        (False, "More."),
    ]
    assert [failed for failed, _ in shown[2:]] == [True, True, True]
    assert "root:" not in str(shown)


async def test_without_skills_a_model_is_told_nothing_of_them(home: Path, ws: Path) -> None:
    model = PlayedModel([text("Done.")], native=True)
    async with Gate(ws, [], home=home) as gate:
        await gate.run("go", model=model)
    assert "use_skill" not in model.prompts[0].system
    assert "use_skill" not in [each.name for each in model.prompts[0].tools]
