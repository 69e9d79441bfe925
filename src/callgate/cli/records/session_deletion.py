"""Deleting sessions: never under a living process, and not without a yes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from callgate.cli.errors import CliError
from callgate.cli.records.deletion_question import ask_to_delete
from callgate.cli.records.stores import alive, find_session, process_name
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import StoredSession
from callgate.core.stores import Store
from callgate.sessions.deleting import delete_session, family_of


async def delete_sessions(store: Store, ids: Sequence[str], *, ask: bool) -> list[str]:
    """Delete these with their workers, all or, before anything is done, none."""
    found = [await find_session(store, each) for each in ids]
    chosen = {session.id: session for session in found}
    families = {id: await family_of(store, id) for id in chosen}
    dead = await store.dead_owners()
    for id, family in families.items():
        await _ensure_free(store, id, family, dead)
    if ask:
        shown = [f"{visible(each.id)}  {visible(each.title or '')}" for each in chosen.values()]
        await ask_to_delete(shown)
    for id, family in families.items():
        await delete_session(store, id, family, Home.from_environment().artifacts)
    return [*chosen]


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
