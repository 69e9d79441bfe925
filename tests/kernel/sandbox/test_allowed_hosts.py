"""Which hosts an entry covers, in however many ways a host can be spelt."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.sandbox.allowed_hosts import (
    AllowedHost,
    common,
    find,
    is_private,
    is_public,
    normal_host,
    parse,
    split,
)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("pkgs.example.org", AllowedHost("pkgs.example.org")),
        ("Pkgs.Example.org.", AllowedHost("pkgs.example.org")),
        ("pkgs.example.org:8443", AllowedHost("pkgs.example.org", (8443,))),
        ("*.Example.com", AllowedHost("example.com", below=True)),
        ("*.example.com:443", AllowedHost("example.com", (443,), below=True)),
        ("bücher.example", AllowedHost("xn--bcher-kva.example")),
        ("b\uff55cher\u3002example", AllowedHost("bucher.example")),
        ("127.0.0.1:80", AllowedHost("127.0.0.1", (80,))),
        ("[::1]:80", AllowedHost("::1", (80,))),
        ("[::FFFF:10.0.0.1]", AllowedHost("10.0.0.1")),
        ("private:git.corp:22", AllowedHost("git.corp", (22,), private=True)),
        ("localhost", AllowedHost("localhost")),
    ],
)
def test_an_entry_has_one_meaning_and_one_spelling(text: str, entry: AllowedHost) -> None:
    assert parse(text) == entry
    assert parse(str(entry)) == entry


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "*.",
        "**",
        "*.*",
        "*.*.com",
        "a.*",
        "a*.com",
        "*com",
        ".",
        ".com",
        "a..b",
        "a.com..",
        "http://a.com",
        "a.com/",
        "a.com/x",
        "//a.com",
        "a.com?x",
        "a.com#x",
        "u@a.com",
        "u:p@a.com",
        "a.com:",
        "a.com:0",
        "a.com:080",
        "a.com:65536",
        "a.com:99999",
        "a.com:x",
        "a.com:-1",
        "a.com:*",
        "a com",
        " a.com",
        "a.com ",
        "a\tb",
        "a\nb.com",
        "a.com\n",
        "a\0.com",
        "a%2ecom",
        "a\\b",
        "a,b",
        "0x7f.1",
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.01",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3",
        "a.0x1",
        "a.1",
        "*.1",
        "*.127.0.0.1",
        "*.[::1]",
        "::1",
        "[::1",
        "[::1%eth0]",
        "[127.0.0.1]",
        "[]",
        "private:127.0.0.1",
        "private:",
        "private:*",
        "-a.com",
        "a-.com",
        "a" * 64 + ".com",
        "a." * 130 + "com",
        "straße.de",
        "a\u200db.com",
        "\ud800.com",
    ],
)
def test_what_is_no_host_is_no_entry(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    ("entry", "host", "covered"),
    [
        ("pkgs.example.org", "pkgs.example.org:443", True),
        ("pkgs.example.org", "pkgs.example.org:80", True),
        ("pkgs.example.org", "pkgs.example.org:8080", False),
        ("pkgs.example.org:8080", "pkgs.example.org:443", False),
        ("pkgs.example.org", "a.pkgs.example.org:443", False),
        ("pkgs.example.org", "evilpkgs.example.org:443", False),
        ("pkgs.example.org", "pkgs.example.org.evil.com:443", False),
        ("*.pkgs.example.org", "a.pkgs.example.org:443", True),
        ("*.pkgs.example.org", "a.b.pkgs.example.org:443", True),
        ("*.pkgs.example.org", "pkgs.example.org:443", False),
        ("*.pkgs.example.org", "evilpkgs.example.org:443", False),
        ("pkgs.example.org", "PKGS.EXAMPLE.ORG.:443", True),
        ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", True),
        ("localhost", "127.0.0.1:80", False),
        ("private:git.corp", "git.corp:443", True),
    ],
)
def test_an_entry_covers_its_host_and_no_other(entry: str, host: str, covered: bool) -> None:
    name, port = split(host)
    assert port is not None
    assert bool(find([parse(entry)], name, port)) is covered


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, False),
        ("2606:4700::1111", True, False),
        ("127.0.0.1", False, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("fd00::1", False, True),
        ("::1", False, True),
        ("169.254.169.254", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("192.0.0.192", False, False),
        ("fd00:ec2::254", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("255.255.255.255", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
        ("::", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("::ffff:93.184.216.34", True, False),
        ("::127.0.0.1", False, False),
        ("64:ff9b::7f00:1", False, False),
        ("64:ff9b::5db8:d822", True, False),
        ("2002:7f00:1::", False, False),
        ("2002:a9fe:a9fe::", False, False),
        ("2001:db8::1", False, False),
        ("2001:200::1", True, False),
        ("192.0.1.1", True, False),
        # What the standard library has called global in one release and not in another.
        ("192.0.0.9", False, False),
        ("192.88.99.1", False, False),
        ("2001:1::1", False, False),
        ("2001:20::1", False, False),
        ("2001:30::1", False, False),
        ("3fff::1", False, False),
        ("5f00::1", False, False),
        ("64:ff9b:1::1", False, False),
        ("2001:0:5db8:d822::", False, False),
    ],
)
def test_an_address_is_public_private_or_neither(address: str, public: bool, private: bool) -> None:
    assert (is_public(address), is_private(address)) == (public, private)


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_calls_private_is_never_public(address: IPv4Address) -> None:
    reserved = address.is_private or address.is_multicast or address.is_reserved
    assert not (reserved and is_public(str(address)))
    assert is_public(f"::ffff:{address}") == is_public(str(address))


def test_only_an_entry_that_says_so_leads_to_a_private_address() -> None:
    assert [
        parse(entry).permits(address)
        for entry in ("git.corp", "private:git.corp", "10.0.0.1")
        for address in ("10.0.0.1", "10.0.0.2", "169.254.169.254", "93.184.216.34")
    ] == [
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        True,
        True,
        False,
        False,
        True,
    ]


LABELS = st.sampled_from(["a", "b", "example", "com", "xn--a", "a1"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
NEAR = st.sampled_from(["a", "b.a", "c.b.a", "ab.a"])
"""Few, so that two of them often have to do with each other."""
PORTS = st.sampled_from(["", ":443", ":8080"])
ENTRIES = st.builds(
    lambda private, star, name, port: parse(private + star + name + port),
    st.sampled_from(["", "private:"]),
    st.sampled_from(["", "*."]),
    NEAR,
    PORTS,
)


@given(st.lists(ENTRIES, max_size=3), st.lists(ENTRIES, max_size=3), NEAR, st.sampled_from([80, 443, 8080]))
def test_what_two_lists_have_in_common_is_what_each_covers(
    first: list[AllowedHost], second: list[AllowedHost], host: str, port: int
) -> None:
    both = common(first, second)
    assert bool(find(both, host, port)) is (bool(find(first, host, port)) and bool(find(second, host, port)))
    for address in ("10.0.0.1", "169.254.169.254"):
        reached = [any(e.permits(address) for e in find(each, host, port)) for each in (both, first, second)]
        assert reached[0] is (reached[1] and reached[2])


@given(NAMES, st.randoms(use_true_random=False), st.booleans())
def test_no_spelling_of_a_host_gets_round_its_entry(name: str, chance: object, dot: bool) -> None:
    spelt = "".join(chance.choice([c.lower(), c.upper()]) for c in name) + "." * dot  # type: ignore[attr-defined]
    assert split(spelt + ":443") == (name, 443)
    assert normal_host(normal_host(spelt)) == normal_host(spelt)


@given(st.text(max_size=30))
def test_any_text_is_a_host_in_one_spelling_or_none(text: str) -> None:
    try:
        host = normal_host(text)
    except ValueError:
        return
    again = f"[{host}]" if ":" in host else host
    assert host.isascii() and host == host.lower() and normal_host(again) == host


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "{:#x}", "0{:o}"]))
def test_a_number_is_never_a_host(number: int, how: str) -> None:
    with pytest.raises(ValueError):
        parse(how.format(number))
