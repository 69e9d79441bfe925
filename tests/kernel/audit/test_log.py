"""The audit log: what was acknowledged is there, once, readable, and in an unbroken chain."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.audit.log import AuditLog
from callgate.audit.reading import Filter, Follower, newest_first, search, tail
from callgate.audit.records import CallRecord, all_segments, encode, encode_into
from callgate.audit.verify import verify
from callgate.redaction.data import summarize
from tests.function_calls import count_function_calls


def record(n: int = 0, **more: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "id": f"audit_{n}",
        "ts": 1_000 + n,
        "call_id": f"tu_{n}",
        "session": "sess_1",
        "caller": "cli",
        "tool": "add",
        "decision": "allow",
        "cwd": "/ws",
        "args": f'{{"n":{n}}}',
        "result": "ok",
    }
    return CallRecord(**{**fields, **more})


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "home/audit.jsonl")


def ids(path: str) -> list[str]:
    return [line.call_id for line, _ in newest_first(path)][::-1]


def test_the_file_and_its_directory_are_the_owners_alone(path: str) -> None:
    AuditLog(path).append(record())
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


@pytest.mark.spec("T42")
@pytest.mark.parametrize(
    "field", ["tool", "cwd", "result", "reason", "external_id", "policy", "answered_by", "session"]
)
@pytest.mark.parametrize(
    "text", ['\n{"forged":true}', "\r\n", "\x00", "\x85", "\u2028", "\u2029", "\x1b[2J", "\x7f", "\ud800"]
)
def test_no_text_anywhere_makes_a_second_line(path: str, field: str, text: str) -> None:
    log = AuditLog(path)
    log.append(record(1, **{field: text}))
    log.append(record(2, args=summarize({"a": text, text: 1})))
    data = Path(path).read_bytes()
    assert len(data.decode().splitlines()) == 2
    assert not any(byte in data for byte in (b"\x00", b"\x1b", b"\x7f", b"\xe2\x80\xa8", b"\xc2\x85"))
    assert verify(path).ok
    assert ids(path) == ["tu_1", "tu_2"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()) | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=20,
    )
)
def test_any_arguments_leave_one_readable_line(tmp_path_factory: Any, value: Any) -> None:
    path = str(tmp_path_factory.mktemp("any") / "audit.jsonl")
    AuditLog(path).append(record(1, args=summarize(value), result=repr(value)))
    assert len(tail(path, 5)) == 1
    assert verify(path).ok


def test_each_process_keeps_a_chain_and_a_later_one_names_the_last_line(path: str) -> None:
    for start in (0, 10):
        log = AuditLog(path)
        for n in range(3):
            log.append(record(start + n))
        log.close()
    assert ids(path) == ["tu_0", "tu_1", "tu_2", "tu_10", "tu_11", "tu_12"]
    found = verify(path)
    assert (found.ok, found.records, found.chains) == (True, 6, 2)


def test_a_forked_child_begins_a_chain_of_its_own(path: str) -> None:
    log = AuditLog(path)
    log.append(record(1))
    child = os.fork()
    if child == 0:
        log.append(record(2))
        os._exit(0)
    os.waitpid(child, 0)
    log.append(record(3))
    found = verify(path)
    assert (found.ok, found.records, found.chains) == (True, 3, 2)


@pytest.mark.spec("T46")
@pytest.mark.parametrize("torn", [b'{"id":"audit_9","ts', b"x", b"\x00" * 5000, b'{"id":"' + b"y" * 3_000_000])
def test_a_torn_end_is_cut_off_before_anything_is_added(path: str, torn: bytes) -> None:
    log = AuditLog(path)
    log.append(record(1))
    log.close()
    with open(path, "ab") as file:
        file.write(torn)
    again = AuditLog(path)
    again.append(record(2))
    assert ids(path) == ["tu_1", "tu_2"]
    found = verify(path)
    assert (found.ok, found.unreadable) == (True, ())


@pytest.mark.spec("T46")
def test_a_torn_end_beside_a_living_writer_is_closed_and_reported(path: str) -> None:
    living = AuditLog(path)
    living.append(record(1))
    with open(path, "ab") as file:
        file.write(b'{"torn')
    second = AuditLog(path)
    second.append(record(2))
    living.append(record(3))
    assert ids(path) == ["tu_1", "tu_2", "tu_3"]
    found = verify(path)
    assert (found.ok, [(each.line, each.what) for each in found.unreadable]) == (True, [(2, "is not a record")])


def test_rotation_bounds_the_size_and_keeps_the_chain(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.audit.log._LOOK_EVERY_S", -1)
    log = AuditLog(path, max_bytes=5_000, keep=3)
    for n in range(200):
        log.append(record(n))
    segments = all_segments(path)
    assert len(segments) == 4
    assert sum(os.path.getsize(each) for each in segments) < 4 * 6_000
    found = verify(path)
    assert (found.problems, found.ok) == ((), True)
    kept = ids(path)
    assert kept == [f"tu_{n}" for n in range(200 - len(kept), 200)]
    other = AuditLog(path)
    other.append(record(999))
    assert verify(path).ok


def test_without_dropping_nothing_is_lost_to_rotation(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.audit.log._LOOK_EVERY_S", -1)
    first, second = AuditLog(path, max_bytes=3_000, keep=1000), AuditLog(path, max_bytes=3_000, keep=1000)
    for n in range(100):
        (first if n % 3 else second).append(record(n))
    assert sorted(ids(path), key=lambda i: int(i[3:])) == [f"tu_{n}" for n in range(100)]
    assert verify(path).ok


WRITER = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[3])
    from callgate.audit import log as module
    from tests.kernel.audit.test_log import record
    module._LOOK_EVERY_S = 0.001
    log = module.AuditLog(sys.argv[1], max_bytes=20_000, keep=100_000)
    start = int(sys.argv[2])
    for n in range(start, start + int(sys.argv[4])):
        log.append(record(n, result="r" * (n % 300)))
        sys.stdout.write(f"tu_{n}\\n"); sys.stdout.flush()
    """
)
PROJECT = str(Path(__file__).parents[3])


