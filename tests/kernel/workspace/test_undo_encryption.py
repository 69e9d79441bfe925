"""Stored copies are encrypted if a key is set, and the store is readable by its owner only."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.config.undo_store import KEY_FILE, open_history
from callgate.core.errors import ToolError
from callgate.workspace.undo.history import History
from tests.kernel.workspace.command_worlds import BACKENDS, CommandWorld, plant
from tests.kernel.workspace.test_command_undo import sequence
from tests.needs import needs

pytestmark = needs("linux")
SECRET = b"a content that nobody else may read " * 100


@pytest.fixture(params=sorted(BACKENDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandWorld]:
    made = CommandWorld(tmp_path, request.param, key=b"k" * 32)
    if made.problems:
        pytest.skip("; ".join(made.problems))
    yield made
    made.close()


def stored(world: CommandWorld) -> bytes:
    """Everything in the history, except hard links."""
    found = b""
    for path in (world.root.parent / "home/.callgate/undo").rglob("*"):
        if path.is_file() and not path.name.startswith("L"):
            found += path.read_bytes()
    return found


@needs("git")
@pytest.mark.parametrize("seed", range(2))
async def test_encrypted_pre_images_are_restored_exactly(world: CommandWorld, seed: int) -> None:
    await sequence(world, 7_200 + seed)
    assert list((world.root.parent / "home/.callgate/undo/files").rglob("S*"))


async def test_no_copied_content_is_readable(world: CommandWorld) -> None:
    (world.root / "a").write_bytes(SECRET)
    await world.run("echo more >> a")
    world.files("t1", "write_file").write("a", "by a tool")
    world.files("t2", "write_file").write("a", "by a tool again")
    assert SECRET[:30] not in stored(world)
    assert b"by a tool" not in stored(world)
    for call in ("t2", "t1", "c1"):
        await world.undo(call)
    assert (world.root / "a").read_bytes() == SECRET


async def test_a_changed_or_truncated_copy_is_not_restored(world: CommandWorld) -> None:
    for name in "ab":
        (world.root / name).write_bytes(SECRET)
    await world.run("echo more >> a; echo more >> b")
    one, two = sorted((world.root.parent / "home/.callgate/undo/files").rglob("S*"))
    content = bytearray(one.read_bytes())
    content[60] ^= 1
    one.write_bytes(content)
    two.write_bytes(two.read_bytes()[:-10])
    with pytest.raises(ToolError) as refused:
        await world.undo()
    assert (refused.value.reason, sorted((refused.value.details or {})["files"])) == ("not_kept", ["a", "b"])
    assert (world.root / "a").read_bytes() == SECRET + b"more\n"


async def test_another_key_restores_nothing(world: CommandWorld) -> None:
    (world.root / "a").write_bytes(SECRET)
    await world.run("echo more >> a")
    world.history = History(str(world.root.parent / "home/.callgate/undo"), synced=False, key=lambda: b"x" * 32)
    with pytest.raises(ToolError):
        await world.undo()
    assert (world.root / "a").read_bytes() == SECRET + b"more\n"


async def test_only_the_owner_can_read_the_store(world: CommandWorld) -> None:
    plant(world.root, random.Random(1))
    await world.run("rm a b; echo > d/x; mkdir e")
    store = world.root.parent / "home/.callgate/undo"
    for path in (store, *store.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        elif not path.is_symlink() and not path.name.startswith("L"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_key_of_a_home_is_a_secret_of_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_SECRETS_KEY", "a key with enough different characters 123")
    (home / "settings.toml").write_text('[secrets]\nkey_env = "CALLGATE_SECRETS_KEY"\n')
    first = open_history(Home(str(home)), load_user(Home(str(home)))[0])
    again = open_history(Home(str(home)), load_user(Home(str(home)))[0])
    assert first.command_key("one") == again.command_key("one") != first.command_key("two")
    assert (home / KEY_FILE).read_text().startswith("callgate-secret:1:")
    monkeypatch.delenv("CALLGATE_SECRETS_KEY")
    with pytest.raises(OSError, match="CALLGATE_SECRETS_KEY"):
        open_history(Home(str(home)), load_user(Home(str(home)))[0]).command_key("one")


def test_a_home_without_a_key_encrypts_nothing(home: Path) -> None:
    history = open_history(Home(str(home)), load_user(Home(str(home)))[0])
    assert history.command_key("one") is None
    assert not os.path.exists(home / KEY_FILE)


def test_the_bounds_are_settings(home: Path) -> None:
    (home / "settings.toml").write_text(
        '[undo]\nfile_bytes = 10\ncall_bytes = 20\nexclude = ["node_modules"]\nunstorable = "refuse"\n'
        'full_disk = "allow"\n[retention]\nundo_days = 1\nundo_bytes = 30\n'
    )
    bounds = open_history(Home(str(home)), load_user(Home(str(home)))[0]).bounds
    assert (bounds.max_file, bounds.max_call, bounds.max_total, bounds.max_age_s) == (10, 20, 30, 86_400)
    assert (bounds.excluded, bounds.strict, bounds.tolerant) == (("node_modules",), True, True)
