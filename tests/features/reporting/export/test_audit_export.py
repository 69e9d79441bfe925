"""`callgate audit export`: to files, syslog and HTTP, and across a kill at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from callgate.audit import log as audit_log
from callgate.audit.records import line_hash
from callgate.features.reporting.export_formats import OCSF_VERSION
from tests import ocsf
from tests.features.reporting.export.records import record, write
from tests.http_receiver import receiving
from tests.kernel.cli.running import callgate, start
from tests.kernel.sessions.sites import Site

COUNT = 40


@pytest.fixture
def log(ws: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of several files."""
    monkeypatch.setattr(audit_log, "_LOOK_EVERY_S", 0)
    path = home / "audit.jsonl"
    write(str(path), [record(n) for n in range(COUNT)], max_bytes=4096)
    return path


def ids(text: str | bytes) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


def all_ids(log: Path) -> list[str]:
    files = [*sorted(log.parent.glob("audit.0*.jsonl")), log]
    return [each for file in files for each in ids(file.read_bytes())]


def export(ws: Path, *words: str, code: int = 0) -> Any:
    ran = callgate("audit", "export", *words, cwd=ws)
    assert ran.code == code, ran
    return ran


def test_all_files_go_to_stdout_in_each_format(log: Path, ws: Path) -> None:
    assert ids(export(ws).out) == all_ids(log)
    events = [json.loads(line) for line in export(ws, "--format", "ocsf").out.splitlines()]
    schema = ocsf.table(OCSF_VERSION)
    assert [problem for each in events for problem in ocsf.problems(each, schema)] == []
    assert [each["metadata"]["uid"] for each in events] == all_ids(log)
    assert len(export(ws, "--format", "csv").out.splitlines()) == COUNT + 1


def test_calls_that_were_really_made_pass_the_published_schema(ws: Path, home: Path) -> None:
    callgate("call", "read_file", "path=a.txt", cwd=ws)
    callgate("call", "write_file", "path=b.txt", "content=x", cwd=ws)
    callgate("call", "nothing_of_the_kind", cwd=ws)
    callgate("call", "shell", "command=true", "--yes", cwd=ws)
    schema = ocsf.table(OCSF_VERSION)
    lines = export(ws, "--format", "ocsf").out.splitlines()
    assert len(lines) == 4
    assert [problem for line in lines for problem in ocsf.problems(json.loads(line), schema)] == []


def test_only_what_came_since_a_moment_is_exported(log: Path, ws: Path) -> None:
    assert export(ws, "--since", "2999-01-01").out == ""
    assert len(export(ws, "--since", "2020-01-01").out.splitlines()) == COUNT


def test_a_file_is_its_owners_and_is_replaced_without_a_cursor(log: Path, ws: Path) -> None:
    target = ws / "out.jsonl"
    for _ in range(2):
        export(ws, "-o", "out.jsonl")
        assert ids(target.read_bytes()) == all_ids(log)
    assert target.stat().st_mode & 0o777 == 0o600


def test_an_http_sink_gets_each_record_once_and_goes_on_where_it_stopped(log: Path, ws: Path) -> None:
    with receiving() as sink:
        export(ws, "--to", f"{sink.url}/in")
        export(ws, "--to", f"{sink.url}/in")
        write(str(log), [record(n) for n in range(100, 103)])
        export(ws, "--to", f"{sink.url}/in")
        got = [each for request in sink.requests for each in ids(request.body)]
    assert got == all_ids(log)
    assert {each.path for each in sink.requests} == {"/in"}
    assert sink.requests[0].headers["content-type"] == "application/x-ndjson"


def test_a_sink_that_is_busy_is_tried_again_and_loses_nothing(log: Path, ws: Path) -> None:
    with receiving() as sink:
        sink.answers = [(503, {}), (429, {"retry-after": "0"}), (413, {})]
        export(ws, "--to", sink.url)
        taken = sink.requests[3:]
    assert [each for request in taken for each in ids(request.body)] == all_ids(log)


def write_with_large_ones(log: Path, size: int) -> list[str]:
    """Records after those of `log`: every third is as long as that."""
    more = [record(COUNT + n, args="a" * (size if n % 3 == 1 else 10), cwd="/" + "w" * 300) for n in range(9)]
    write(str(log), more)
    return [each.id for each in more if len(each.args) == size]