def writer(path: str, start: int, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(start), PROJECT, str(count)], stdout=subprocess.PIPE
    )


def test_several_processes_append_at_once_and_nothing_is_lost(path: str) -> None:
    writers = [writer(path, start, 300) for start in (0, 1000, 2000)]
    said = [each for process in writers for each in process.communicate(timeout=60)[0].decode().split()]
    assert len(said) == 900
    assert sorted(ids(path)) == sorted(said)
    found = verify(path)
    assert (found.problems, found.unreadable) == ((), ())


def test_a_chain_that_begins_long_after_it_was_opened_names_a_line_that_is_near(path: str) -> None:
    busy = AuditLog(path, max_bytes=4096, keep=100)
    busy.append(record(-1))
    early = AuditLog(path, max_bytes=4096)
    early.ensure_open()
    for n in range(100):
        busy._looked = 0.0
        busy.append(record(n, result="r" * 300))
    early._looked = 0.0
    early.append(record(1000))
    found = verify(path)
    assert found.segments > 3
    assert (found.problems, found.unreadable) == ((), ())


def kill_loop(path: str, kills: int, first: int = 0) -> None:
    """What a writer acknowledged before it was killed is in the log, once, and readable."""
    acknowledged: list[str] = []
    for round in range(first, first + kills):
        process = writer(path, round * 1_000_000, 1_000_000)
        lines = []
        assert process.stdout is not None
        for _ in range(1 + round * 7 % 60):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.stdout.close()
        process.wait()
        said = (b"".join(lines) + rest).decode()
        acknowledged += said[: said.rfind("\n") + 1].split()
    log = AuditLog(path)
    log.append(record(-1))
    found = ids(path)
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    result = verify(path)
    assert (result.problems, result.unreadable) == ((), ())


@pytest.mark.spec("T46")
def test_nothing_acknowledged_is_lost_to_kill_9(path: str) -> None:
    kill_loop(path, 6)


@pytest.mark.soak
@pytest.mark.spec("T46")
@pytest.mark.parametrize("first", range(0, 600, 150))
def test_nothing_acknowledged_is_lost_to_many_kill_9(path: str, first: int) -> None:
    kill_loop(path, 150, first)


