"""A command creates no file that some program executes later, by whatever call it tries."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callgate.sandbox import profiles
from callgate.sandbox.jails import Names
from callgate.sandbox.plans import choose
from callgate.workspace import protected
from tests.kernel.sandbox.test_escapes import needed, together
from tests.kernel.sandbox.worlds import PYTHON, World, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)

NAMES = """
    .claude/settings.json .claude/settings.local.json .claude/hooks/x .mcp.json mcp.json .cursor/hooks.json
    .cursor/mcp.json .vscode/tasks.json .vscode/settings.json .idea/workspace.xml .zed/tasks.json .envrc
    .husky/pre-commit .githooks/pre-commit lefthook.yml .pre-commit-config.yaml .gemini/settings.json
    .codex/config.toml .codex/hooks.json .opencode/plugin/x.ts opencode.json .qwen/settings.json
    .vibe/hooks.toml .kimi-code/config.toml .continue/config.json .windsurf/hooks.json .devcontainer/devcontainer.json
    .devcontainer.json .npmrc .yarnrc.yml .cargo/config.toml .config/nvim/init.lua .gitmodules .bashrc .exrc
    .github/hooks/x.json .copilot/mcp.json .aider.conf.yml .roo/mcp.json x.code-workspace sitecustomize.py .callgate/x
    sub/.git/hooks/pre-commit .dir-locals-2.el lefthook-local.yaml .helix/languages.toml mise.local.toml .ocamlinit
    .clinerules/hooks/x .kilocode/mcp.json .config/pip/pip.conf .config/uv/uv.toml .pip/pip.conf
""".split()
WAYS = """
import ctypes, json, os, shutil, sys
def plain():
    with open("plain", "w") as file: file.write("x")
    return "plain"
def write(path):
    with open(path, "w") as file: file.write("x")
