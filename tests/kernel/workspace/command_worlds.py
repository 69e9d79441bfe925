"""A workspace in which sandboxed commands run, whose changes are stored and undone."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callgate.core.commands import Command, Exit, Preimages, Running, Stream
from callgate.core.content import TextBlock
from callgate.core.tools import ToolContext
from callgate.sandbox import profiles
from callgate.sandbox.machines import look_now
from callgate.sandbox.plans import choose
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.sandbox.profiles import SandboxPaths
from callgate.tools.undo import Undo
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.command_changes import ChangeSet
from callgate.workspace.undo.history import Bounds, History
from callgate.workspace.undo.records import Origin

BACKENDS = {
    "namespaces": {"namespaces", "seccomp"},
    "supervisor": {"landlock", "seccomp", "supervisor"},
}
EARLIER, LATER = "01" + "A" * 24, "01" + "B" * 24
"""Ids of turns, in the order of their times."""
Seen = dict[bytes, tuple[Any, ...]]


class CommandWorld:
    def __init__(
        self,
        base: Path,
        backend: str,
        bounds: Bounds = Bounds(),  # noqa: B008  # frozen
        hidden: tuple[str, ...] = (),
        synced: bool = False,
        key: bytes | None = None,
    ) -> None:
        self.root = base / "ws"
        home = base / "home"
        for path in (self.root, home, home / ".callgate"):
            path.mkdir(exist_ok=True)
        places = SandboxPaths(
            workspace=str(self.root),
            home=str(home),
            callgate_home=str(home / ".callgate"),
            hidden=tuple(str(self.root / name) for name in hidden),
        )
        chosen = [each for each in look_now() if each.name in BACKENDS[backend]]
        self.problems = [each.problem for each in chosen if each.problem]
        if not self.problems:
            self.plan = choose(profiles.workspace(places), chosen)
        self.history = History(str(home / ".callgate" / "undo"), bounds, synced=synced, key=lambda: key)
        self.broker = BrokerProcess()
        self._number = 0

    def close(self) -> None:
        self.broker.close()

    def origin(self, call: str, tool: str = "shell", turn: str = LATER, session: str = "s") -> Origin:
        return Origin(session=session, call=call, tool=tool, workspace=os.fsencode(self.root), turn=turn)

    async def run(
        self, script: str, call: str = "c1", turn: str = LATER, session: str = "s"
    ) -> tuple[Exit, ChangeSet, str]:
        """Run a script as one call, and store its changes."""
        origin = self.origin(call, turn=turn, session=session)
        directory = self.history.begin_command(origin)
        written: list[bytes] = []
        running = await self.start(script, directory, lambda stream, data: written.append(data))
        ended = await running.wait()
        found = self.history.settle(directory, origin)
        return ended, found, b"".join(written).decode(errors="replace")

    async def start(self, script: str, directory: str, heard: Callable[[Stream, bytes], None]) -> Running:
        bounds = self.history.bounds
        command = Command(
            argv=("/usr/bin/timeout", "20", "/bin/bash", "-c", script),
            cwd=str(self.root),
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": "/tmp",
                "GIT_AUTHOR_NAME": "a",
                "GIT_AUTHOR_EMAIL": "a@b",
                "GIT_COMMITTER_NAME": "a",
                "GIT_COMMITTER_EMAIL": "a@b",
            },
            preimages=Preimages(
                directory=directory,
                roots=(str(self.root),),
                max_file=bounds.limit,
                max_total=bounds.max_call,
                key=self.history.command_key(os.path.basename(directory)),
                excluded=bounds.excluded,
                strict=bounds.strict,
                tolerant=bounds.tolerant,
            ),
        )
        return await BrokerLauncher(self.broker, self.plan).start(command, heard)

    def files(self, call: str, tool: str = "undo") -> WorkspaceFileAPI:
        changes = self.history.of(self.origin(call, tool))
        return WorkspaceFileAPI(str(self.root), guard=lambda real, access: None, changes=changes, synced=False)

    async def undo(self, call: str = "c1", by: str | None = None, **more: Any) -> str:
        self._number += 1
        name = by or f"undo{self._number}"
        context = ToolContext(
            session_id="mine",
            turn_id=None,
            tool_use_id="t",
            workspace_path=str(self.root),
            open_files=lambda: self.files(name),
            publish=lambda event_type, payload: None,
        )
        input = more if "session" in more else {"call_id": call, **more}
        output = await Undo(self.history).execute(input, context)
        (block,) = output.content
        assert isinstance(block, TextBlock)
        return block.text

    def seen(self) -> Seen:
        """Everything of the workspace except times and owners."""
        found: Seen = {}
        inodes: dict[tuple[int, int], list[bytes]] = {}
        root = os.fsencode(self.root)
        for directory, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = os.path.join(directory, name)
                inside = path[len(root) + 1 :]
                facts = os.lstat(path)
                mode = stat.S_IMODE(facts.st_mode)
                kind = stat.S_IFMT(facts.st_mode)
                content: bytes | None = None
                if stat.S_ISREG(facts.st_mode):
                    with open(path, "rb") as file:
                        content = file.read()
                    inodes.setdefault((facts.st_dev, facts.st_ino), []).append(inside)
                elif stat.S_ISLNK(facts.st_mode):
                    content = os.readlink(path)
                attributes = {
                    key: os.getxattr(path, key, follow_symlinks=False)
                    for key in os.listxattr(path, follow_symlinks=False)
                }
                found[inside] = (kind, mode, content, tuple(sorted(attributes.items())))
        for names in inodes.values():
            for name in names:
                found[name] += (tuple(sorted(names)),)
        return found


_NAMES = ("a", "b", "c", "d", "e e", "\\xfff", "sub/a", "sub/b", "sub/deep/x", "n/1", "d/x", "d/y")


def plant(root: Path, choose: random.Random) -> None:
    """Fill a workspace."""
    for path in ("sub/deep", "d", "n/m/o", "empty"):
        (root / path).mkdir(parents=True, exist_ok=True)
    for path in ("a", "b", "sub/a", "sub/deep/x", "d/x", "d/y", "n/1", "n/m/o/2", "big"):
        size = 200_000 if path == "big" else choose.randrange(0, 60)
        (root / path).write_bytes(bytes(choose.randrange(256) for _ in range(size % 4096)) * (1 + size // 4096))
    os.link(root / "a", root / "sub" / "hard")
    os.link(root / "d/x", root / "d" / "hard")
    (root / "link").symlink_to("sub/a")
    (root / "dangling").symlink_to("nowhere")
    os.chmod(root / "sub" / "a", 0o600)
    os.chmod(root / "d" / "y", 0o755)
    os.mkfifo(root / "n" / "pipe")
    (root / os.fsdecode(b"\xff\xfe")).write_text("not text")


def script(choose: random.Random, length: int) -> str:
    """Return a script of random steps. Steps may fail."""
    lines = ["shopt -s nullglob; exec 2>/dev/null; set +e"]
    for _ in range(length):
        lines.append(_step(choose))
    return "\n".join(lines)


_PLACES = (
    "a", "b", "c", "d", "e", "sub", "n", "empty", "sub/a", "sub/b", "sub/deep", "sub/hard", "d/x",
    "d/y", "d/hard", "d/new", "n/1", "n/m", "n/m/o", "link", "dangling", "big", "f/g",
    "f", "$'\\xff\\xfe'", "new", "sub/deep/x",
)  # fmt: skip


def _step(choose: random.Random) -> str:
    x, y, z = (choose.choice(_PLACES) for _ in range(3))
    number = choose.randrange(10_000)
    return choose.choice(
        (
            f"echo {number} > {x}",
            f"echo {number} >> {x}",
            f"echo {number} > {x}; echo {number} > {y}",
            f"rm -rf {x}",
            f"rm -f {x}",
            f"rmdir {x}",
            f"mkdir -p {x}",
            f"mkdir {x}",
            f"mv -T {x} {y}",
            f"mv {x} {y}",
            f"mv -f {x} {y}; mv -f {y} {z}",
            f"mv -T {x} tmp{number}; mv -T {y} {x}; mv -T tmp{number} {y}",
            f"ln -f {x} {y}",
            f"ln {x} {y}",
            f"ln -sfn {x} {y}",
            f"chmod {choose.choice(('700', '644', '600', '755', '000', '555', 'u-w', 'a+x'))} {x}",
            f"chmod -R u+rwX,go={choose.choice(('', 'r', 'rX'))} {x}",
            f"sed -i s/[0-9]/x{number}/ {x}",
            f"cp -a {x} {y}",
            f"cp -r {x} {y}",
            f"cp {x} {y}",
            f"dd if=/dev/zero of={x} bs=1 seek={number} count=3 conv=notrunc",
            f"truncate -s {number} {x}",
            f"touch {x} {y}",
            f"exec 5<{x}; echo {number} > /dev/fd/5; exec 5<&-",
            f"exec 6<>{x}; rm -f {x}; echo {number} >&6; exec 6<&-",
            f"exec 7<{x}; rm -f {x}; echo {number} > /proc/self/fd/7; exec 7<&-",
            f"mkfifo p{number}; [ -d {z} ] && mv p{number} {z}/",
            f"tar cf t{number}.tar {x} {y}; rm -rf {x}; tar xf t{number}.tar",
            f"tar cf - {x} {y} | (mkdir -p {z}; tar xf - -C {z})",
            f"mkdir -p f/g; echo {number} > f/g/h; mv f f{number}; rm -rf f{number}",
            f"rm -rf {x}; mkdir {x}; echo {number} > {x}/{choose.choice('xyz')}",
            f"rm -rf {x}; echo {number} > {x}; rm {x}; mkdir {x}",
            f"install -m 640 {x} {y}",
            f"sort -o {x} {x}",
            f"split -b 100 {x} {y}-part",
            f"printf '%s\\n' 1 2 {number} > p1; printf '%s\\n' 1 3 {number} > p2; diff -u p1 p2 > p; cp p1 {x}; patch {x} p",
            f"find {x} -type f -exec sed -i s/1/2/ {{}} +",
            f"cp --reflink=auto -l {x} {y}",
            f"python3 -c \"import os,ctypes; l=ctypes.CDLL(None); l.renameat2(-100, os.fsencode('{x}'), -100, os.fsencode('{y}'), 2)\"",
            f"python3 -c \"import os; os.setxattr('{x}', 'user.k', b'{number}')\"",
            f"python3 -c \"import os; os.removexattr('{x}', 'user.k')\"",
            f"python3 -c \"import os; f=os.open('.', os.O_TMPFILE|os.O_WRONLY); os.write(f, b'{number}'); os.link('/proc/self/fd/%d' % f, '{x}', follow_symlinks=True)\"",
            f"python3 -c \"import sqlite3; c=sqlite3.connect('db{number % 3}'); c.execute('create table if not exists t(x)'); c.execute('insert into t values({number})'); c.commit()\"",
            "git init -q; git add -A; git commit -qm one",
            "git add -A; git commit -qm two",
            f"git add -A; git commit -qm {number}; git gc -q --prune=now",
            "git stash -q -u; git stash pop -q",
            f"git checkout -q -b b{number}; echo {number} > {x}; git add -A; git commit -qm c; git rebase -q HEAD~1",
            "git clean -qfdx",
            "git reset -q --hard HEAD~1",
        )
    )
