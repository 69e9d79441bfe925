"""The hash of arguments in a line: keyed, so that nobody who has only the log can guess them."""

from __future__ import annotations

import stat
from hashlib import sha256
from pathlib import Path

import pytest

from callgate import Gate, tool
from callgate.audit.keys import keyed_hash, make_key
from callgate.audit.reading import newest_first


@tool(side_effects="none")
async def unlock(pin: str) -> str:
    """Take a short secret."""
    return "open"


async def hash_of_a_call(home: Path, pin: str = "1234") -> str:
    async with Gate(workspace=home.parent, tools=[unlock], home=home) as gate:
        result = await gate.call("unlock", {"pin": pin})
        assert result.ok
    line, _ = next(newest_first(str(home / "audit.jsonl")))
    assert line.call_id == result.call_id and line.args_hash is not None
    return line.args_hash


@pytest.mark.spec("T46")
async def test_a_short_secret_cannot_be_guessed_from_a_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hashes = [await hash_of_a_call(home) for _ in range(2)]
    plain = sha256(b'{"pin":"1234"}').hexdigest()
    assert plain not in (home / "audit.jsonl").read_text()
    assert hashes == [keyed_hash(make_key(str(home / "audit.jsonl")), plain)] * 2, "the same in every process"
    assert await hash_of_a_call(tmp_path / "another") != hashes[0]
    assert await hash_of_a_call(home, "4321") != hashes[0]
    assert stat.S_IMODE((home / "audit.key").stat().st_mode) == 0o600


async def test_where_no_key_can_be_written_calls_without_effects_run_and_are_hashed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "audit.key").mkdir(parents=True)
    home.chmod(0o700)
    assert (await hash_of_a_call(home)).startswith("keyed:")