@pytest.mark.parametrize("format", ["jsonl", "ocsf", "csv"])
def test_a_record_that_is_too_large_for_a_sink_is_shortened_and_the_others_go_on(
    log: Path, ws: Path, format: str
) -> None:
    large = write_with_large_ones(log, 50_000)
    with receiving() as sink:
        sink.largest = 4000
        ran = export(ws, "--to", sink.url, "--format", format)
        taken = b"".join(each.body for each in sink.requests if len(each.body) <= sink.largest).decode()
    assert len(large) == 3
    assert "shortened 3" in ran.err
    assert all(each in ran.err for each in large)
    for id in all_ids(log):
        assert taken.count(id) == 1, id
    raw = {json.loads(line)["id"]: line for line in log.read_bytes().splitlines()}
    assert all(line_hash(raw[id]) in taken for id in large)


def test_a_sink_that_refuses_ends_it_and_keeps_the_place(log: Path, ws: Path) -> None:
    with receiving() as sink:
        sink.answers = [(200, {}), (401, {})]
        assert "401" in export(ws, "--to", sink.url, code=1).err
        assert len(sink.requests) == 2
        export(ws, "--to", sink.url)
        taken = [sink.requests[0], *sink.requests[2:]]
    assert [each for request in taken for each in ids(request.body)] == all_ids(log)


def test_a_sink_that_is_away_ends_a_bounded_run(log: Path, ws: Path) -> None:
    ran = export(ws, "--to", "http://127.0.0.1:9/", "--retry", "0", code=1)
    assert "Nothing is lost" in ran.err


def test_a_token_is_sent_and_never_over_a_connection_that_others_can_read(log: Path, ws: Path) -> None:
    with receiving() as sink:
        ran = callgate("audit", "export", "--to", sink.url, "--token-env", "SINK", cwd=ws, env={"SINK": "t0ken"})
        assert ran.code == 0
        assert sink.requests[0].headers["authorization"] == "Bearer t0ken"
    words = ("audit", "export", "--to", "http://sink.example/", "--token-env", "SINK")
    assert callgate(*words, cwd=ws, env={"SINK": "t0ken"}).code == 2
    assert callgate(*words, cwd=ws).code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--to", "ftp://x"),
        ("--to", "http://"),
        ("--to", "https://user:secret@host/"),
        ("--to", "syslog+carrier://x"),
        ("--to", "syslog+tcp://"),
        ("--cursor", "c.json"),
        ("--since", "yesterday"),
        ("extra",),
        ("--format", "xml"),
        ("--retry", "-1"),
    ],
)
def test_wrong_use_is_a_sentence(words: tuple[str, ...], ws: Path) -> None:
    ran = callgate("audit", "export", *words, cwd=ws)
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_a_cursor_of_another_log_is_refused(log: Path, ws: Path) -> None:
    with receiving() as sink:
        export(ws, "--to", sink.url)
        for each in log.parent.glob("audit*"):
            each.unlink()
        write(str(log), [record(1)])
        assert "another log" in export(ws, "--to", sink.url, code=1).err


def test_the_log_itself_is_no_target(log: Path, ws: Path) -> None:
    before = log.read_bytes()
    (ws / "link").symlink_to(log)
    for target in (str(log), "link", str(log.parent / "new")):
        export(ws, "-o", target, code=2)
    assert log.read_bytes() == before


def wait_for_lines(path: Path, count: int) -> None:
    until = time.monotonic() + 30
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until
        threading.Event().wait(0.01)


def test_a_followed_file_has_every_record_once_though_the_export_is_killed(log: Path, ws: Path) -> None:
    target = ws / "out.jsonl"
    for kill in range(4):
        process = start("audit", "export", "-f", "-o", "out.jsonl", cwd=ws)
        write(str(log), [record(1000 * kill + n) for n in range(30)], max_bytes=4096)
        wait_for_lines(target, len(all_ids(log)) - (kill * 7) % 20)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    target.write_bytes(target.read_bytes() + b'{"id":"torn')  # as a kill in a write leaves it
    process = start("audit", "export", "-f", "-o", "out.jsonl", cwd=ws)
    write(str(log), [record(1)])
    wait_for_lines(target, len(all_ids(log)) + 1)
    process.terminate()
    process.communicate()
    lines = [line for line in target.read_bytes().splitlines() if line != b'{"id":"torn']
    assert ids(b"\n".join(lines)) == all_ids(log)


