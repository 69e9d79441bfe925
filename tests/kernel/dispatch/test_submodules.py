"""Real git in a real sandbox: submodules are set up without a change of `.git/config`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from callgate.core.commands import Command, Exit
from callgate.dispatch.commands.launchers import Launchers
from callgate.sandbox import profiles
from callgate.sandbox.plans import choose
from callgate.workspace import protected_places as git_repositories
from callgate.workspace.protected_places import protected_places
from tests.kernel.sandbox.test_escapes import needed
from tests.kernel.sandbox.test_repositories import ENVIRONMENT
from tests.kernel.sandbox.worlds import World
from tests.needs import needs

pytestmark = needs("linux", "bash", "git")
BACKENDS = ["namespaces", "bubblewrap"]
MADE = """
    set -e; rm -rf .git
    for name in library other; do
        git init -qb main ../outside/$name
        (cd ../outside/$name; echo $name > f; git add f; git commit -qm $name)
    done
    git init -qb main ../outside/top; cd ../outside/top
    git submodule --quiet add ../library sub; git config -f .gitmodules submodule.sub.update checkout
    git submodule --quiet add "$(realpath ../other)" 'deep/with space'; git add .gitmodules; git commit -qm made
    cd "$OLDPWD"; git clone -q ../outside/top top; git clone -q ../outside/other second
    cd second; git submodule --quiet add --name sub ../top unlike; git commit -qm unlike
    git submodule --quiet deinit -f unlike; rm -r .git/modules
"""


class Workshop:
    def __init__(self) -> None:
        self.world = World(os.getuid())
        self.path = self.world.workspace
        self.env = {**ENVIRONMENT, "HOME": str(self.world.home), "PATH": "/usr/bin:/bin"}
        self.outside(MADE)

    def outside(self, script: str, cwd: str = "") -> str:
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            cwd=self.path / cwd,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def jailed(self, script: str, backend: str, cwd: str = "top") -> tuple[Exit, str]:
        chosen = needed({"seccomp", backend})
        places = msgspec.structs.replace(
            self.world.places,
            protected=protected_places(str(self.path)),
            read_roots=(str(self.world.outside),),
        )
        output: list[bytes] = []

        async def run() -> Exit:
            launchers = Launchers(None)
            try:
                plan = choose(profiles.workspace(places), chosen)
                launcher = launchers.jailed(plan, tuple(chosen), str(self.world.callgate_home))
                command = Command(argv=("/bin/bash", "-c", script), cwd=str(self.path / cwd), env=dict(self.env))
                running = await launcher.start(command, lambda _, data: output.append(data))
                return await asyncio.wait_for(running.wait(), 60)
            finally:
                launchers.close()

        return asyncio.run(run()), b"".join(output).decode()


@pytest.fixture
def workshop() -> Iterator[Workshop]:
    made = Workshop()
    yield made
    made.world.remove()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "script",
    [
        "git submodule update --init",
        "git submodule init && git submodule update",
        "git submodule update --init --recursive --jobs 2",
    ],
)
def test_submodules_are_initialized_and_the_configuration_stays_as_it_is(
    workshop: Workshop, backend: str, script: str
) -> None:
    before = (workshop.path / "top/.git/config").read_bytes()
    ended, output = workshop.jailed(f"{script} && cat sub/f 'deep/with space/f'", backend)
    assert (ended.code, output.splitlines()[-2:]) == (0, ["library", "other"]), output
    assert (workshop.path / "top/.git/config").read_bytes() == before
    assert workshop.outside("git -C sub status --short; git -C sub log --format=%s", "top") == "library\n"
    again, output = workshop.jailed("git submodule update", backend)  # sets core.worktree once more
    assert again.code and all(each.startswith("top/.git/modules/") for each in again.git_settings), output
    assert again.git_settings, output


def test_what_one_repository_declares_does_not_count_in_another(workshop: Workshop) -> None:
    script = "git submodule update --init sub; git -C ../second config --get submodule.sub.url"
    ended, output = workshop.jailed(script, "namespaces")
    assert ended.code == 1, output


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_command_that_cannot_change_the_configuration_is_told_why(workshop: Workshop, backend: str) -> None:
    for script in ("git config user.name x", "git remote add x ../y"):
        ended, output = workshop.jailed(script, backend)
        assert ended.git_settings == ("top/.git/config",), output
        assert ended.code
    ended, output = workshop.jailed("git submodule add ../library again", backend)
    assert ended.git_settings == ("top/.git/config", ".gitmodules"), output
    ended, output = workshop.jailed("git submodule status; ls nowhere", backend)
    assert ended.git_settings == (), output


@pytest.mark.parametrize(
    ("declares", "said"),
    [
        ('[submodule "a"]\n\tpath = a\n\turl = https://host/a.git', '[submodule "a"]\n\turl = "https://host/a.git"\n'),
        ('[submodule "a"]\n\turl = ../b/c\n', '[submodule "a"]\n\turl = "https://host/group/b/c"\n'),
        ('[submodule "a"]\n\turl = ./b/\n', '[submodule "a"]\n\turl = "https://host/group/top/b"\n'),
        ('[submodule "a"]\n\turl = ../../../../../x\n', None),
        ('[submodule "a"]\n\turl = u\n\tupdate = !touch ran\n', '[submodule "a"]\n\turl = "u"\n'),
        ('[submodule "a"]\n\turl = u\n\tupdate = rebase\n', '[submodule "a"]\n\turl = "u"\n\tupdate = rebase\n'),
        ('[submodule "../a"]\n\turl = u\n', ""),
        ('[submodule "a"]\n\turl = --upload-pack=x\n', ""),
        ('[submodule "a"]\n\turl = "u\\n[core]\\n\\tfsmonitor = x"\n', ""),
        ('[submodule "a\\"]\\n[core]"]\n\turl = u\n', ""),
        ("[core]\n\tfsmonitor = x\n", ""),
    ],
)
def test_of_what_is_declared_only_addresses_are_taken(
    tmp_path: os.PathLike[str], declares: str, said: str | None
) -> None:
    root = os.fspath(tmp_path)
    os.mkdir(f"{root}/.git")
    with open(f"{root}/.git/config", "w") as file:
        file.write('[remote "origin"]\n\turl = https://host/group/top\n')
    with open(f"{root}/.gitmodules", "w") as file:
        file.write(declares)
    found = git_repositories.declared(root)
    assert found == said if said is not None else "core" not in found
