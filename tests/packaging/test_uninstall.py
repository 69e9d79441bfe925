"""docs/start/uninstall.md is executed on an installation with a hook, an instance, a service and completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs/start/uninstall.md"
_SYSTEMCTL = '#!/bin/sh\necho "$@" >> ~/systemctl.log\n'
"""Records its arguments: the machine of a test has no session bus."""


class Machine:
    """A home in which callgate is installed from its wheel, in an environment without our checkout."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self.bin = base / "env" / "bin"
        venv.create(base / "env", with_pip=True)
        self._install(base)

    def _install(self, base: Path) -> None:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(base)]
        subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
        [wheel] = base.glob("callgate-*.whl")
        self.run(f"pip install -q --no-deps --no-index {wheel}")
        libraries = sysconfig.get_path("purelib", vars={"base": str(base / "env")})
        Path(libraries, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (self.bin / "systemctl").write_text(_SYSTEMCTL)
        (self.bin / "systemctl").chmod(0o755)

    def run(self, command: str) -> str:
        environment = {"HOME": str(self.home), "PATH": f"{self.bin}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
        done = subprocess.run(
            ["bash", "--norc", "-c", command],
            cwd=self.project if self.project.exists() else None,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.home.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}


@pytest.fixture
def machine() -> Iterator[Machine]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # a short path: a socket is in it
    made = Machine(base)
    yield made
    if (made.bin / "callgate").exists():  # where a test failed half-way
        subprocess.run([made.bin / "callgate", "stop"], env={"HOME": str(made.home)}, capture_output=True, timeout=60)
    shutil.rmtree(base)


def _steps() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.timeout(300)  # builds and installs a wheel, then some fifteen commands
def test_the_commands_of_the_page_leave_only_the_files_of_the_user(machine: Machine) -> None:
    settings = machine.home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text('{"model": "opus",  "odd": "layout"}\n')
    before = machine.files()
    assert str(machine.bin) in machine.run("command -v callgate")
    machine.run("callgate init")
    machine.run("callgate serve --detach")
    machine.run("callgate protect claude --trust --no-service")
    machine.run("callgate completion bash --install")
    unit = machine.home / ".config/systemd/user/callgate.service"
    unit.parent.mkdir(parents=True)
    machine.run(f"cp {machine.bin}/../share/systemd/user/callgate.service {unit}")
    machine.run("callgate call write_file path=notes.md content=hello --yes")
    assert settings.read_bytes() != before[".claude/settings.json"]

    for step in _steps():
        machine.run(step)

    log = machine.files()["systemctl.log"]
    assert log.splitlines()[-1] == b"--user disable --now callgate"
    assert machine.files() == {**before, "project/notes.md": b"hello", "systemctl.log": log}
    assert not (machine.home / ".callgate").exists()
    assert list(machine.bin.parent.rglob("*callgate*")) == []


def test_a_python_without_venv_names_the_package_of_debian(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "Makefile", tmp_path)
    (tmp_path / "ensurepip.py").write_text("raise ImportError('as on Debian without python3-venv')\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    made = subprocess.run(
        ["make", "demo", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert made.returncode != 0 and "sudo apt install python3-venv" in made.stderr
    assert not (tmp_path / ".venv").exists()
