"""What the web tools reach, and what they leave alone: addresses, redirects, sizes, time."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from callgate.core.errors import ToolErrorClass, ToolPermissionDenied
from callgate_catalogue.web import fetching
from callgate_catalogue.web.fetching import decoder
from callgate_catalogue.web.reach import Reach
from tests.catalogue.web.desk import Names, desk
from tests.web_server import WebServer, endless, page, redirect, silent

HOSTILE = [
    "file:///etc/passwd",
    "ftp://example.org/x",
    "gopher://127.0.0.1:6379/_PING",
    "data:text/html,hi",
    "javascript:alert(1)",
    "//example.org/x",
    "example.org",
    "http:/example.org",
    "http://",
    "http:///etc/passwd",
    "http://user:secret@example.org/",
    "http://example.org@127.0.0.1/",
    "http://example.org\\@127.0.0.1/",
    "http://127.0.0.1\t/",
    "http://exa mple.org/",
    "http://example.org/\r\nHost: x",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://127.0.0.1.0x0/",
    "http://①②⑦.⓪.⓪.①/",
    "http://[::1%25eth0]/",
    "http://[::1/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:80:80/",
    "http://" + "a" * 300 + ".example/",
    "http://example.org/" + "a" * 9_000,
]
INSIDE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001::1",
]


@pytest.mark.spec("S3-55", "T25")
@pytest.mark.parametrize("tool", ["web_fetch", "api_call"])
@pytest.mark.parametrize("url", HOSTILE)
async def test_what_is_not_plainly_an_address_on_the_web_is_refused(tool: str, url: str) -> None:
    names = Names()
    result = await desk(resolve=names).run(tool, {"url": url})
    assert result.error is not None
    assert result.error.error_class in (ToolErrorClass.VALIDATION_ERROR, ToolErrorClass.PERMISSION_DENIED)
    assert names.asked == []


@pytest.mark.spec("S3-55")
@pytest.mark.parametrize("address", INSIDE)
async def test_no_spelling_of_an_address_inside_is_connected_to(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    bench = desk(resolve=Names(evil_test=[[address]]))
    for url in (f"http://{host}/", "http://evil.test/", "https://evil.test:8443/x"):
        for tool in ("web_fetch", "api_call"):
            result = await bench.run(tool, {"url": url})
            assert (result.error.error_class, result.error.reason) == ("permission_denied", "address_refused")


@pytest.mark.spec("S3-55")
async def test_a_name_is_looked_up_once_and_the_checked_address_is_connected_to() -> None:
    async with WebServer() as server:
        server.pages["/"] = page("hello", "text/plain")
        names = Names(app_test=[["127.0.0.1"], ["169.254.169.254"]])
        bench = desk(resolve=names, allow=[f"private:app.test:{server.port}"])
        first = await bench.run("web_fetch", {"url": server.url("/", "app.test")})
        assert first.ok and names.asked == ["app.test"]
        assert server.got[0].headers["host"] == f"app.test:{server.port}"
        second = await bench.run("web_fetch", {"url": server.url("/", "app.test")})
        assert second.error.reason == "address_refused"
        assert len(server.got) == 1


@pytest.mark.spec("S3-55")
async def test_a_name_that_changes_between_redirects_is_judged_again() -> None:
    async with WebServer() as server:
        server.pages["/"] = redirect("/again")
        names = Names(app_test=[["127.0.0.1"], ["169.254.169.254"]])
        bench = desk(resolve=names, allow=[f"private:app.test:{server.port}"])
        for tool in ("web_fetch", "api_call"):
            names.answers["app.test"] = [["127.0.0.1"], ["169.254.169.254"]]
            result = await bench.run(tool, {"url": server.url("/", "app.test")})
            assert result.error.reason == "address_refused"
        assert server.paths == ["/", "/"]


@pytest.mark.spec("S3-55")
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("http://169.254.169.254/latest/meta-data/", "address_refused"),
        ("http://localhost/", "address_refused"),
        ("//[::1]/", "address_refused"),
        ("file:///etc/passwd", "invalid_url"),
        ("http://2130706433/", "invalid_url"),
        ("http://user@example.org/", "invalid_url"),
    ],
)
async def test_a_redirect_is_judged_like_any_address(where: str, reason: str) -> None:
    async with WebServer() as server:
        server.pages["/"] = redirect(where)
        names = Names(localhost=[["127.0.0.1"]])
        bench = desk(resolve=names, allow=[f"127.0.0.1:{server.port}"])
        result = await bench.run("web_fetch", {"url": server.url()})
        if reason == "invalid_url":
            assert result.error.reason == reason
        else:  # another host is not contacted
            assert (result.ok, result.meta["location"], server.paths) == (True, where, ["/"])
            assert names.asked == []


async def test_a_page_that_redirects_to_another_host_names_it_and_does_not_contact_it() -> None:
    async with WebServer() as server, WebServer() as other:
        server.pages["/"] = redirect(other.url("/x"), 301)
        other.pages["/x"] = page("elsewhere", "text/plain")
        bench = desk(allow=[f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}"])
        for method in ("GET", "HEAD"):
            result = await bench.run("web_fetch", {"url": server.url(), "method": method})
            assert (result.meta["status"], result.meta["location"]) == (301, other.url("/x"))
        assert other.got == []
        assert (await bench.run("web_fetch", {"url": other.url("/x")})).ok


async def test_redirects_are_followed_as_far_as_the_settings_say() -> None:
    async with WebServer() as server:
        server.pages |= {
            "/a": redirect("/b", 301),
            "/b": redirect("c?x=1 2", 307),
            "/c": page("done", "text/plain"),
            "/loop": redirect("/loop"),
        }
        bench = desk(allow=[f"127.0.0.1:{server.port}"], max_redirects=2)
        result = await bench.run("web_fetch", {"url": server.url("/a")})
        assert result.text == f"200 {server.url('/c?x=1%202')}\n\ndone"
        assert result.meta["redirects"] == [server.url("/a"), server.url("/b")]
        assert (await bench.run("web_fetch", {"url": server.url("/loop")})).error.reason == "web_redirects"
        assert server.paths.count("/loop") == 3


async def test_a_call_goes_to_another_host_only_when_it_is_made_again() -> None:
    async with WebServer() as server, WebServer() as other:
        server.pages |= {
            "/": redirect(other.url("/x"), 307),
            "/near": redirect("/here", 303),
            "/here": page("ok", "text/plain"),
        }
        bench = desk(allow=[f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}"])
        secret = {"headers": {"X-Key": "k"}, "method": "POST", "body": "b"}
        result = await bench.run("api_call", {"url": server.url(), **secret})
        assert (result.value["status"], result.value["headers"]["location"]) == (307, other.url("/x"))
        assert other.got == []
        assert (await bench.run("api_call", {"url": server.url("/near"), **secret})).value["body"] == "ok"
        (post, get) = server.got[-2:]
        assert (post.method, post.body, get.method, get.body) == ("POST", b"b", "GET", b"")
        assert "content-type" not in get.headers and get.headers["x-key"] == "k"


def test_networks_and_names_of_the_settings_open_what_they_name_and_no_more() -> None:
    reach = Reach.of(["10.1.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "private:wiki.corp", "[::1]:8080"], None)
    found = {
        (host, port, address): bool(_permitted(reach, host, port, address))
        for host, port, address in [
            ("any.test", 80, "10.1.2.3"),
            ("any.test", 80, "10.2.0.1"),
            ("any.test", 80, "100.100.100.200"),
            ("any.test", 80, "169.254.169.254"),
            ("wiki.corp", 443, "192.168.0.9"),
            ("wiki.corp", 8443, "192.168.0.9"),
            ("wiki.corp", 443, "169.254.169.254"),
            ("wiki.corp.evil.test", 443, "192.168.0.9"),
            ("::1", 8080, "::1"),
            ("::1", 80, "::1"),
            ("any.test", 8080, "::1"),
            ("any.test", 1, "93.184.216.34"),
        ]
    }
    assert [key for key, allowed in found.items() if allowed] == [
        ("any.test", 80, "10.1.2.3"),
        ("wiki.corp", 443, "192.168.0.9"),
        ("::1", 8080, "::1"),
        ("any.test", 1, "93.184.216.34"),
    ]
    assert reach.permitted("any.test", 80, ["127.0.0.1", "93.184.216.34"]) == ["93.184.216.34"]


def _permitted(reach: Reach, host: str, port: int, address: str) -> list[str]:
    try:
        return reach.permitted(host, port, [address])
    except ToolPermissionDenied:
        return []


async def test_only_the_hosts_that_the_settings_name_are_reached_if_they_name_some() -> None:
    async with WebServer() as server:
        server.pages["/"] = redirect("http://example.org/")
        names = Names(example_org=[["93.184.216.34"]])
        bench = desk(resolve=names, only=[f"127.0.0.1:{server.port}"], allow=[f"127.0.0.1:{server.port}"])
        result = await bench.run("web_fetch", {"url": "http://example.org/"})
        assert (result.error.error_class, result.error.reason) == ("permission_denied", "host_refused")
        assert (await bench.run("web_fetch", {"url": server.url()})).meta["location"] == "http://example.org/"
        assert names.asked == []


async def test_a_gigabyte_is_cut_where_the_settings_say(tmp_path: Path) -> None:
    async with WebServer() as server:
        server.pages["/"] = endless
        bench = desk(tmp_path, allow=[f"127.0.0.1:{server.port}"], max_bytes=64 * 1024)
        result = await bench.run("web_fetch", {"url": server.url(), "maxTokens": 100})
        assert (result.ok, result.truncated, result.meta["bytes"]) == (True, True, 64 * 1024)
        assert len(result.text) < 1_000
        async with asyncio.timeout(60):
            await server.left.wait()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
async def test_a_bomb_is_taken_apart_as_far_as_the_limit_goes(encoding: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15, "raw": -15}[encoding])
    block = b"0" * 1024 * 1024
    bomb = b"".join([*(packer.compress(block) for _ in range(64)), packer.flush()])
    async with WebServer() as server:
        server.pages["/"] = page(bomb, "text/plain", Content_Encoding="gzip" if encoding == "gzip" else "deflate")
        bench = desk(allow=[f"127.0.0.1:{server.port}"], max_bytes=100_000)
        result = await bench.run("web_fetch", {"url": server.url(), "maxTokens": 100})
        assert (result.ok, result.truncated, result.meta["bytes"]) == (True, True, 100_000)


def test_a_bomb_goes_off_in_small_pieces() -> None:
    bomb = gzip.compress(b"0" * 16 * 1024 * 1024)
    sizes = [len(piece) for piece in decoder("gzip").feed(bomb)]
    assert sum(sizes) == 16 * 1024 * 1024 and max(sizes) <= 256 * 1024


@pytest.mark.parametrize(
    ("body", "encoding", "outcome"),
    [
        (gzip.compress(b"hello", mtime=0), "gzip", "hello"),
        (gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0), "x-gzip", "hello"),
        (zlib.compress(b"hello"), "deflate", "hello"),
        (gzip.compress(b"hello", mtime=0) + b"junk", "gzip", "hello"),
        (gzip.compress(b"hello", mtime=0)[:-6], "gzip", "web_encoding"),
        (b"not gzip at all", "gzip", "web_encoding"),
        (b"hello", "identity", "hello"),
        (gzip.compress(gzip.compress(b"hello", mtime=0), mtime=0), "gzip, gzip", "web_encoding"),
        (b"x", "br", "web_encoding"),
    ],
)
async def test_compression_is_undone_or_refused(body: bytes, encoding: str, outcome: str) -> None:
    async with WebServer() as server:
        server.pages["/"] = page(body, "text/plain", Content_Encoding=encoding)
        bench = desk(allow=[f"127.0.0.1:{server.port}"])
        result = await bench.run("web_fetch", {"url": server.url()})
        found = result.text.partition("\n\n")[2] if result.ok else result.error.reason
        assert found == outcome


@pytest.mark.parametrize("after", [b"", b"half an answer"])
async def test_a_slow_answer_ends_when_its_time_is_up(after: bytes) -> None:
    async with WebServer() as server:
        server.pages["/"] = silent(after)
        bench = desk(allow=[f"127.0.0.1:{server.port}"], timeout_s=0.2)
        result = await bench.run("web_fetch", {"url": server.url()})
        assert result.error.reason == "web_timeout"
        async with asyncio.timeout(60):
            await server.left.wait()


@pytest.mark.spec("S3-53")
@pytest.mark.parametrize("tool", ["web_fetch", "api_call", "web_search"])
async def test_a_cancelled_call_hangs_up(tool: str) -> None:
    async with WebServer() as server:
        for path in ("/", "/search"):
            server.pages[path] = silent(b"half")
        bench = desk(allow=[f"127.0.0.1:{server.port}"], search="searxng", search_url=server.url())
        call = bench.tool_call(tool, {"query": "x"} if tool == "web_search" else {"url": server.url()})
        running = asyncio.create_task(bench.dispatcher.run(call))
        async with asyncio.timeout(60):
            await server.asked.wait()
            await bench.dispatcher.cancel(call.id)
            result = await running
            await server.left.wait()
        # A server that was asked to change something may go on with it.
        stopped = {"stopped": tool != "api_call"}
        assert (result.error.error_class, result.error.details) == ("cancelled", stopped)


async def test_a_server_that_is_not_there_or_speaks_something_else_is_one_sentence() -> None:
    async with WebServer() as server:
        port = server.port

        async def babble(got: object, out: asyncio.StreamWriter) -> None:
            out.write(b"220 smtp.example.org ESMTP\r\n\r\n")

        server.pages["/"] = babble
        bench = desk(allow=[f"127.0.0.1:{port}", "127.0.0.1:1"], resolve=Names())
        for url in (server.url(), "http://127.0.0.1:1/", "http://nowhere.test/"):
            result = await bench.run("web_fetch", {"url": url})
            assert (result.error.error_class, result.error.reason) == ("execution_error", "web_unreachable")
            assert "\n" not in result.error.message


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    bench = desk(
        resolve=Names(app_test=[["127.0.0.1"]]), allow=[f"private:app.test:{port}", f"private:other.test:{port}"]
    )
    try:
        fetching._trust.cache_clear()
        refused = await bench.run("web_fetch", {"url": f"https://app.test:{port}/"})
        assert refused.error.reason == "web_untrusted"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        fetching._trust.cache_clear()
        assert (await bench.run("web_fetch", {"url": f"https://app.test:{port}/"})).text.endswith("\n\nhi")
        other = desk(resolve=Names(other_test=[["127.0.0.1"]]), allow=[f"private:other.test:{port}"])
        assert (await other.run("web_fetch", {"url": f"https://other.test:{port}/"})).error.reason == "web_untrusted"
    finally:
        fetching._trust.cache_clear()
        server.close()


def _certificate(directory: Path) -> Path:
    """For app.test, and signed by itself."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography: not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "app.test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("app.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "key.pem").write_bytes(key.private_bytes(*plain))
    (directory / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return directory / "certificate.pem"
