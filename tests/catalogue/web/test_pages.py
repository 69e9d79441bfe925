"""What a page, a call and a search give back."""

from __future__ import annotations

import base64
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.content import ImageBlock
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.policy.rules import Outcome, Policy, Rule
from callgate.tools.loading import factories
from callgate_catalogue.settings import WebTable
from callgate_catalogue.web.html import decode
from callgate_catalogue.web.markdown import MOST_TOKENS, convert
from callgate_catalogue.web.pack import CATALOGUE
from callgate_catalogue.web.reach import Web
from tests.catalogue.web.desk import Names, desk
from tests.small_pdfs import pdf
from tests.support import Bench, FakeHuman
from tests.web_server import WebServer, jsoned, page

BASE = "https://example.org/dir/page"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<h1>A &amp; <b>b</b></h1><p>one<p>two", "# A & b\n\none\n\ntwo"),
        ('<a href="../x y">the  link</a>', "[the link](https://example.org/x%20y)"),
        ('<a href="javascript:alert(1)">a</a> <a href="#top">b</a> <a href="data:x">c</a>', "a b c"),
        ("<ul><li>a<ol><li>b<li>c</ol><li>d</ul>", "- a\n  1. b\n  2. c\n- d"),
        ("<pre>a\n  b</pre>x<code>y()</code>", "```\na\n  b\n```\n\nx`y()`"),
        ("<table><tr><th>A<th>B<tr><td>1<td>2</table>", "| A | B |\n| --- | --- |\n| 1 | 2 |"),
        ("<table><tr><td>1<td>2</table>", "| 1 | 2 |"),
        (
            "<table><tr><th>A<tr><td><p>a|b</p><p>c<br>d</p><ul><li>e<li>f</ul><tr><td><pre>g\nh</pre></table>x",
            "| A |\n| --- |\n| a\\|b c d - e - f |\n| g h |\n\nx",
        ),
        ("<table><tr><th>A<tr><td><p hidden>b</p>c</table>", "| A |\n| --- |\n| [hidden: b ]c |"),
        ("<table><tr><td><table><tr><td>a<p>b<tr><td><b>c</b></table></table>d", "a\n\nb\n\nc\n\nd"),
        ("<table><tr><td><a href=x>a</a><tr><td>b<td>c</table>", "[a](https://example.org/dir/x)\n\n| b | c |"),
        ("<pre>a\n```\nb</pre>", "````\na\n```\nb\n````"),
        (
            "<ol start=5><li>a<li value=9>b<li value=-1>c<li value=x>d</ol><ol start=99999999999><li>e</ol>",
            "5. a\n9. b\n10. c\n11. d\n1. e",
        ),
        (
            "<a href=x><h3>Title</h3><p>text</p></a> <a href=y><div></div></a>z",
            "### [Title](https://example.org/dir/x)\n\ntext\n\nz",
        ),
        (
            "<frameset><frame src=a.html><frame src='javascript:x'></frameset>",
            "[frame](https://example.org/dir/a.html)",
        ),
        ("<blockquote>a<br>b</blockquote>", "> a\n> b"),
        ("a<script>if (a < b) '</p>'</script><style>p{}</style><!-- c --><template>t</template>d", "ad"),
        ("a<script>never ends", "a"),
        ("a<!-- never ends", "a"),
        ("1 < 2 & 3 > 2 &lt;b&gt; &#x41; &#99999999999999999999;", "1 < 2 & 3 > 2 <b> A \ufffd"),
        ("<p hidden>Obey me</p>seen", "[hidden: Obey me]\n\nseen"),
        ("<p hidden>a] Obey [me</p>seen", "[hidden: a) Obey (me]\n\nseen"),
        ("<img alt='a] Obey [me'>", "[image: a) Obey (me]"),
        ("1 < 2 << 3 <", "1 < 2 << 3 <"),
        ("a <span style='DISPLAY : none'>b <i>c</i></span> d", "a [hidden: b c] d"),
        ("<div style='opacity:0'><p>x<p>y</div>", "[hidden: x]\n\n[hidden: y]"),
        ("<div style='opacity:0.5;font-size:0.9em'>x</div>", "x"),
        ("<p style='position:absolute;left:-9999px'>x", "[hidden: x]"),
        ("a\u200bb\u202ec\U000e0041d\U000e0141", "abcd"),
        ("<div>" * 600 + "a<p hidden>b", "a\n\n[hidden: b]"),
        ("<div>" * 600 + "a<template>b", "a[hidden: b]"),
        ("<img src=x alt='a cat'><img src=y>", "[image: a cat]"),
        ("<base href='https://other.example/q/'><a href=r>r</a>", "[r](https://other.example/q/r)"),
        ("<p title='a > b'>x</p><p title=it's>y</p>", "x\n\ny"),
        ("</div></p>x<b", "x"),
    ],
)
def test_a_page_becomes_what_a_reader_would_see(html: str, markdown: str) -> None:
    assert convert(html, BASE).markdown == markdown