def write_below_a_descriptor(path):
    parent = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.close(os.open(os.path.basename(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=parent))
def write_absolute(path): write(os.path.abspath(path))
def write_with_dots(path): write(os.path.join("d", "..", path))
def write_through_process_files(path): write("/proc/self/cwd/" + path)
def write_through_a_descriptor_of_its_own(path):
    parent = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.dup2(parent, 700); write(f"/proc/self/fd/700/" + os.path.basename(path))
def write_through_devices(path): write("/dev/fd/../cwd/" + path)
def write_through_a_link_to_it(path):
    os.symlink(os.path.abspath(path), "dangling"); write("dangling")
def write_through_many_links(path):
    os.symlink(os.path.abspath(path), "l0")
    for n in range(30): os.symlink(f"l{n}", f"l{n + 1}")
    write("l30")
def write_through_a_directory(path):
    os.symlink("/proc/self/cwd", "here"); write("here/" + path)
def write_with_a_long_path(path):
    write("d/../" * 800 + path)
def create(path): ctypes.CDLL(None).creat(path.encode(), 0o600)
def rename(path): os.rename(plain(), path)
def exchange(path):
    with open("other", "w"): pass
    ctypes.CDLL(None).renameat2(-100, plain().encode(), -100, path.encode(), 0)
def link(path): os.link(plain(), path)
def link_an_open_file(path):
    file = os.open(".", os.O_WRONLY | os.O_TMPFILE, 0o600)
    os.link(f"/proc/self/fd/{file}", path, follow_symlinks=True)
def symlink(path): os.symlink(plain(), path)
def pipe(path): os.mkfifo(path)
def move_a_directory(path):
    first, _, rest = path.rpartition("/")
    if not first: return
    os.makedirs("made"); write("made/" + rest); os.rmdir(first); os.rename("made", first)
def move_out_of_packages(path):
    os.makedirs(os.path.dirname("node_modules/" + path), exist_ok=True)
    write("node_modules/" + path)
    os.rename("node_modules", "packages")
    if os.path.lexists("packages/" + path): shutil.copy("packages/" + path, "FOUND")
ways = [each for name, each in list(globals().items()) if callable(each) and getattr(each, "__module__", "") == "__main__" and name != "plain"]
created = []
for path in json.loads(sys.argv[1]):
    for way in ways:
        os.makedirs("d", exist_ok=True)
        if os.path.dirname(path): os.makedirs(os.path.dirname(path), exist_ok=True)
        try: way(path)
        except OSError: pass
        if os.path.lexists(path) or os.path.lexists("FOUND"): created.append((way.__name__, path))
        for name in os.listdir("."):
            if name != ".git" and name not in KEPT:
                shutil.rmtree(name, ignore_errors=True) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
print(json.dumps(created))
"""


@pytest.fixture
def world() -> Iterator[World]:
    made = World(os.getuid())
    yield made
    made.remove()


async def inside(
    world: World, argv: tuple[str, ...], backend: str = "namespaces", **names: object
) -> tuple[str, tuple[str, ...]]:
    """What a command prints, and the files that it was not allowed to write."""
    chosen = await asyncio.to_thread(needed, together(backend))
    bwrap = next((getattr(each, "path", None) for each in chosen if each.name == backend), None)
    rules = Names(names=protected.NAMES, pairs=protected.PAIRS, suffixes=protected.SUFFIXES, exempt=protected.EXEMPT)
    places = msgspec.structs.replace(world.places, protected=(), names=msgspec.structs.replace(rules, **names))
    plan = choose(profiles.workspace(places), list(chosen))
    ended, out, err = await run(plan, argv, str(world.workspace), bwrap=bwrap, HOME="/tmp")
    assert ended.code == 0, err
    return out, ended.left.refused


@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "supervisor"])
async def test_no_call_creates_a_file_that_is_executed_later(world: World, backend: str) -> None:
    kept = sorted(os.listdir(world.workspace))
    script = f"KEPT = {kept!r}\n{WAYS}"
    for at in range(0, len(NAMES), 12):
        names = NAMES[at : at + 12]
        out, refused = await inside(world, (PYTHON, "-c", script, json.dumps(names)), backend)
        assert json.loads(out) == []
        assert {f"{world.workspace}/{name}" for name in names} <= set(refused)


USUAL = """
set -e
mkdir -p .claude .vscode node_modules/p/.vscode src; echo x > node_modules/p/.vscode/settings.json
echo x > src/config; echo x > config; mv config settings; echo x > claude.json; echo x > AGENTS.md; echo x > .gitignore
echo > /dev/stdout; echo x | tee /dev/stderr > /dev/null 2>&1; echo x > /proc/self/fd/1
mv node_modules/p/.vscode node_modules/p/other; mkdir -p .venv/lib; echo x > .venv/lib/sitecustomize.py
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q origin; cd origin; mkdir .husky; git config user.name x; git commit -q --allow-empty -m x
git branch config; git branch hooks/pre-commit; git worktree add -q ../tree; git stash list; git gc -q
cd ..; git clone -q origin copy; cd copy; git remote add other u; git checkout -q config; git rebase -q origin/hooks/pre-commit
git config core.sharedRepository group; git commit -q --allow-empty -m y; cd ..
git init -q --shared shared; git init -q --bare bare; git -C bare config core.bare true
"""


@needs("git")
@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap", "supervisor"])
async def test_ordinary_work_is_not_refused(world: World, backend: str) -> None:
    _, refused = await inside(world, ("/bin/sh", "-c", USUAL), backend)
    assert refused == ()


async def test_a_path_that_an_agent_needs_is_allowed_and_no_other(world: World) -> None:
    script = (
        "mkdir .opencode; echo x > .opencode/.gitignore && (echo x > .opencode/opencode.json) 2>/dev/null || echo no"
    )
    out, refused = await inside(world, ("/bin/sh", "-c", script), allowed=protected.ALLOWED)
    assert out == "no\n" and refused == (f"{world.workspace}/.opencode/opencode.json",)


WITHOUT = """
import asyncio, os, sys
from callgate.sandbox import kernel
from callgate.sandbox.backends import seccomp
from tests.kernel.sandbox import test_creations
from tests.kernel.sandbox.worlds import World
from callgate.workspace.executed_later import now, take_stock

kernel.no_new_privileges()
held = seccomp.install_listener(seccomp.notifying(kernel.machine(), {}))
assert held is not None
world = World(os.getuid())
try:
    began = now()
    script = "echo x > .envrc; mkdir -p e/objects e/refs; echo '[core] pager = x' > e/config; touch f d; chmod g+s f || echo no; chmod u+s f || echo no"
    out, refused = asyncio.run(test_creations.inside(world, ("/bin/sh", "-c", script)))
    left = take_stock((str(world.workspace),), began).below((str(world.workspace),))
    print([out, refused, left.files, left.git, left.disabled])
finally:
    world.remove()
"""


async def test_without_a_listener_files_are_reported_and_git_is_disabled() -> None:
    """Somebody else listens to our calls already, and the kernel has one listener for each process."""
    await asyncio.to_thread(needed, {"seccomp", "namespaces"})
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    out, _ = await asyncio.wait_for(done.communicate(), 60)
    git = "e/config"
    assert ast.literal_eval(out.decode()) == ["no\nno\n", (), (".envrc",), ((git, ("core.pager",)),), (git,)]