def test_a_full_disk_loses_nothing_and_is_recovered_from(path: str) -> None:
    """A file size limit stands in for the disk: a write is cut short, the next one fails."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            log = AuditLog(path)
            log.append(record(1))
            limit = os.path.getsize(path) + 100
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            for _ in range(2):
                try:
                    log.append(record(2))
                    os._exit(1)
                except OSError as error:
                    assert error.errno == errno.EFBIG
                try:
                    log.ensure_open()
                    os._exit(2)
                except OSError:
                    pass
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            log.ensure_open()
            log.append(record(3))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ids(path) == ["tu_1", "tu_3"]
    found = verify(path)
    assert (found.ok, len(found.unreadable)) == (True, 1)


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = AuditLog(str(tmp_path / "file/audit.jsonl"))
    with pytest.raises(OSError):
        log.ensure_open()
    with pytest.raises(OSError):
        log.append(record())


def edit(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"ok"', b'"no"'), *lines[3:]]


TAMPERING = {
    "edited": (edit, 4),
    "deleted": (lambda lines: lines[:2] + lines[3:], 3),
    "duplicated": (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "inserted": (
        lambda lines: [*lines[:3], lines[2].replace(b'"n":3', b'"n":4').replace(b"tu_2", b"tu_x"), *lines[3:]],
        4,
    ),
    "first gone": (lambda lines: lines[1:], 1),
    "end of a chain gone": (lambda lines: lines[:3] + lines[5:], 4),
    "garbled": (lambda lines: [*lines[:2], b"\x00" * 50, *lines[3:]], 4),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_tampering_is_found_at_its_line(path: str, kind: str) -> None:
    for start in (0, 10):
        log = AuditLog(path)
        for n in range(5):
            log.append(record(start + n))
        log.close()
    assert verify(path).ok
    change, line = TAMPERING[kind]
    Path(path).write_bytes(b"\n".join(change(Path(path).read_bytes().splitlines())) + b"\n")
    found = verify(path)
    assert not found.ok
    assert (found.problems[0].file, found.problems[0].line) == (path, line)


def test_search_finds_by_every_field_newest_last(path: str) -> None:
    log = AuditLog(path)
    for n in range(10):
        log.append(
            record(
                n,
                tool="add" if n % 2 else "sub",
                decision="deny" if n > 6 else "allow",
                error_class="timeout" if n == 3 else None,
                session=f"s{n % 3}",
                result=f"Result {n}",
            )
        )

    def found(limit: int = 100, **wanted: Any) -> list[str]:
        return [line.call_id for line, _ in search(path, Filter(**wanted), limit)]

    assert found(tool="sub") == ["tu_0", "tu_2", "tu_4", "tu_6", "tu_8"]
    assert found(decision="deny") == ["tu_7", "tu_8", "tu_9"]
    assert found(error_classes=("timeout",)) == ["tu_3"]
    assert found(session="s0", tool="add") == ["tu_3", "tu_9"]
    assert found(text="RESULT 5") == ["tu_5"]
    assert found(since_ms=1_008) == ["tu_8", "tu_9"]
    assert found(limit=2) == ["tu_8", "tu_9"]
    assert found(text="nothing") == []
    assert tail(str(path) + ".none", 3) == []


def test_a_follower_sees_what_is_added_also_across_a_rotation(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.audit.log._LOOK_EVERY_S", -1)
    log = AuditLog(path, max_bytes=2_000, keep=100)
    log.append(record(0))
    follower = Follower(path)
    seen = []
    for n in range(1, 30):
        log.append(record(n))
        if n % 4 == 0:
            seen += [line.call_id for line, _ in follower.read()]
    seen += [line.call_id for line, _ in follower.read()]
    assert seen == [f"tu_{n}" for n in range(1, 30)]
    assert follower.read() == []


def test_what_was_let_through_is_written_down_although_the_disk_is_full(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve is spent on it, and the next call with effects is refused."""
    log = AuditLog(path)
    log.ensure_open()
    reserve = path.removesuffix(".jsonl") + ".reserve"
    assert os.path.getsize(reserve) > 0
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if os.path.exists(reserve):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("callgate.audit.log.os.write", write)
    log.append(record(1))
    assert ids(path) == ["tu_1"]
    assert not os.path.exists(reserve)
    with pytest.raises(OSError):
        monkeypatch.setattr(
            "callgate.audit.log.os.write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
        )
        log.ensure_open()


def test_a_process_that_writes_one_line_rotates_too(path: str) -> None:
    for n in range(6):
        log = AuditLog(path, max_bytes=300, keep=100)
        log.append(record(n))
        log.close()
    assert len(all_segments(path)) > 2
    assert sorted(ids(path)) == [f"tu_{n}" for n in range(6)]
    assert verify(path).ok


def test_a_line_without_end_does_not_stop_the_reading(path: str) -> None:
    AuditLog(path).append(record(1))
    with open(path, "ab") as file:
        file.write(b"\0" * 5_000_000)
    assert [line.call_id for line, _ in tail(path, 5)] == ["tu_1"]


@given(
    st.lists(st.text(st.characters() | st.sampled_from("\x7f\x85\u2028\ud800"), max_size=60), min_size=1, max_size=4)
)
def test_a_line_in_the_memory_of_the_last_is_the_same_as_in_memory_of_its_own(texts: list[str]) -> None:
    line = bytearray()
    for text in texts:
        each = record(args=text, result=text * 3)
        encode_into(each, line)
        assert bytes(line) == encode(each)


def test_a_line_is_appended_in_few_function_calls(path: str) -> None:
    log, one = AuditLog(path), record()
    log._looked = float("inf")  # it need not look whether the file was closed by another
    assert count_function_calls(lambda: log.append(one)) <= 13
