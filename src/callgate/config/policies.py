"""The policies in force: the user's, and each trusted workspace's own narrowing of it."""

from __future__ import annotations

import os

from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.places import Home
from callgate.config.schema import Settings
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolPermissionDenied
from callgate.policy.decide import Rulebook
from callgate.policy.rules import Policy


class PolicyBook:
    """Read once at the start; a workspace's file when a call first comes from it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.settings: Settings
        self.reload()

    def reload(self) -> None:
        """Read the files again; a wrong one leaves what is in force as it is."""
        self.settings, self._user = load_user(self._home)
        self._books: dict[str, Rulebook] = {}

    def check_workspace(self, workspace: str) -> None:
        """Raise `SettingsError` now rather than at the first call."""
        real = os.path.realpath(workspace)
        self._books[workspace] = Rulebook(self._user, self._load(workspace), real)

    def __call__(self, workspace: str) -> Rulebook:
        book = self._books.get(workspace)
        if book is not None:
            return book
        try:
            self.check_workspace(workspace)
        except SettingsError as error:
            raise ToolPermissionDenied(
                f"The workspace's settings cannot be used: {error}", reason="settings_invalid"
            ) from None
        return self._books[workspace]

    def _load(self, workspace: str) -> Policy | None:
        if not is_trusted(self._home, workspace):
            return None
        return load_workspace(workspace)