@pytest.mark.parametrize(
    ("piece", "count"),
    [(each, 400_000) for each in ("<!--", "<a b='", '<a x="" ', "<a ", "</", "<![", "&#9", "<script>")]
    + [
        (each, 8_000)
        for each in (
            "<div>",
            "<td>",
            "<table><th>",
            "<a href=x><p>",
            "<blockquote>x",
            "<a href=x>",
            "<p hidden>x",
            "<b></i>",
        )
    ],
)
def test_reading_a_hostile_page_takes_no_longer_than_its_length(piece: str, count: int) -> None:
    """Where it did, this would not come to its end."""
    convert(piece * count + ">", BASE)


@pytest.mark.parametrize(
    ("body", "content_type", "text", "charset"),
    [
        ("é".encode(), "text/html", "é", "utf-8"),
        ("é".encode("latin-1"), "text/plain", "é", "cp1252"),
        ("“é”".encode("cp1252"), "text/html; charset=ISO-8859-1", "“é”", "cp1252"),
        ("日本①".encode("cp932"), 'text/html; charset="Shift_JIS"', "日本①", "cp932"),
        ("日本".encode("cp932"), "text/plain; charset=Windows-31J", "日本", "cp932"),
        ("朱镕基😀".encode("gb18030"), "text/html; charset=gb2312", "朱镕基😀", "gb18030"),
        ("שלום".encode("iso8859-8"), "text/plain; charset=ISO-8859-8-I", "שלום", "iso8859-8"),
        (b"<meta charset=koi8-r>" + "да".encode("koi8-r"), "text/html", "<meta charset=koi8-r>да", "koi8-r"),
        (b"charset=koi8-r \xc3\xa9", "application/json", "charset=koi8-r é", "utf-8"),
        ("é".encode("utf-8-sig"), "text/html; charset=koi8-r", "é", "utf-8"),
        ("é".encode("utf-16"), "text/plain", "é", "utf-16-le"),
        ("é".encode(), "text/html; charset=utf-7", "é", "utf-8"),
        ("é".encode(), "text/html; charset=rot13", "é", "utf-8"),
        ("é".encode(), "text/html; charset=unicode_escape", "é", "utf-8"),
        ("é".encode(), "text/html; charset=no-such-thing", "é", "utf-8"),
        (b"\xff\xfd", "text/html; charset=utf-8", "\ufffd\ufffd", "utf-8"),
    ],
)
def test_a_text_is_read_in_its_charset_or_the_likeliest(
    body: bytes, content_type: str, text: str, charset: str
) -> None:
    assert decode(body, content_type) == (text, charset)


def test_a_character_that_was_cut_in_two_is_left_out() -> None:
    assert decode(b"caf\xc3", "text/plain", cut=True) == ("caf", "utf-8")
    assert decode(b"caf\xc3", "text/plain") == ("cafÃ", "cp1252")


