"""The question before something is deleted for good."""

from __future__ import annotations

from collections.abc import Sequence

from callgate.cli.errors import CliError
from callgate.cli.ui.dialog import Lines, agreed
from callgate.cli.ui.tty import open_tty
from callgate.core.errors import ToolErrorClass


async def ask_to_delete(items: Sequence[str]) -> None:
    """Return if a person agrees; a `CliError` if not, or if nobody can be asked."""
    tty = open_tty()
    if tty is None:
        raise CliError(
            "deleting needs a yes, and nobody can be asked here",
            hint="--yes deletes without asking.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )
    if not await agreed(tty, Lines([f"  {line}" for line in items]), "Delete for good?"):
        raise CliError(
            "nothing was deleted",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )
