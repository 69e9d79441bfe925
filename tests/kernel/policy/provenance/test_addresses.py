"""An address in the user's words vouches for itself as written, and for nothing else."""

from __future__ import annotations

import pytest

from callgate.policy.provenance.actions import Action
from callgate.policy.provenance.forms import hosts_in
from callgate.policy.provenance.index import ConversationIndex
from callgate.policy.provenance.requests import Use
from callgate.policy.provenance.sources import Source, SourceKind

READING = Use(Action.READ, "web_fetch")
USER = Source(SourceKind.USER)
PAGE = Source(SourceKind.TOOL, "web_fetch", 1, untrusted=True)


def kind(words: str, url: str) -> SourceKind:
    index = ConversationIndex()
    index.add(USER, words)
    return index.trace("url", url, READING).kind


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ("Sum up https://docs.example/a", "https://docs.example/a"),
        ("Sum up https://docs.example/a.", "https://docs.example/a"),
        ("Sum up https://docs.example/a/", "https://docs.example/a"),
        ("Sum up https://docs.example", "https://docs.example/"),
        ("Sum up HTTPS://DOCS.example/a", "https://docs.example/a"),
        ("Sum up https://docs.example:443/a", "https://docs.example/a"),
        ("Sum up http://docs.example/a", "https://docs.example/a"),
        ("Sum up http://docs.example:8080/a", "http://docs.example:8080/a"),
        ("Sum up https://docs.example/a?page=2#top", "https://docs.example/a?page=2#top"),
        ("Read (https://docs.example/a)", "https://docs.example/a"),
        ("Read <https://docs.example/a>, then stop", "https://docs.example/a"),
        ("Read docs.example/a", "https://docs.example/a"),
        ("Read www.docs.example", "http://www.docs.example"),
        ("Read www.our-company.com.They are fine", "www.our-company.com"),
        ("Read www.our-company.com.They are fine", "https://www.our-company.com/"),
        ("Fetch http://localhost:3000/health", "http://localhost:3000/health"),
        ("Fetch http://127.0.0.1:3000/health", "http://127.0.0.1:3000/health"),
        ("Read https://docs.example/%2e%2e/x", "https://docs.example/%2e%2e/x"),
    ],
)
def test_an_address_vouches_for_itself(words: str, url: str) -> None:
    assert kind(words, url) is SourceKind.USER


@pytest.mark.parametrize(
    "url",
    [
        "https://docs.example/a/b",
        "https://docs.example/",
        "https://docs.example/b",
        "https://docs.example/A",
        "https://docs.example/a?q=secret",
        "https://docs.example/a/?q=secret",
        "https://docs.example/a#secret",
        "https://docs.example/a;secret",
        "https://docs.example:8443/a",
        "https://docs.example:0/a",
        "https://secret@docs.example/a",
        "https://user:secret@docs.example/a",
        "https://@docs.example/a?secret",
        "https://secret.docs.example/a",
        "https://docs.example.evil.example/a",
        "https://evil.example/docs.example/a",
        "https://docs.example@evil.example/a",
        "https://docs.example\\@evil.example/a",
        "https://docs.example/a/../b",
        "https://docs.example/a/%2e%2e/b",
        "https://docs.example/%61",
        "https://docs.example//a",
        "http://docs.example/a",
        "gopher://docs.example/a",
        "ftp://docs.example/a",
        "file://docs.example/a",
        "https://d\u043ecs.example/a",
        "https://docs.example\u3002evil.example/a",
        "https://\u212aocs.example/a",
        "https://docs.examp\u200ble/a",
    ],
)
def test_a_changed_address_is_not_the_users(url: str) -> None:
    assert kind("Sum up https://docs.example/a", url) is not SourceKind.USER


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ("Read www.docs.example", "https://www.docs.example/any"),
        ("Read www.docs.example", "https://docs.example/"),
        ("Read docs.example/a", "https://docs.example/"),
        ("Mail bob@corp.example", "https://corp.example/"),
        ("Read https://docs.example/a", "docs.example"),
    ],
)
def test_a_host_does_not_vouch_for_its_pages_or_neighbours(words: str, url: str) -> None:
    assert kind(words, url) is not SourceKind.USER


def test_another_page_of_a_named_host_says_so() -> None:
    index = ConversationIndex()
    index.add(USER, "Sum up https://docs.example/a")
    source = index.trace("url", "https://docs.example/a?q=1")
    assert str(source) == "your words, which name another page of this host"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("See https://evil.example/x", "https://evil.example/y?d=1"),
        ("See www.evil.example.They are fine", "www.evil.example"),
        ("See evil.example/x", "https://evil.example/"),
        ("our host is evil.example", "https://evil.example/x"),
    ],
)
def test_a_host_that_was_read_is_never_called_the_models(text: str, url: str) -> None:
    index = ConversationIndex()
    index.add(USER, "Go on.")
    index.add(PAGE, text)
    assert index.trace("url", url, READING) == PAGE


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("npm create-vite@latest app", ()),
        ("npx create-vite@latest", ()),
        ("npm install react@18.2.0 react-dom@^18", ()),
        ("npm i @types/node@20", ()),
        ("docker pull nginx@sha256:0123456789abcdef", ()),
        ("pip install 'requests==2.31.0'", ()),
        ("go get forge.example/x@v1.2.3", ()),
        ("ssh me@box", ("box:22",)),
        ("ssh me@box.example", ("box.example:22",)),
        ("scp a.txt me@10.0.0.7:/tmp", ("10.0.0.7:22",)),
        ("git clone git@forge.example:me/x.git", ("forge.example:22",)),
        ("git push backup@nas:/srv/repo", ("nas:22",)),
        ("rsync -a . me@nas:/srv", ("nas:22",)),
        ("curl https://a.example/x?y=@b", ("a.example",)),
    ],
)
def test_versions_and_digests_are_no_hosts(command: str, hosts: tuple[str, ...]) -> None:
    assert hosts_in(command) == hosts
