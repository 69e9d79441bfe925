"""Where callgate keeps its files: `CALLGATE_HOME`, by default `~/.callgate`, mode 0700."""

from __future__ import annotations

import os
from typing import NamedTuple


class Home(NamedTuple):
    """Light to make and to import: every command begins with it."""

    path: str

    @classmethod
    def from_environment(cls) -> Home:
        chosen = os.environ.get("CALLGATE_HOME") or "~/.callgate"
        return cls(os.path.abspath(os.path.expanduser(chosen)))

    @property
    def settings(self) -> str:
        return os.path.join(self.path, "settings.toml")

    @property
    def saved_rules(self) -> str:
        """Answers that were saved for good, as rules that a person can read and edit."""
        return os.path.join(self.path, "rules.toml")

    @property
    def trust(self) -> str:
        return os.path.join(self.path, "trust.json")

    @property
    def audit(self) -> str:
        return os.path.join(self.path, "audit.jsonl")

    @property
    def artifacts(self) -> str:
        """Output too large to show, by session."""
        return os.path.join(self.path, "artifacts")

    def make(self) -> None:
        os.makedirs(self.path, mode=0o700, exist_ok=True)


def workspace_settings(workspace: str) -> str:
    return os.path.join(workspace, ".callgate", "settings.toml")


def write_private(path: str, text: str) -> None:
    """Replace a file of the home in one step, readable by its owner only."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
