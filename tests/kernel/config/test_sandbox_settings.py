"""`[sandbox]` in the settings: what it may say, and what it becomes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.saved import save_rule, saved_rule
from callgate.dispatch.commands.sandboxes import OFF, Surroundings
from callgate.instance.wiring.runtime import surroundings
from callgate.policy.rules import Outcome
from callgate.sandbox.allowed_hosts import AllowedHost
from callgate.sandbox.jails import Network, default_limits
from callgate.sandbox.profiles import Profile


def read(home: Path, text: str) -> Surroundings:
    (home / "settings.toml").write_text(text)
    settings, _ = load_user(Home(str(home)))
    return msgspec.structs.replace(surroundings(Home(str(home)), settings), path_rules=None)


def test_commands_run_in_the_workspace_without_network_unless_settings_say_otherwise(home: Path) -> None:
    place = {"home": str(home.parent), "callgate_home": str(home)}
    assert read(home, "") == Surroundings(**place, asks_in_guarded=True, limits=default_limits())
    assert read(
        home,
        '[sandbox]\nprofile = "open"\nnetwork = "loopback"\nwritable = ["~/cache"]\n'
        'readable = ["/r"]\nhidden = ["/h"]\nprotected = ["a/./b"]\n[sandbox.limits]\nprocesses = 9\nmemory_bytes = 0\ncpu_seconds = "none"\n',
    ) == Surroundings(
        profile=Profile.OPEN,
        network=Network.LOOPBACK,
        home=str(home.parent),
        callgate_home=str(home),
        readable=("/r",),
        writable=(str(home.parent / "cache"),),
        hidden=("/h",),
        protected=("a/b",),
        limits=msgspec.structs.replace(default_limits(), processes=9, memory_bytes=None, cpu_seconds=None),
    )


def test_only_the_word_off_takes_the_sandbox_away(home: Path) -> None:
    assert read(home, 'sandbox = "off"\n') == OFF


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('mode = "ask"\nsandbox = "of"', 2),
        ("sandbox = false", 1),
        ("sandbox = true", 1),
        ('[sandbox]\nprofile = "off"', 2),
        ('[sandbox]\nprofile = "read"', 2),
        ('[sandbox]\nnetwork = "some"', 2),
        ('[sandbox]\nnetwork = ["https://pkgs.example.org"]', 2),
        ('[sandbox]\nprofile = "workspace"\nnetwork = ["pkgs.example.org", "*"]', 3),
        ('[sandbox]\nnetwork = ["0x7f.1"]', 2),
        ("[sandbox]\nnetwork = [443]", 2),
        ('[sandbox]\n\nnetwrok = "all"', 3),
        ('[[policy.rules]]\ndecision = "allow"\nnetwork = ["u@pkgs.example.org"]', 3),
        ('[[policy.rules]]\ndecision = "allow"\nnetwork = []', 3),
        ('[[policy.rules]]\ndecision = "deny"\nnetwork = ["pkgs.example.org"]', 3),
        ('[sandbox]\nwritable = ["cache"]', 2),
        ('[sandbox]\nhidden = ["./x"]', 2),
        ('[sandbox]\nprotected = ["/etc"]', 2),
        ('[sandbox]\nprotected = ["a/../../b"]', 2),
        ('[sandbox]\nprotected = ["."]', 2),
        ("[sandbox.limits]\nopen_files = -1", 2),
        ("[sandbox.limits]\nopen_fils = 1", 2),
    ],
)
def test_a_mistake_is_refused_with_its_line(home: Path, text: str, line: int) -> None:
    with pytest.raises(SettingsError) as wrong:
        read(home, text)
    assert wrong.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        'sandbox = "off"',
        '[sandbox]\nnetwork = "all"',
        '[sandbox]\nprofile = "open"',
        '[sandbox]\nnetwork = ["*"]',
        '[sandbox]\nwritable = ["/x"]',
    ],
)
def test_a_workspace_can_widen_nothing_of_the_sandbox(tmp_path: Path, text: str) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate/settings.toml").write_text(text)
    with pytest.raises(SettingsError):
        load_workspace(str(tmp_path))


def test_a_rule_says_whether_it_covers_the_network(home: Path) -> None:
    (home / "settings.toml").write_text('[[policy.rules]]\ndecision = "deny"\nnetwork = true\n')
    rule = saved_rule(
        tool="shell",
        decision=Outcome.ALLOW,
        workspace="/ws",
        arguments={"command": "make"},
        arguments_sha256="0" * 64,
        resolved_paths=(),
        network=True,
    )
    assert rule == {
        "decision": "allow",
        "tool": "shell",
        "workspace": "/ws",
        "network": True,
        "command": "make",
    }
    save_rule(Home(str(home)), rule)
    _, policy = load_user(Home(str(home)))
    assert [(each.decision, each.network) for each in policy.rules] == [("deny", True), ("allow", True)]


def test_a_list_names_the_hosts_that_every_command_reaches(home: Path) -> None:
    place = {"home": str(home.parent), "callgate_home": str(home), "limits": default_limits()}
    hosts = (AllowedHost("pkgs.example.org"), AllowedHost("example.com", (8443,), below=True))
    assert read(home, '[sandbox]\nnetwork = ["Pkgs.Example.org", "*.example.com:8443"]') == Surroundings(
        network=Network.HOSTS, hosts=hosts, **place
    )
    assert read(home, "[sandbox]\nnetwork = []") == Surroundings(**place)


def test_a_rule_names_hosts_in_their_one_spelling(home: Path) -> None:
    text = '[[policy.rules]]\ndecision = "allow"\ntool = "shell"\nnetwork = ["Pkgs.Example.org."]\n'
    (home / "settings.toml").write_text(text)
    _, policy = load_user(Home(str(home)))
    assert [(each.network, str(each)) for each in policy.rules] == [
        (("pkgs.example.org",), "allow tool = shell, network = [pkgs.example.org]")
    ]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("", None), ("[sandbox]\nnetwork = []", ()), ('[sandbox]\nnetwork = ["A.com"]', ("a.com",))],
)
def test_a_workspace_names_the_most_that_its_commands_reach(
    tmp_path: Path, text: str, hosts: tuple[str, ...] | None
) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate/settings.toml").write_text(text)
    policy = load_workspace(str(tmp_path))
    assert policy is not None and policy.hosts == hosts
