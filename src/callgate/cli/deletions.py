"""Deleting sessions: never under a living process, and not without a yes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence

from callgate.cli.problems import CliError
from callgate.cli.stores import alive, all_sessions, find_session, process_name
from callgate.cli.terminal import say
from callgate.cli.tty import open_tty
from callgate.cli.visible import visible
from callgate.config.places import Home
from callgate.core.errors import ToolErrorClass
from callgate.core.ops import DeleteSession
from callgate.core.stored import StoredSession
from callgate.core.stores import Store


async def delete_sessions(store: Store, said: Sequence[str], *, ask: bool) -> list[str]:
    """Delete these with their workers, all or, before anything is done, none."""
    found = [await find_session(store, each) for each in said]
    chosen = {session.id: session for session in found}
    sessions = await all_sessions(store)
    families = {id: _family(id, sessions) for id in chosen}
    dead = await store.dead_owners()
    for id, family in families.items():
        await _ensure_free(store, id, family, dead)
    if ask:
        await _ask([*chosen.values()])
    for id, family in families.items():
        await store.commit(DeleteSession(session=id))
        for each in family:
            _drop_artifacts(each.id)
    return [*chosen]


def _family(id: str, sessions: Sequence[StoredSession]) -> list[StoredSession]:
    """A session and those of its workers, and of theirs."""
    family = [each for each in sessions if each.id == id]
    for member in family:  # grows while it is read
        family += [each for each in sessions if each.parent == member.id]
    return family


async def _ensure_free(
    store: Store, id: str, family: Sequence[StoredSession], dead: Collection[str]
) -> None:
    """Refuse to delete what a living process works in, also if it only runs a call there."""
    owners = [each.owner for each in family]
    owners += [call.owner for each in family for call in await store.open_calls(each.id)]
    living = next((owner for owner in owners if owner is not None and alive(owner, dead)), None)
    if living is not None:
        raise CliError(
            f"session {id} is in use by {process_name(living)}",
            hint="Nothing was deleted.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="session_locked",
        )


async def _ask(sessions: Sequence[StoredSession]) -> None:
    tty = open_tty()
    if tty is None:
        raise CliError(
            "deleting needs a yes, and nobody can be asked here",
            hint="--yes deletes without asking.",
            error_class=ToolErrorClass.PERMISSION_DENIED,
            reason="no_confirmer",
        )
    with tty.asking():
        for each in sessions:
            tty.write(f"  {visible(each.id)}  {visible(each.title or '')}\n")
        said = await tty.ask("Delete for good?  [y]es  [n]o > ")
    if said is None or said.strip().lower() not in ("y", "yes"):
        raise CliError(
            "nothing was deleted",
            error_class=ToolErrorClass.USER_DENIED,
            reason="user_denied",
        )


def _drop_artifacts(id: str) -> None:
    if id in ("", ".", "..") or os.path.basename(id) != id:
        return  # not a name that we gave
    directory = os.path.join(Home.from_environment().path, "artifacts", id)
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        say(f"note: {directory} could not be removed: {error}")
