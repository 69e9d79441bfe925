"""Where callgate keeps its files: `CALLGATE_HOME`, by default `~/.callgate`, mode 0700."""

from __future__ import annotations

import os
from typing import NamedTuple

from callgate.config.home_check import ensure_safe, home_path
from callgate.core.directories import make_private_directory


class Home(NamedTuple):
    """Light to make and to import: every command begins with it."""

    path: str

    @classmethod
    def from_environment(cls) -> Home:
        return cls(home_path())

    @classmethod
    def at(cls, path: str) -> Home:
        """The home at a path. `UnsafeHome` if others control it."""
        path = os.path.abspath(path)
        ensure_safe(path)
        return cls(path)

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
    def store(self) -> str:
        """The file of the store, where the settings name no other."""
        return os.path.join(self.path, "callgate.db")

    @property
    def audit(self) -> str:
        return os.path.join(self.path, "audit.jsonl")

    @property
    def artifacts(self) -> str:
        """Output too large to show, by session."""
        return os.path.join(self.path, "artifacts")

    @property
    def processes(self) -> str:
        """The files of the processes that are at work in it."""
        return os.path.join(self.path, "run")

    @property
    def id(self) -> str:
        """The file that tells it from other homes which share a store."""
        return os.path.join(self.path, "home.id")

    def make(self) -> None:
        make_private_directory(self.path)


def workspace_settings(workspace: str) -> str:
    return os.path.join(workspace, ".callgate", "settings.toml")
