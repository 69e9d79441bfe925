"""One request head: what is passed on of it, and what is refused rather than repaired."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.sandbox.egress import ConnectRequest, Malformed, parse


def head(line: str, *fields: str) -> bytes:
    return "".join(f"{each}\r\n" for each in (line, *fields, "")).encode("latin-1")


def passed(line: str, *fields: str) -> bytes:
    return head(line, *fields, "Connection: close")


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (head("CONNECT Pkgs.Example.org.:443 HTTP/1.1", "Host: x"), ConnectRequest("pkgs.example.org", 443)),
        (head("CONNECT [::1]:443 HTTP/1.0"), ConnectRequest("::1", 443)),
        (
            head("GET http://A.com HTTP/1.1"),
            ConnectRequest("a.com", 80, passed("GET / HTTP/1.1", "Host: a.com")),
        ),
        (
            head("GET HTTP://a.com:8080/x?y=1 HTTP/1.0", "Host: a.com:8080"),
            ConnectRequest("a.com", 8080, passed("GET /x?y=1 HTTP/1.1", "Host: a.com:8080")),
        ),
        (
            head("GET http://a.com?y HTTP/1.1", "Host: evil.com"),
            ConnectRequest("a.com", 80, passed("GET /?y HTTP/1.1", "Host: a.com")),
        ),
        (
            head("GET http://a.com//evil.com/x HTTP/1.1"),
            ConnectRequest("a.com", 80, passed("GET //evil.com/x HTTP/1.1", "Host: a.com")),
        ),
        (
            head(
                "POST http://[::1]/ HTTP/1.1",
                "Accept: a\tb",
                "Connection: keep-alive, X-Gone, Content-Length",
                "X-Gone: 1",
                "Keep-Alive: 5",
                "Proxy-Connection: x",
                "Proxy-Authorization: secret",
                "Upgrade: h2c",
                "TE: trailers",
                "content-length: 7",
            ),
            ConnectRequest("::1", 80, passed("POST / HTTP/1.1", "Host: [::1]", "Accept: a\tb", "Content-Length: 7"), 7),
        ),
    ],
)
def test_a_request_is_passed_on_in_words_of_our_own(asked: bytes, request_: ConnectRequest) -> None:
    assert parse(asked) == request_


GET = "GET http://a.com/ HTTP/1.1"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (head("GET / HTTP/1.1", "Host: a.com"), 400),
        (head("GET https://a.com/ HTTP/1.1"), 400),
        (head("GET ftp://a.com/ HTTP/1.1"), 400),
        (head("GET file:///etc/passwd HTTP/1.1"), 400),
        (head("OPTIONS * HTTP/1.1"), 400),
        (head("GET http:///x HTTP/1.1"), 400),
        (head("GET http:a.com HTTP/1.1"), 400),
        (head("GET http://u@a.com/ HTTP/1.1"), 400),
        (head("GET http://u:p@a.com/ HTTP/1.1"), 400),
        (head("GET http://a.com@evil.com/ HTTP/1.1"), 400),
        (head("GET http://a.com\\@evil.com/ HTTP/1.1"), 400),
        (head("GET http://a.com#@evil.com/ HTTP/1.1"), 400),
        (head("GET http://a.com/#x HTTP/1.1"), 400),
        (head("GET http://a%2ecom/ HTTP/1.1"), 400),
        (head("GET http://0x7f.1/ HTTP/1.1"), 400),
        (head("GET http://2130706433/ HTTP/1.1"), 400),
        (head("GET http://[::1%25lo]/ HTTP/1.1"), 400),
        (head("GET http://b\xfccher.example/ HTTP/1.1"), 400),
        (head("GET http://a.com/ x HTTP/1.1"), 400),
        (head("GET  http://a.com/ HTTP/1.1"), 400),
        (head("get http://a.com/ HTTP/1.1"), 400),
        (head("GET http://a.com/ HTTP/2.0"), 400),
        (head("GET http://a.com/ HTTP/1.10"), 400),
        (head("GET http://a.com/"), 400),
        (head("CONNECT a.com HTTP/1.1"), 400),
        (head("CONNECT a.com:0 HTTP/1.1"), 400),
        (head("CONNECT a.com:443:443 HTTP/1.1"), 400),
        (head("CONNECT http://a.com:443 HTTP/1.1"), 400),
        (head("CONNECT u@a.com:443 HTTP/1.1"), 400),
        (head("CONNECT 127.1:443 HTTP/1.1"), 400),
        (head(GET, "Host: a.com", "Host: evil.com"), 400),
        (head(GET, "Host: a.com", "hOST: a.com"), 400),
        (head(GET, "Host : a.com"), 400),
        (head(GET, " folded: x"), 400),
        (head(GET, "A: b", "\tc"), 400),
        (head(GET, "no colon"), 400),
        (head(GET, ": x"), 400),
        (head(GET, "A: b\nHost: evil.com"), 400),
        (head(GET, "A: b\rHost: evil.com"), 400),
        (head(GET, "A: b\0"), 400),
        (head(GET + "\nHost: evil.com"), 400),
        (head(GET, "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head(GET, "Transfer-Encoding: chunked", "Content-Length: 1"), 400),
        (head(GET, "Transfer-Encoding: chunked"), 411),
        (head(GET, "transfer-encoding: x"), 411),
        (head(GET, "Content-Length: 1", "Content-Length: 1"), 400),
        (head(GET, "Content-Length: 1, 1"), 400),
        (head(GET, "Content-Length: +1"), 400),
        (head(GET, "Content-Length: -1"), 400),
        (head(GET, "Content-Length: 0x1"), 400),
        (head(GET, "Content-Length: 1_0"), 400),
        (head(GET, "Content-Length:"), 400),
        (head(GET, "Content-Length: \xb2"), 400),
        (head(GET, "Content-Length: " + "9" * 30), 400),
        (head(GET, *["A: b"] * 201), 431),
        (head(GET, "A:" + " " * 30_000 + "\x01"), 400),
        (head(GET, "A" * 30_000 + "\x01"), 400),
        (head("GET http://" + "a." * 8_000 + "com/ HTTP/1.1"), 400),
        (head("GET http://[" + ":" * 16_000 + "]/ HTTP/1.1"), 400),
        (head("CONNECT " + "1" * 16_000 + ":443 HTTP/1.1"), 400),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(asked: bytes, status: int) -> None:
    with pytest.raises(Malformed) as refused:
        parse(asked)
    assert refused.value.status == status


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_bytes_make_a_second_line_out_of_a_first(noise: bytes, at: int) -> None:
    """Whatever is put into a good head: what is passed on has its own Host, once, and one end."""
    good = head(GET, "Host: a.com", "Accept: x")
    try:
        request = parse(good[:at] + noise + good[at:])
    except Malformed:
        return
    if request.head:
        lines = request.head.split(b"\r\n")
        assert sum(line.lower().startswith(b"host:") for line in lines) == 1
        assert request.head.count(b"\r\n\r\n") == 1 and b"\n" not in request.head.replace(b"\r\n", b"")
