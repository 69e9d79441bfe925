"""Who answered a command, an instance or a runtime of its own, and by which policy.

    dispatch          -> begin            a command begins, with or without -v and --json
    embedded, remote  -> from_...         whoever finds out; with -v it is said on stderr
    output            -> known, current   what an object that --json prints carries

A command that reads records, and asks nobody, is answered by no instance; the policy is the one
that its directory has now.
"""

from __future__ import annotations

import os

from callgate.cli.ui.terminal import answered_by_words, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.wiring.runtime import Wired

    AnsweredBy = dict[str, str | None]
    """The socket of the `instance`, None for a runtime of its own, and the `policy` in force."""


class _Command:
    """The one that this process runs."""

    verbose = False
    wanted = False
    """Whether anybody wants to know."""
    workspace = "."
    by: AnsweredBy | None = None


def begin(*, verbose: bool, json: bool = False, workspace: str | None = None) -> None:
    _Command.verbose, _Command.wanted = verbose, verbose or json
    _Command.workspace, _Command.by = workspace or ".", None


def from_records() -> None:
    """Say the policy with -v, where nobody was asked."""
    if _Command.verbose and _Command.by is None:
        say(f"callgate: no instance was asked, policy {_policy_here()}")


def is_wanted() -> bool:
    """Whether anybody wants to know."""
    return _Command.wanted


def from_instance_at(path: str, policy: str | None) -> None:
    _note({"instance": path, "policy": policy})


def from_own_runtime(wired: Wired, workspace: str) -> None:
    if _Command.wanted:
        _note({"instance": None, "policy": wired.settings_state(workspace).version})


def known() -> AnsweredBy | None:
    """None: nothing has answered yet, or it is not to be shown."""
    return _Command.by if _Command.wanted else None


def current() -> AnsweredBy | None:
    """The same at the end of a command. None: it is not to be shown."""
    if _Command.wanted and _Command.by is None:
        return {"instance": None, "policy": _policy_here()}
    return known()


def _note(by: AnsweredBy) -> None:
    _Command.by = by
    if _Command.verbose:
        say(f"callgate: {answered_by_words(by)}")


def _policy_here() -> str | None:
    """None where the settings cannot be used."""
    from callgate.config.home import Home  # lazy: the same  # noqa: PLC0415
    from callgate.config.home_check import UnsafeHome  # lazy: only where somebody wants to know  # noqa: PLC0415
    from callgate.config.load import SettingsError  # lazy: the same  # noqa: PLC0415
    from callgate.config.policies import PolicyBook  # lazy: the same  # noqa: PLC0415

    workspace = os.path.abspath(os.path.expanduser(_Command.workspace))
    try:
        book = PolicyBook(Home.from_environment())
        book.look(workspace)
    except (SettingsError, UnsafeHome, OSError):
        return None
    return book.version(workspace)
