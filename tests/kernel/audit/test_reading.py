"""Searching and paging the audit log: what is found, and how little of the files is read for it."""

from __future__ import annotations

import builtins
import random
from pathlib import Path
from typing import Any

import pytest

from callgate.audit import reading
from callgate.audit.log import AuditLog
from callgate.audit.reading import Filter, newest_first, page, search
from callgate.audit.records import CallRecord, encode
from callgate.core.ids import ulid


def _record(number: int, tool: str = "read_file", id: str | None = None, **more: Any) -> CallRecord:
    return CallRecord(
        id=id or f"audit_{ulid()}",
        ts=1_000 + number,
        caller="cli",
        tool=tool,
        decision=more.pop("decision", "allow"),
        call_id=f"tu_{number}",
        session=more.pop("session", "sess_1"),
        cwd="/w",
        args=more.pop("args", "x" * 300),
        **more,
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "audit.jsonl")


def _write(path: str, records: list[CallRecord], max_bytes: int = 64 << 20) -> None:
    log = AuditLog(path, max_bytes=max_bytes, keep=100)
    for record in records:
        log.append(record)
    log.close()


class Reads:
    """Bytes that were read, and lines that were decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self.decoded = 0
        monkeypatch.setattr(reading, "open", self._open, raising=False)
        decode = reading._decode
        monkeypatch.setattr(reading, "_decode", lambda raw: (self._count(), decode(raw))[1])

    def _count(self) -> None:
        self.decoded += 1

    def _open(self, *args: Any) -> Any:
        file = builtins.open(*args)
        counts = self

        class Counting:
            def __enter__(self) -> Counting:
                return self

            def __exit__(self, *exc: object) -> None:
                file.close()

            def fileno(self) -> int:
                return int(file.fileno())

            def seek(self, *args: int) -> int:
                return file.seek(*args)

            def read(self, size: int) -> bytes:
                data = file.read(size)
                counts.bytes += len(data)
                return data

        return Counting()


def test_a_search_decodes_only_lines_in_which_the_value_stands(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(path, [_record(n, "rare" if n % 1_000 == 7 else "read_file") for n in range(5_000)])
    reads = Reads(monkeypatch)
    assert [line.call_id for line, _ in search(path, Filter(tool="rare"), 100)] == [
        f"tu_{n}" for n in range(7, 5_000, 1_000)
    ]
    assert reads.decoded == 5
    assert [line.call_id for line, _ in search(path, Filter(text="RARE"), 2)] == ["tu_3007", "tu_4007"]


def test_a_search_for_a_few_reads_no_further(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(path, [_record(n) for n in range(5_000)])
    reads = Reads(monkeypatch)
    assert len(search(path, Filter(tool="read_file"), 20)) == 20
    assert reads.bytes <= reading._BLOCK


def test_a_search_since_a_moment_ends_there_though_nothing_matches(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(path, [_record(n) for n in range(5_000)])
    reads = Reads(monkeypatch)
    assert search(path, Filter(tool="none", since_ms=1_000 + 4_900), 20) == []
    assert reads.bytes <= reading._BLOCK


_HOUR_MS = 3_600_000
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def _id_at(time_ms: int, number: int) -> str:
    head = ""
    for _ in range(10):
        time_ms, digit = divmod(time_ms, 32)
        head = _DIGITS[digit] + head
    return f"audit_{head}{number:016d}"


def _hourly(count: int) -> list[CallRecord]:
    return [_record(n, id=_id_at(1_700_000_000_000 + n * _HOUR_MS, n)) for n in range(count)]


@pytest.mark.parametrize("max_bytes", [64 << 20, 300_000], ids=["one file", "many files"])
def test_a_page_far_back_reads_a_few_blocks(path: str, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    records = _hourly(20_000)
    _write(path, records, max_bytes)
    reads = Reads(monkeypatch)
    found, before = page(path, Filter(), 3, before=records[5_000].id)
    assert [each.call_id for each in found] == ["tu_4999", "tu_4998", "tu_4997"]
    assert before == records[4_997].id
    assert reads.bytes < 10 * reading._BLOCK


@pytest.mark.parametrize("max_bytes", [64 << 20, 30_000], ids=["one file", "many files"])
@pytest.mark.parametrize("ids", ["times", "no times", "shuffled times"])
def test_pages_give_every_record_once_whatever_the_ids_are(
    path: str, max_bytes: int, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 4_096)
    records = _hourly(300)
    if ids == "no times":
        records = [_record(n, id=f"other_{n}") for n in range(300)]
    elif ids == "shuffled times":
        random.Random(1).shuffle(records)
    _write(path, records, max_bytes)
    seen, before = [], None
    while True:
        found, before = page(path, Filter(), 7, before=before)
        seen += [each.id for each in found]
        if before is None:
            break
    assert seen == [each.id for each in reversed(records)]


def test_a_page_before_an_unknown_record_is_empty(path: str) -> None:
    _write(path, _hourly(50))
    for unknown in ("nothing", _id_at(1_700_000_000_000, 99), "\ud800"):
        assert page(path, Filter(), 5, before=unknown) == ([], None)


@pytest.mark.parametrize("block", [64, 4_096, 256 * 1024])
def test_a_search_finds_what_a_look_at_every_record_finds(
    path: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    monkeypatch.setattr(reading, "_LONGEST_LINE", 10_000)
    chance = random.Random(block)
    tools = ["read_file", 'a"b', "käse", "K", "line\u2028end", "\x7f", "İ", "tool\\", "read"]
    records = [
        _record(
            n,
            chance.choice(tools),
            session=chance.choice(["sess_1", "sess_2"]),
            decision=chance.choice(["allow", "deny"]),
            args=chance.choice(["", "plain", "KÄSE", 'quoted "read"', "x" * 700]),
            error_class=chance.choice([None, "not_found"]),
        )
        for n in range(120)
    ]
    _write(path, records, 8_000)
    with open(path, "ab") as file:
        file.write(b"\n\nno record\n" + b"y" * 30_000 + b"\n" + encode(records[0])[:40] + encode(_record(500)) + b"\n")
    everything = [*newest_first(path)]
    assert len(everything) == 121
    wanted = [Filter(tool=tool) for tool in tools]
    wanted += [Filter(text=text) for text in ("read", "käse", "k", "İ", "i", '"read"', "\ud800", "")]
    wanted += [
        Filter(session="sess_2", decision="deny", error_classes=("not_found",), text="X"),
        Filter(since_ms=1_060),
    ]
    for each in wanted:
        expected = [(line, raw) for line, raw in everything if each.matches(line, raw)]
        if each.since_ms is not None:
            expected = [(line, raw) for line, raw in expected if line.ts >= each.since_ms]
        assert search(path, each, 1_000) == expected[::-1], each
