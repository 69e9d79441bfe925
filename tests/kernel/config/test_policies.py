"""Settings that change while a runtime lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.policies import LOOK_EVERY_S, PolicyBook
from callgate.config.trust import trust
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolPermissionDenied
from callgate.core.events import Event
from callgate.instance.wiring.runtime import Wired
from callgate.policy.decisions import Question
from callgate.policy.rules import Outcome

ASK = '[policy.per_tool]\nread_file = "prompt"\n'
DENY = '[policy.per_tool]\nread_file = "deny"\n'
READ = Question(tool="read_file", effect=SideEffects.READ)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self) -> None:
        self.now += 2 * LOOK_EVERY_S


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(str(tmp_path / "home"))
    made.make()
    return made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "ws"
    (made / ".callgate").mkdir(parents=True)
    return made


class Reader:
    """A book, each look at which is a new one."""

    def __init__(self, home: Home, workspace: Path) -> None:
        self.clock = Clock()
        self.news: list[SettingsError | None] = []
        self.book = PolicyBook(home, changed=lambda: self.news.append(self.book.problem), clock=self.clock)
        self.workspace = str(workspace)

    def outcome(self) -> Outcome:
        self.clock.pass_by()
        return self.book(self.workspace).decide(READ).outcome

    def refusal(self) -> str | None:
        self.clock.pass_by()
        refusal = self.book(self.workspace).refusal
        return None if refusal is None else refusal.policy_reason


def test_what_the_file_says_now_holds_for_the_next_call(home: Home, workspace: Path) -> None:
    reader = Reader(home, workspace)
    assert reader.outcome() is Outcome.ALLOW
    first = reader.book.version(reader.workspace)
    for text, outcome in ((ASK, Outcome.ASK), (DENY, Outcome.DENY), (ASK, Outcome.ASK)):
        Path(home.settings).write_text(text)
        assert reader.outcome() is outcome
    assert reader.book.version(reader.workspace) != first
    Path(home.settings).unlink()
    assert reader.outcome() is Outcome.ALLOW
    assert reader.book.version(reader.workspace) == first
    assert reader.news == [None] * 4


def test_a_file_of_the_same_length_in_the_same_instant_is_seen(home: Home, workspace: Path) -> None:
    words = {"auto": Outcome.ALLOW, "deny": Outcome.DENY}
    Path(home.settings).write_text(DENY)
    reader = Reader(home, workspace)
    for word in ("auto", "deny") * 20:
        with open(home.settings, "r+") as file:
            file.write(DENY.replace("deny", word))
        assert reader.outcome() is words[word]


def test_a_touched_file_is_no_news(home: Home, workspace: Path) -> None:
    Path(home.settings).write_text(ASK)
    reader = Reader(home, workspace)
    reader.outcome()
    Path(home.settings).write_text(ASK)
    assert (reader.outcome(), reader.news) == (Outcome.ASK, [])


def test_a_broken_file_leaves_the_policy_and_refuses_effects(home: Home, workspace: Path) -> None:
    Path(home.settings).write_text(ASK)
    reader = Reader(home, workspace)
    assert reader.refusal() is None
    Path(home.settings).write_text("[policy\n")
    assert reader.outcome() is Outcome.ASK
    assert reader.refusal() == f"settings_invalid ({home.settings}:1)"
    Path(home.settings).write_text(DENY)
    assert (reader.refusal(), reader.outcome()) == (None, Outcome.DENY)


def test_a_saved_answer_that_is_broken_by_hand_refuses_effects(home: Home, workspace: Path) -> None:
    reader = Reader(home, workspace)
    Path(home.saved_rules).write_text("x = 1\n")
    assert reader.refusal() == f"settings_invalid ({home.saved_rules}:1)"


def test_a_workspaces_own_settings_are_read_again(home: Home, workspace: Path) -> None:
    trust(home, str(workspace))
    reader = Reader(home, workspace)
    assert reader.outcome() is Outcome.ALLOW
    own = workspace / ".callgate" / "settings.toml"
    own.write_text(DENY)
    assert reader.outcome() is Outcome.DENY
    own.write_text("x = 1\n")
    assert reader.outcome() is Outcome.DENY
    assert reader.refusal() == f"settings_invalid ({own}:1)"
    own.write_text(ASK)
    assert (reader.refusal(), reader.outcome()) == (None, Outcome.ASK)


def test_a_workspace_is_narrowed_as_soon_as_it_is_trusted(home: Home, workspace: Path) -> None:
    (workspace / ".callgate" / "settings.toml").write_text(DENY)
    reader = Reader(home, workspace)
    assert reader.outcome() is Outcome.ALLOW
    trust(home, str(workspace))
    assert reader.outcome() is Outcome.DENY


def test_settings_of_a_workspace_that_were_never_readable_refuse_everything(home: Home, workspace: Path) -> None:
    trust(home, str(workspace))
    own = workspace / ".callgate" / "settings.toml"
    reader = Reader(home, workspace)
    reader.outcome()
    own.write_text("x = 1\n")
    for _ in range(3):
        with pytest.raises(ToolPermissionDenied):
            reader.outcome()
    with pytest.raises(SettingsError):
        reader.book.check_workspace(str(workspace))


def test_whoever_listens_is_told_and_tools_and_sandbox_follow(home: Home, workspace: Path) -> None:
    wired = Wired(home, audit=False)
    wired.register_built_in()
    session = wired.session(str(workspace))
    events: list[Event] = []
    wired.bus.listen(events.append)
    wired.sandbox.hide("/srv/socket")
    text = '[tools]\ndisable = ["shell"]\n[sandbox]\nhidden = ["/srv/x"]\n[limits]\nconcurrency = 2\n'
    Path(home.settings).write_text(text)
    wired.policies.refresh()
    Path(home.settings).write_text("x = 1\n")
    wired.policies.refresh()
    assert [(each.type, each.session_id, dict(each.payload)) for each in events] == [
        ("settings.reloaded", "", {"restart_for": ["limits"]}),
        ("settings.rejected", "", {"problem": f"{home.settings}:1: unknown key 'x'"}),
    ]
    assert "shell" not in {tool.name for tool in wired.runtime.tools.listed(session)}
    assert wired.sandbox.surroundings.hidden == ("/srv/x", "/srv/socket")
    state = wired.runtime.permission.settings_state(str(workspace))
    assert (state.problem, state.restart_for) == (f"{home.settings}:1: unknown key 'x'", ("limits",))
    Path(home.settings).unlink()
    wired.policies.refresh()
    assert "shell" in {tool.name for tool in wired.runtime.tools.listed(session)}


def test_a_sandbox_is_not_put_around_commands_that_began_without_one(home: Home, workspace: Path) -> None:
    wired = Wired(home, audit=False)
    Path(home.settings).write_text('sandbox = "off"\n')
    wired.policies.refresh()
    assert wired.sandbox.surroundings.profile is not None
    assert wired.runtime.permission.settings_state(str(workspace)).restart_for == ("sandbox",)