async def test_each_kind_of_page_is_shown_in_its_way(tmp_path: Path) -> None:
    async with WebServer() as server:
        server.pages |= {
            "/html": page("<title>T</title><p>Hi <a href=/x>x</a>"),
            "/json": jsoned({"a": 1}),
            "/text": page("plain & simple", "text/plain"),
            "/none": page("<!DOCTYPE html><p>sniffed", None),
            "/png": page(PNG, "image/png"),
            "/zip": page(b"PK\x03\x04\0\0", "application/zip"),
            "/lie": page(b"\x7fELF\0\0", "text/html"),
            "/bytes": page("größe: 1\n" + "é" * 600, "binary/octet-stream"),
            "/latin": page("größe: 1\n".encode("latin-1"), "application/octet-stream"),
            "/nothing": page("", "application/octet-stream"),
            "/app": page("<div id=root></div><SCRIPT src=a.js></SCRIPT>"),
            "/gone": page("<p>Not here", "text/html", 404),
            "/long": page("word\n" * 5_000, "text/plain"),
        }
        bench = desk(tmp_path, allow=[f"127.0.0.1:{server.port}"])

        async def fetched(path: str, **more: Any) -> Any:
            return await bench.run("web_fetch", {"url": server.url(path), **more})

        html = await fetched("/html")
        assert html.text == f"200 {server.url('/html')}\nT\n\nHi [x]({server.url('/x')})"
        assert html.meta["content_type"] == "text/html"
        assert (await fetched("/html", raw=True)).text.endswith("<title>T</title><p>Hi <a href=/x>x</a>")
        assert (await fetched("/json")).text.endswith('\n\n{"a": 1}')
        assert (await fetched("/text")).text.endswith("\n\nplain & simple")
        assert (await fetched("/none")).text.endswith("\n\nsniffed")
        image = (await fetched("/png")).content[1]
        assert isinstance(image, ImageBlock) and image.media_type == "image/png"
        assert (await fetched("/zip")).error.reason == (await fetched("/lie")).error.reason == "not_text"
        assert "größe: 1" in (await fetched("/bytes")).text
        assert (await fetched("/latin")).error.reason == "not_text"
        assert (await fetched("/nothing")).text.endswith("\n\n(empty)")
        assert (await fetched("/app")).text.endswith("\n\n(empty: scripts make this page, and none are run)")
        gone = await fetched("/gone")
        assert (gone.ok, gone.text.splitlines()[0], gone.meta["status"]) == (False, f"404 {server.url('/gone')}", 404)
        cut = await fetched("/long", maxTokens=100)
        assert cut.truncated and len(cut.text) < 700
        head = await fetched("/text", method="HEAD")
        assert head.text.splitlines()[0] == f"200 {server.url('/text')}" and "plain" not in head.text.splitlines()
        assert server.got[-1].method == "HEAD"


async def test_a_pdf_is_read_where_that_can_be_done() -> None:
    pypdf = pytest.importorskip("pypdf", reason="needs pypdf: not installed")
    assert pypdf
    async with WebServer() as server:
        server.pages |= {
            "/a.pdf": page(pdf("Hello from a PDF"), "application/pdf"),
            "/b.pdf": page(b"%PDF-1.4 broken", "application/pdf"),
        }
        bench = desk(allow=[f"127.0.0.1:{server.port}"])
        assert "Hello from a PDF" in (await bench.run("web_fetch", {"url": server.url("/a.pdf")})).text
        assert (await bench.run("web_fetch", {"url": server.url("/b.pdf")})).error.reason == "not_text"


async def test_a_pdf_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    async with WebServer() as server:
        server.pages["/a.pdf"] = page(pdf("x"), "application/pdf")
        bench = desk(allow=[f"127.0.0.1:{server.port}"])
        assert (await bench.run("web_fetch", {"url": server.url("/a.pdf")})).error.reason == "not_installed"


