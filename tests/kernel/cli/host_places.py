"""A home with one host, for tests of `callgate hosts` and of what it guards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.kernel.cli.running import Ran, callgate

PLAIN = Path(__file__).parents[1] / "sources" / "hosts" / "plain_host.py"


class Place:
    """A home with one host, whose plugin lies in the workspace."""

    def __init__(self, base: Path) -> None:
        self.home, self.ws = base / "h", base / "ws"
        self.home.mkdir(mode=0o700)
        self.ws.mkdir()
        self.plugin = self.ws / "plain.py"
        # A call of `hang` ends when somebody has written into a pipe.
        held = PLAIN.read_text().replace("time.sleep(1_000)", 'text = open("go").read()')
        self.plugin.write_text(held)
        self.settings()

    def settings(self, *, command: list[str] | None = None, more: str = "") -> None:
        said = command or [sys.executable, "-I", str(self.plugin)]
        (self.home / "settings.toml").write_text(
            f'[hosts.plain]\ncommand = {json.dumps(said)}\neffect = "none"\n{more}'
        )

    def change(self, old: str, new: str) -> None:
        text = self.plugin.read_text()
        assert old in text
        self.plugin.write_text(text.replace(old, new))

    @property
    def env(self) -> dict[str, str]:
        return {"CALLGATE_HOME": str(self.home)}

    @property
    def log(self) -> Path:
        return self.home / "hosts" / "plain.log"

    @property
    def pin(self) -> Path:
        return self.home / "hosts" / "plain.json"

    def run(self, *words: str, **env: str) -> Ran:
        return callgate(*words, cwd=self.ws, env={**self.env, **env})

    def host(self) -> dict[str, Any]:
        (host,) = self.run("hosts", "list", "--json").json["hosts"]
        return host  # type: ignore[no-any-return]

    def refusal(self, tool: str = "echo") -> tuple[int, str | None]:
        """How a call ends: its exit code, and why."""
        ran = self.run("call", tool, "text=hi", "--json")
        return ran.code, (ran.json["error"] or {}).get("reason")

    def checked(self) -> tuple[str, str]:
        """What a doctor finds about hosts."""
        checks = {each["check"]: each for each in self.run("doctor", "--json").json["checks"]}
        return checks["hosts"]["level"], checks["hosts"]["text"]
