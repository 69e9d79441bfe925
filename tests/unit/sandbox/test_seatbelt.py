"""The profile for macOS, as text."""

from __future__ import annotations

import pytest

from callgate.sandbox.backends import seatbelt
from callgate.sandbox.jails import Jail, Network


def rules(jail: Jail) -> list[str]:
    """The lines after those that are the same for every jail."""
    same = seatbelt.profile(Jail(readable=(), network=Network.NONE))
    text = seatbelt.profile(jail)
    assert text.startswith(same)
    return text[len(same) :].splitlines()


def test_a_profile_begins_by_refusing_everything() -> None:
    assert seatbelt.profile(Jail()).startswith("(version 1)\n(deny default)\n")


def test_what_is_taken_away_comes_after_what_is_given() -> None:
    jail = Jail(writable=("/ws",), protected=("/ws/a/.git/hooks",), hidden=("/home/me/.ssh",))
    assert rules(jail) == [
        '(allow file-read* (subpath "/"))',
        '(allow file-read* (subpath "/ws"))',
        '(allow file-write* (subpath "/ws"))',
        '(deny file-write* (subpath "/ws/a/.git/hooks"))',
        '(deny file-write-unlink (literal "/ws/a/.git"))',
        '(deny file-write-unlink (literal "/ws/a"))',
        '(deny file-read* file-write* (subpath "/home/me/.ssh"))',
    ]


@pytest.mark.parametrize(
    ("network", "sockets", "expected"),
    [
        (Network.NONE, False, []),
        (Network.LOOPBACK, False, []),
        (Network.NONE, True, ["(allow network-outbound (remote unix-socket))"]),
        (Network.ALL, True, ["(allow network*)"]),
        (
            Network.ALL,
            False,
            ["(allow network*)", "(deny network-outbound (remote unix-socket))"],
        ),
    ],
)
def test_the_network_is_given_only_on_request(network: Network, sockets: bool, expected: list[str]) -> None:
    assert rules(Jail(readable=(), network=network, unix_sockets=sockets)) == expected


@pytest.mark.spec("T10")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/a b", '"/a b"'),
        ('/a")) (allow default) ("', '"/a\\")) (allow default) (\\""'),
        ("/a\\", '"/a\\\\"'),
        ('/a\\"', '"/a\\\\\\""'),
        ("/ä/日本", '"/ä/日本"'),
        ("/a;b#c", '"/a;b#c"'),
    ],
)
def test_no_path_ends_its_string(path: str, text: str) -> None:
    assert seatbelt.quoted(path) == text


@pytest.mark.spec("T10")
@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f"])
def test_a_path_with_control_characters_is_refused(character: str) -> None:
    with pytest.raises(ValueError):
        seatbelt.quoted(f"/a{character}b")


def test_a_command_follows_its_profile() -> None:
    jail = Jail()
    expected = ("/usr/bin/sandbox-exec", "-p", seatbelt.profile(jail), "ls", "-l")
    assert seatbelt.arguments(jail, ("ls", "-l")) == expected