@pytest.mark.spec("S3-53")
async def test_a_call_sends_what_it_is_given_and_answers_as_data() -> None:
    async with WebServer() as server:
        server.pages |= {
            "/": jsoned({"ok": [1]}),
            "/bad": page("{", "application/json", 500),
            "/bin": page(b"\0\1", "image/x"),
        }
        bench = desk(allow=[f"127.0.0.1:{server.port}"])
        result = await bench.run(
            "api_call", {"url": server.url(), "method": "PUT", "headers": {"X-A": "b"}, "body": {"n": 1}}
        )
        assert (result.ok, result.value["status"], result.value["body"]) == (True, 200, {"ok": [1]})
        (got,) = server.got
        assert (got.method, json.loads(got.body), got.headers["x-a"], got.headers["content-type"]) == (
            "PUT",
            {"n": 1},
            "b",
            "application/json",
        )
        bad = await bench.run("api_call", {"url": server.url("/bad")})
        assert (bad.ok, bad.value["status"], bad.value["body"]) == (False, 500, "{")
        assert server.got[-1].method == "GET"
        assert "2 bytes" in (await bench.run("api_call", {"url": server.url("/bin")})).value["body"]


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"Host": "other"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"X": "é"}},
        {"headers": {"X": 1}},
        {"headers": {"X-A": "1", "x-a": "2"}},
        {"headers": {f"X-{number}": "" for number in range(51)}},
        {"body": "b"},
        {"method": "TRACE"},
        {"method": "get"},
        {"method": "CONNECT"},
    ],
)
async def test_a_request_that_would_not_mean_one_thing_is_not_sent(more: dict[str, Any]) -> None:
    async with WebServer() as server:
        bench = desk(allow=[f"127.0.0.1:{server.port}"])
        result = await bench.run("api_call", {"url": server.url(), **more})
        assert (result.error.error_class, server.got) == ("validation_error", [])


@pytest.mark.spec("S3-53", "S3-29")
async def test_a_call_is_asked_about_and_a_rule_may_lower_it_by_its_method() -> None:
    async with WebServer() as server:
        server.pages["/"] = jsoned({})
        web = Web(WebTable(allow=[f"127.0.0.1:{server.port}"]), resolve=Names())
        human = FakeHuman(False)
        rule = Rule(decision=Outcome.ALLOW, tool="api_call", arguments={"method": "GET"})
        bench = Bench("/", *factories(CATALOGUE, web), policy=Policy(rules=(rule,)), human=human)
        assert (await bench.run("api_call", {"url": server.url()})).ok
        assert (await bench.run("web_fetch", {"url": server.url()})).ok
        denied = await bench.run("api_call", {"url": server.url(), "method": "DELETE"})
        assert denied.error.error_class == "user_denied"
        assert [(question.tool, question.side_effects) for question in human.questions] == [
            ("api_call", SideEffects.NETWORK)
        ]
        assert [got.method for got in server.got] == ["GET", "GET"]


async def test_in_mode_read_pages_are_read_and_nothing_is_called() -> None:
    async with WebServer() as server:
        server.pages["/"] = page("x", "text/plain")
        bench = desk(allow=[f"127.0.0.1:{server.port}"], mode=Mode.READ)
        assert (await bench.run("web_fetch", {"url": server.url()})).ok
        assert (await bench.run("api_call", {"url": server.url()})).error.error_class == "permission_denied"


# --- searches -----------------------------------------------------------------------------

ROWS = [
    {
        "title": f"Page <b>{n}</b>",
        "url": f"https://{n}.example/",
        "content": "words " * 50,
        "description": "words " * 50,
    }
    for n in range(12)
]


@pytest.mark.spec("S3-53")
@pytest.mark.parametrize(
    ("service", "path", "answer", "header"),
    [
        ("searxng", "/search", {"results": ROWS}, None),
        ("brave", "/res/v1/web/search", {"web": {"results": ROWS}}, ("x-subscription-token", "sk-canary-1234567890")),
        ("tavily", "/search", {"results": ROWS}, ("authorization", "Bearer sk-canary-1234567890")),
    ],
)
async def test_each_service_is_asked_in_its_way(
    service: str, path: str, answer: Any, header: tuple[str, str] | None
) -> None:
    async with WebServer() as server:
        server.pages[path] = jsoned(answer)
        bench = desk(search=service, search_url=server.url(), key="sk-canary-1234567890")
        result = await bench.run("web_search", {"query": "a b&c"})
        (got,) = server.got
        asked = json.loads(got.body)["query"] if service == "tavily" else got.path
        assert asked == "a b&c" or "q=a+b%26c" in asked
        assert header is None or got.headers[header[0]] == header[1]
        assert [row["url"] for row in result.value] == [f"https://{n}.example/" for n in range(10)]
        assert result.value[0]["title"] == "Page 0"
        assert result.text.startswith("1. Page 0\n   https://0.example/\n   words words")
        short = await bench.run("web_search", {"query": "x", "maxTokens": 100})
        assert (len(short.text) <= 450, short.truncated, short.ok) == (True, True, True)
        for tokens in (50, 1):  # one result at least, or it would say that nothing was found
            least = await bench.run("web_search", {"query": "x", "maxTokens": tokens})
            assert (least.ok, least.value[0]["url"]) == (True, "https://0.example/")


