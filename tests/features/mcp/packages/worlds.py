"""A home, a workspace, and the commands of a person in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.features.mcp.packages.registries import TOKEN, Registry
from tests.kernel.cli.running import CALLGATE, Ran
from tests.needs import UV

LIMIT_S = 300.0


def program_path() -> str:
    """Programs themselves: what stands for them in another home (pyenv) does not work in this one."""
    found = [shutil.which(name) for name in ("npm", "node", UV)]
    places = [os.path.dirname(os.path.realpath(path)) for path in found if path is not None]
    return ":".join([f"{sys.base_prefix}/bin", "/usr/bin", "/bin", *places])


class World:
    """A home with settings of package managers, secrets and caches. Not in /tmp, which sandboxes
    replace."""

    def __init__(self, base: Path) -> None:
        self.home, self.workspace = base / "home", base / "workspace"
        self.callgate_home = self.home / ".callgate"
        for path in (self.workspace, self.home / ".ssh", self.home / ".config/pip"):
            path.mkdir(parents=True)
        (self.workspace / "file").write_text("mine")
        for name in (".ssh/id", "diary", ".bashrc"):
            (self.home / name).write_text("as it was\n")

    def set_up(self, registry: Registry) -> None:
        """Settings for all package managers."""
        host = f"//{registry.host}:{registry.port}/"
        (self.home / ".npmrc").write_text(f"registry={registry.url}/\n{host}:_authToken=${{NPM_TOKEN}}\n")
        (self.home / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = {registry.url}/simple/\n")
        (self.home / ".config/uv").mkdir()
        (self.home / ".config/uv/uv.toml").write_text(f'index-url = "{registry.url}/simple/"\n')

    def run(self, *words: str, cwd: Path | None = None, **env: str) -> Ran:
        secret = {"NPM_TOKEN": TOKEN, "SECRET_OF_THE_SERVER": "x"}
        own = {"HOME": str(self.home), "CALLGATE_HOME": str(self.callgate_home)}
        ran = subprocess.run(
            [CALLGATE, *words],
            cwd=cwd or self.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": program_path(), **secret, **own, **env},
            start_new_session=True,
            timeout=LIMIT_S,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def add(self, *command: str, name: str = "greedy") -> Ran:
        options = ("--effect", "read", "--env", "SECRET_OF_THE_SERVER", "--yes")
        return self.run("mcp", "add", name, *options, "--", *command)

    def succeeds(self) -> list[str]:
        """What the running server could do."""
        ran = self.run("call", "mcp.greedy/try_all", "--json")
        assert ran.code == 0, ran
        found: list[str] = json.loads(ran.json["content"][0]["text"])
        return found

    @property
    def record(self) -> dict[str, object]:
        text = (self.callgate_home / "mcp/greedy/install.json").read_text()
        return json.loads(text)  # type: ignore[no-any-return]

    @property
    def installation(self) -> Path:
        return self.callgate_home / "mcp/greedy" / str(self.record["directory"])

    def ensure_untouched(self) -> None:
        names = {path.name for path in self.home.iterdir()}
        assert names <= {".ssh", "diary", ".bashrc", ".npmrc", ".config", ".callgate", ".local"}
        assert (self.home / ".bashrc").read_text() == "as it was\n"
        assert [path.name for path in self.workspace.iterdir()] == ["file"]
