"""Which directory a peer may work in. It says where it is; it does not decide where it may be.

    none named                           the first directory that is served
    in a directory that is served        that one
    trusted by the user (`trust.json`)   that one
    of a pool (`pool:build/app`)         the one of the pool's workers: no directory here
    any other                            refused

A path counts as where it leads, after all links.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from callgate.config.agents import hook_switches
from callgate.config.agents.settings_files import AGENTS, token_file
from callgate.config.load import SettingsError
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.instance.errors import CannotServe
from callgate.policy.rules import is_within
from callgate.wiring.runtime import Wired

_MOST_INSPECTED = 10_000
_log = logging.getLogger("callgate.hooks")

Path = str | os.PathLike[str]


def served_roots(paths: Path | Iterable[Path]) -> list[str]:
    """Where the directories to serve really are; none means here. Raises `CannotServe`."""
    if isinstance(paths, str | os.PathLike):  # whose first character may be a directory, too: /
        paths = (paths,)
    roots = [os.path.realpath(os.path.expanduser(each)) for each in paths] or [os.getcwd()]
    for root in roots:
        if not os.path.isdir(root):
            raise CannotServe(f"{root} is not a directory")
    return roots


def peer_directory(cwd: str | None, roots: Sequence[str], is_trusted: Callable[[str], bool]) -> str:
    """The directory in which a peer works that names `cwd`. Raises `ToolPermissionDenied`."""
    if cwd is not None and not os.path.isabs(cwd):
        raise ToolPermissionDenied("clientInfo.cwd must be absolute.", reason="cwd_relative")
    if cwd is not None and "\0" in cwd:
        raise ToolPermissionDenied("clientInfo.cwd is not a path.", reason="cwd_invalid")
    real = roots[0] if cwd is None else os.path.realpath(cwd)
    if not any(is_within(real, root) for root in roots) and not is_trusted(real):
        raise ToolPermissionDenied(
            f"{real} is not served here. Start callgate serve with --workspace for it, or "
            "trust it with callgate trust.",
            reason="workspace_not_served",
        )
    if not os.path.isdir(real):
        raise ToolPermissionDenied(f"{real} is not a directory.", reason="workspace_gone")
    return real


class ServedDirectories:
    def __init__(self, wired: Wired, roots: Sequence[str], mode: Mode) -> None:
        """`roots` as of `served_roots`; sessions begin in `mode`."""
        self.roots = tuple(roots)
        self.mode = mode
        self._wired = wired
        self._inspected: set[str] = set()
        """Directories whose settings for agents were looked at."""

    def open_session(self, cwd: str | None, id: str) -> Session:
        """A session in the directory of a peer. Raises `ToolPermissionDenied`."""
        if cwd is not None and pool_workspace(cwd) is not None:
            return Session(workspace=cwd, mode=self.mode, id=id)
        try:
            directory = peer_directory(cwd, self.roots, partial(is_trusted, self._wired.home))
            session = self._wired.session(directory, self.mode)
        except SettingsError as error:
            raise ToolPermissionDenied(str(error), reason="settings_invalid") from error
        except OSError as error:
            raise ToolPermissionDenied(
                f"{cwd or self.roots[0]} cannot be used: {error.strerror or error}",
                reason="workspace_gone",
            ) from error
        session.id = id
        self._inspect(directory)
        return session

    def _inspect(self, directory: str) -> None:
        """Warn once about settings in a directory that turn an agent's hooks off."""
        if directory in self._inspected:
            return
        if len(self._inspected) >= _MOST_INSPECTED:
            self._inspected.clear()
        self._inspected.add(directory)
        home = self._wired.home.path
        for agent in AGENTS:
            if os.path.exists(token_file(home, agent)):
                for switch in hook_switches.in_files(agent, directory, home):
                    _log.warning(
                        "%s: %s would run calls that callgate does not see",
                        switch,
                        AGENTS[agent].label,
                    )