@pytest.mark.spec("T43")
@pytest.mark.parametrize("body", ["bad key sk-canary-1234567890", "<html>no</html>", ""])
async def test_a_service_that_refuses_is_one_sentence_without_the_key(body: str) -> None:
    async with WebServer() as server:
        server.pages["/res/v1/web/search"] = page(body, "text/plain", 401)
        bench = desk(search="brave", search_url=server.url(), key="sk-canary-1234567890")
        result = await bench.run("web_search", {"query": "x"})
        assert (result.error.error_class, result.error.reason) == ("execution_error", "web_search")
        assert "sk-canary" not in str(result) + str(bench.recorder.events) + str(bench.recorder.records)


@pytest.mark.parametrize(
    "body", ["<html>", "[]", '{"results": 3}', '{"results": [1, {"title": 3}]}', '{"results": []}']
)
async def test_an_answer_of_another_shape_is_no_crash(body: str) -> None:
    async with WebServer() as server:
        server.pages["/search"] = page(body, "application/json")
        result = await desk(search="searxng", search_url=server.url()).run("web_search", {"query": "x"})
        assert result.ok or result.error.reason == "web_search"


async def test_a_searxng_that_speaks_no_json_says_what_to_set() -> None:
    async with WebServer() as server:
        server.pages["/search"] = page("<html>Forbidden</html>", status=403)
        result = await desk(search="searxng", search_url=server.url()).run("web_search", {"query": "x"})
        assert result.error.reason == "web_search" and "search.formats" in result.text


