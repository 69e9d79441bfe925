"""`callgate parse`: what a reply asks for, on stdout; what is wrong with it, on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.values import MAX_BYTES, to_json
from tests.kernel.cli.running import callgate
from tests.kernel.protocol.test_toolcalls_parse import CHAT, END, document

GOOD = document(CHAT, END)
SLOPPY = GOOD.replace('"toolCalls"', "toolCalls")


@pytest.mark.spec("S3-08", "S3-10")
@pytest.mark.parametrize(
    ("text", "code", "strict_code"),
    [
        (GOOD, 0, 0),
        (SLOPPY, 0, 2),
        ('{"toolCalls": []}', 0, 0),
        (document(CHAT, {}), 0, 0),
        (document({}), 2, 2),
        ('{"toolCalls": [', 2, 2),
        ("Hello.", 2, 2),
        ("", 2, 2),
        (" " * (MAX_BYTES + 1), 2, 2),
    ],
    ids=range(9),
)
def test_the_exit_code_says_whether_there_is_something_to_run(
    text: str, code: int, strict_code: int, tmp_path: Path
) -> None:
    (tmp_path / "reply.txt").write_text(text)
    ran = callgate("parse", "reply.txt", "--json", cwd=tmp_path)
    assert (ran.code, ran.json, ran.err) == (code, to_json(parse(text)), "")
    assert callgate("parse", "-", "--json", cwd=tmp_path, stdin=text.encode()) == ran
    strict = callgate("parse", "--strict", "--json", "reply.txt", cwd=tmp_path)
    assert (strict.code, strict.json) == (strict_code, to_json(parse(text, strict=True)))


@pytest.mark.spec("S3-03", "S3-07", "S3-15")
def test_calls_go_to_stdout_and_complaints_to_stderr(tmp_path: Path) -> None:
    text = "So:\n" + document({**CHAT, "priority": 3}, {**END, "type": "x\x1b[31m"})
    ran = callgate("parse", "-", cwd=tmp_path, stdin=text.encode())
    assert (ran.code, ran.out) == (0, '"c1"  send_chat  {"content": "Hi"}  priority 3\n')
    assert [line.split(":")[0] for line in ran.err.splitlines()] == ["error", "note", "note"]
    assert "\x1b" not in ran.out + ran.err


def test_what_is_not_utf_8_is_mended_or_refused(tmp_path: Path) -> None:
    data = document(CHAT).encode().replace(b"Hi", b"\xff")
    ran = callgate("parse", "-", "--json", cwd=tmp_path, stdin=data)
    assert (ran.code, ran.json["repaired"]) == (0, True)
    assert ran.json["toolCalls"][0]["parameters"] == {"content": "\ufffd"}
    strict = callgate("parse", "-", "--json", "--strict", cwd=tmp_path, stdin=data)
    assert (strict.code, strict.json["toolCalls"]) == (2, [])


@pytest.mark.parametrize("words", [[], ["a", "b"], ["missing.txt"], ["."]], ids=" ".join)
def test_a_file_that_is_not_there_is_an_error(words: list[str], tmp_path: Path) -> None:
    ran = callgate("parse", *words, cwd=tmp_path)
    assert (ran.code, ran.out, ran.err.split(":")[0]) == (2, "", "error (validation_error)")
