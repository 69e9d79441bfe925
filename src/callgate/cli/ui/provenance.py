"""The instance or embedded runtime that answered a command, and the version of its policy.

    dispatch          -> begin            start of a command, with or without -v and --json
    embedded, remote  -> from_...         note the answer; -v prints it on stderr
    output            -> known, current   `answered_by` of a JSON object

A command that only reads records has no instance; its policy is the present one of its directory.

Commands that work in spite of invalid settings print a one-line warning:

    remote.call, tools -> warn_of_instance_settings   the instance still uses earlier settings
    dispatch           -> warn_of_settings_files      any other command, at its end

A command that fails because of the settings reports an error instead. The module is light to
import, because calls through an instance import it.
"""

from __future__ import annotations

import os

from callgate.cli.errors import CHECK_SETTINGS
from callgate.cli.ui.terminal import answered_by_words, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.instance.wiring.runtime import Wired

    AnsweredBy = dict[str, str | None]
    """The socket of the `instance`, None for the embedded runtime, and the `policy` version."""


class _Command:
    """State of the command in this process."""

    verbose = False
    wanted = False
    """Whether -v or --json needs the information."""
    workspace = "."
    by: AnsweredBy | None = None
    are_settings_checked = False


def begin(*, verbose: bool, json: bool = False, workspace: str | None = None) -> None:
    _Command.verbose, _Command.wanted = verbose, verbose or json
    _Command.workspace, _Command.by = workspace or ".", None


def from_records() -> None:
    """Print the policy with -v if no instance or runtime answered."""
    if _Command.verbose and _Command.by is None:
        say(f"callgate: no instance was used, policy {_policy_here()}")


def is_wanted() -> bool:
    return _Command.wanted


def from_instance_at(path: str, policy: str | None) -> None:
    _note({"instance": path, "policy": policy})


def from_own_runtime(wired: Wired, workspace: str) -> None:
    if _Command.wanted:
        _note({"instance": None, "policy": wired.settings_state(workspace).version})


def known() -> AnsweredBy | None:
    """Return the noted answer; None if there is none or it is not needed."""
    return _Command.by if _Command.wanted else None


def current() -> AnsweredBy | None:
    """Return the answer at the end of a command; None if it is not needed."""
    if _Command.wanted and _Command.by is None:
        return {"instance": None, "policy": _policy_here()}
    return known()


def _note(by: AnsweredBy) -> None:
    _Command.by = by
    if _Command.verbose:
        say(f"callgate: {answered_by_words(by)}")


def _policy_here() -> str | None:
    """Return the policy version of the directory; None if the settings are invalid."""
    from callgate.config.home import Home  # lazy: the same  # noqa: PLC0415
    from callgate.config.home_check import UnsafeHome  # lazy: only for -v and --json  # noqa: PLC0415
    from callgate.config.load import SettingsError  # lazy: the same  # noqa: PLC0415
    from callgate.config.policies import PolicyBook  # lazy: the same  # noqa: PLC0415

    workspace = os.path.abspath(os.path.expanduser(_Command.workspace))
    try:
        book = PolicyBook(Home.from_environment())
        book.look(workspace)
    except (SettingsError, UnsafeHome, OSError):
        return None
    return book.version(workspace)


_INSTANCE = (
    "The running instance uses its earlier settings for read-only calls, and refuses the others."
)
_ALONE = "Calls are refused until you correct it."


def warn_of_instance_settings(problem: str | None) -> None:
    """Warn of the problem that an instance reports about the present settings."""
    _Command.are_settings_checked = True
    if problem is not None:
        _warn(problem, _INSTANCE)


def warn_of_settings_files(workspace: str) -> None:
    """Check the settings files, unless an instance has reported on them."""
    if _Command.are_settings_checked:
        return
    _Command.are_settings_checked = True
    from callgate.config.home import Home  # lazy: not for a call through an instance  # noqa: PLC0415
    from callgate.config.home_check import UnsafeHome  # lazy: the same  # noqa: PLC0415
    from callgate.config.instance_records import candidates  # lazy: the same  # noqa: PLC0415
    from callgate.config.load import SettingsError, load_user, load_workspace  # lazy: the same  # noqa: PLC0415
    from callgate.config.trust import is_trusted  # lazy: the same  # noqa: PLC0415

    try:
        home = Home.from_environment()
        load_user(home)
        if is_trusted(home, workspace):
            load_workspace(workspace)
    except SettingsError as error:
        _warn(str(error), _INSTANCE if [*candidates(home.path)] else _ALONE)
    except (UnsafeHome, OSError):
        return  # not a mistake in the settings


def _warn(problem: str, consequence: str) -> None:
    end = "" if problem.endswith(("?", ".")) else "."
    say(f"warning: {problem}{end} {consequence} {CHECK_SETTINGS}")