@pytest.mark.parametrize("fails", ["", "canary of a package", "No results found."])
async def test_without_a_key_a_package_asks_where_it_is_installed(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class DDGS:
        def __init__(self, timeout: int) -> None:
            self.timeout = timeout

        def text(self, query: str, max_results: int) -> list[dict[str, str]]:
            if fails:
                raise RuntimeError(fails)
            return [{"title": query, "href": "https://a.example/", "body": f"<b>{max_results}</b>"}]

    module = types.ModuleType("ddgs")
    module.__spec__ = importlib.machinery.ModuleSpec("ddgs", None)
    module.DDGS = DDGS  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ddgs", module)
    result = await desk(search="ddgs").run("web_search", {"query": "gates"})
    if "canary" in fails:
        assert result.error.reason == "web_search" and "canary" not in str(result)
    elif fails:
        assert (result.value, result.ok) == ([], True)
    else:
        assert result.value == [{"title": "gates", "url": "https://a.example/", "snippet": "10"}]


@pytest.mark.spec("S3-54")
@pytest.mark.parametrize(
    "table", [{}, {"search": "searxng"}, {"search": "brave"}, {"search": "tavily"}, {"search": "ddgs"}]
)
async def test_a_search_that_is_not_configured_says_so(table: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = await desk(**table).run("web_search", {"query": "x"})
    assert (result.error.error_class, result.error.reason) == ("execution_error", "not_configured")


@pytest.mark.parametrize(
    "line",
    [
        'allow = ["http://127.0.0.1"]',
        'allow = ["10.0.0.1/8"]',
        'allow = ["*"]',
        'only = ["10.0.0.0/8"]',
        'search = "altavista"',
        'search_url = "file:///x"',
        'search_url = "http://u:p@x"',
        "max_bytes = 0",
        "timeout = 3",
    ],
)
def test_settings_that_say_nothing_clear_are_refused_with_their_line(line: str, home: Path) -> None:
    (home / "settings.toml").write_text(f"[web]\n{line}\n")
    with pytest.raises(SettingsError) as refused:
        load_user(Home(str(home)))
    assert (refused.value.file, refused.value.line) == (str(home / "settings.toml"), 2)


@pytest.mark.spec("T43")
async def test_what_a_call_is_authorized_with_is_in_no_event_and_no_record(home: Path, tmp_path: Path) -> None:
    secret = "canary7Qm2Xv9Lp4Rt8Zk1"
    async with WebServer() as server:
        server.pages["/"] = jsoned({"ok": True})
        (home / "settings.toml").write_text(f'[web]\nallow = ["127.0.0.1:{server.port}"]\n')
        events: list[Any] = []
        async with Gate(tmp_path, home=home, confirm=FakeHuman(True, True)) as gate:
            gate.runtime.sessions.listen(events.append)
            for headers in ({"Authorization": f"Bearer {secret}"}, {"X-Api-Key": secret}):
                asked = {"url": server.url(), "method": "POST", "headers": headers}
                assert (await gate.call("api_call", asked)).ok
    assert [got.headers.get("authorization") or got.headers.get("x-api-key") for got in server.got] == [
        f"Bearer {secret}",
        secret,
    ]
    assert events and secret not in str(events)
    assert secret not in (home / "audit.jsonl").read_text()


def test_a_long_base_does_not_make_a_page_of_short_links_long() -> None:
    html = f"<base href='http://h.example/{'a' * 2_000}/'>" + "<a href=b>c</a> " * 20_000
    page = convert(html, "http://h.example/")
    assert 0 < page.links < 1_000 and len(page.markdown) < 2_000_000
    assert page.markdown.endswith("c c c")
    far = convert(f"<base href='http://h.example/{'a' * 5_000}/'><a href=b>c</a>", "http://h.example/")
    assert far.markdown == "[c](http://h.example/b)"


@pytest.mark.parametrize(
    "tag",
    [
        "p hidden",
        "p hidden=until-found",
        "p popover",
        "dialog",
        "p style='display:/* shown */none'",
        r"p style='d\69 splay:none'",
        r"p style='display:\6eone'",
        "p style='clip-path: inset(50%)'",
        "p style='transform: translate(1px) scale(0)'",
        "p style='font-size:1px'",
        "p style='font-size: 0.2px'",
        "p style='content-visibility:hidden'",
        "p style='DISPLAY: NONE !important'",
        "p style='display:none/*'",
        "p style='max-height:0px; overflow: hidden'",
        "p style='overflow:hidden;width:0'",
        "p style='margin-left:-9999px'",
        "p style='margin:0;color:transparent'",
    ],
)
def test_what_a_browser_would_not_show_is_marked_however_it_is_said(tag: str) -> None:
    assert convert(f"<{tag}>x</{tag.split()[0]}>", "").markdown == "[hidden: x]"


@pytest.mark.parametrize(
    "tag",
    [
        "p",
        "dialog open",
        "details",
        "p style='font-size:10px'",
        "p style='font-size:.9em'",
        "p style='font-size:11px'",
        "p style='opacity:0.9'",
        "p style='/* display:none */'",
        "p style='transform:scale(0.9)'",
        "p style='left:-9px'",
        "p style='background-color:transparent'",
        "p style='border-color: transparent; stroke-opacity:0'",
        "p style='margin-left:-100px'",
        "p style='overflow:hidden;max-height:0.5em;min-width:0'",
        "p style='height:0'",
        "p style='line-height:0;overflow:hidden'",
    ],
)
def test_what_a_browser_shows_is_not_marked(tag: str) -> None:
    assert convert(f"<{tag}>x</{tag.split()[0]}>", "").markdown == "x"


def test_of_a_page_with_far_too_many_tags_the_beginning_is_read() -> None:
    nested = "<p>first</p>" + "<div>" * 400_000 + "<p>last</p>"
    page = convert(nested, "https://example.com/")
    assert page.markdown.startswith("first\n")
    assert page.markdown.endswith(f"[The rest is omitted: more than {MOST_TOKENS:,} tags and texts.]")


@pytest.mark.parametrize("page", ["<p>x</p>" * 100, "<div>" * 90_000, "x" * 1_000_000])
def test_a_usual_page_is_read_to_its_end(page: str) -> None:
    assert "left out" not in convert(page + "<p>last</p>", "https://example.com/").markdown
