"""A checkout of random sequences of commands has the contents, modes and links of that moment."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from callgate.workspace.undo import checkout
from tests.kernel.workspace.command_worlds import BACKENDS, CommandWorld, plant, script
from tests.needs import needs

pytestmark = needs("linux", "git")
Seen = dict[bytes, tuple[int, int, bytes | None]]


def seen(root: Path) -> Seen:
    """Return kinds, modes and contents, without pipes and sockets that a checkout may leave out."""
    found: Seen = {}
    top = os.fsencode(root)
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            path = os.path.join(directory, name)
            facts = os.lstat(path)
            content: bytes | None = None
            if stat.S_ISREG(facts.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(facts.st_mode):
                content = os.readlink(path)
            elif not stat.S_ISDIR(facts.st_mode):
                continue
            mode = stat.S_IMODE(facts.st_mode) & 0o777
            found[path[len(top) + 1 :]] = (stat.S_IFMT(facts.st_mode), mode, content)
    return found


async def sequence(base: Path, seed: int) -> None:
    world = CommandWorld(base, sorted(BACKENDS)[0])
    if world.problems:
        pytest.skip("; ".join(world.problems))
    try:
        choose = random.Random(seed)
        plant(world.root, choose)
        states = [seen(world.root)]
        for number in range(4):
            await world.run(script(choose, choose.randrange(1, 7)), f"c{number}")
            states.append(seen(world.root))
        changes = world.history.of_session("s").changes
        for number, state in enumerate(states):
            later = [each for each in changes if int(each.origin.call[1:]) >= number]
            target = base / f"out{number}"
            written = checkout.write(world.history, later, str(world.root), str(target))
            got = seen(target)
            different = {path for path in state.keys() | got.keys() if state.get(path) != got.get(path)}
            assert (different, written.missing) == (set(), []), f"seed {seed}, before c{number}"
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(8))
async def test_a_random_sequence_is_written_as_it_was(tmp_path: Path, seed: int) -> None:
    await sequence(tmp_path, seed)