def test_lines_that_a_killed_export_wrote_and_did_not_remember_are_not_repeated(log: Path, ws: Path) -> None:
    export(ws, "-o", "out.jsonl", "--cursor", "c.json")
    before = (ws / "c.json").read_bytes()
    write(str(log), [record(n) for n in range(100, 120)])
    export(ws, "-o", "out.jsonl", "--cursor", "c.json")
    whole = (ws / "out.jsonl").read_bytes()
    for cut in (len(whole), len(whole) - 5, len(whole) - 1500):
        (ws / "c.json").write_bytes(before)
        os.truncate(ws / "out.jsonl", cut)
        export(ws, "-o", "out.jsonl", "--cursor", "c.json")
        assert (ws / "out.jsonl").read_bytes() == whole


def test_two_exports_do_not_share_a_cursor(log: Path, ws: Path) -> None:
    process = start("audit", "export", "-f", "-o", "out.jsonl", cwd=ws)
    wait_for_lines(ws / "out.jsonl", COUNT)
    assert export(ws, "-f", "-o", "out.jsonl", code=1).err.startswith("error")
    process.kill()
    process.communicate()


SYSLOG = re.compile(rb"<(\d+)>1 (\S+Z) \S+ callgate \d+ call - (\{.*\})\Z")


def check_syslog(messages: list[bytes], log: Path) -> None:
    found = [SYSLOG.fullmatch(each) for each in messages]
    assert None not in found
    assert [json.loads(each[3])["id"] for each in found if each] == all_ids(log)
    assert {each[1] for each in found if each} == {b"110"}


@pytest.mark.parametrize("kind", ["unix", "udp"])
def test_syslog_by_datagrams(kind: str, log: Path, ws: Path, tmp_path: Path) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0))
        server.settimeout(30)
        if kind == "unix":
            target = f"syslog+unix://{tmp_path / 's'}"
        else:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            target = f"syslog+udp://127.0.0.1:{server.getsockname()[1]}"
        process = start("audit", "export", "--to", target, cwd=ws)
        messages = [server.recv(65536) for _ in range(COUNT)]
        process.communicate()
        assert process.returncode == 0
    check_syslog(messages, log)


def test_a_record_that_is_too_large_for_a_datagram_is_shortened(log: Path, ws: Path) -> None:
    large = write_with_large_ones(log, 70_000)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        ran = export(ws, "--to", f"syslog+udp://127.0.0.1:{server.getsockname()[1]}")
        messages = [server.recv(65536) for _ in range(COUNT + 9)]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(65536)
    assert f"shortened {len(large)}" in ran.err
    check_syslog(messages, log)


def test_syslog_by_tcp_counts_octets(log: Path, ws: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = start("audit", "export", "--to", f"syslog+tcp://127.0.0.1:{server.getsockname()[1]}", cwd=ws)
        server.settimeout(30)
        taken, _ = server.accept()
        with taken, taken.makefile("rb") as stream:
            data = stream.read()
        process.communicate()
    messages = []
    while data:
        length, _, data = data.partition(b" ")
        messages.append(data[: int(length)])
        data = data[int(length) :]
    check_syslog(messages, log)


async def test_the_logs_of_homes_that_share_a_store_are_exported_together(tmp_path: Path) -> None:
    site = Site(tmp_path)
    a, b = site.homes
    for home in (a, b):
        async with site.gate(home) as gate:
            for n in range(3):
                assert (await gate.call("mark", {"n": n})).ok
    env = {"CALLGATE_HOME": str(a)}
    alone = callgate("audit", "export", cwd=site.ws, env=env)
    assert len(ids(alone.out)) == 3
    assert (b / "home.id").read_text().strip() in alone.err
    both = callgate("audit", "export", "--format", "ocsf", "--home", str(a), "--home", str(b), cwd=site.ws, env=env)
    events = [json.loads(line) for line in both.out.splitlines()]
    assert {each["metadata"]["tenant_uid"] for each in events} == {
        (home / "home.id").read_text().strip() for home in (a, b)
    }
    assert len({each["metadata"]["uid"] for each in events}) == 6
