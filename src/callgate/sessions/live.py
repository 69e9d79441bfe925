"""The owner of turns: which sessions are live in this process, and the one turn in each.

    editors (ACP) ----+
    HTTP -------------+                          +--> session: its turn, or none
    chat, run --------+--> reserve, cancel, ... -+--> session: its turn, or none
    sub-agents -------+                          +--> ...
    the library ------+

Every way in starts a turn with `reserve`. Nothing is queued: while a session has a turn, `reserve`
raises `TurnInProgress` at once. A session is live while clients come back to it (`serve`), while
it has a turn, or both.

`session.turn_id` says which turn is open, also after the process that opened it has ended: nobody
works in it then, and whoever resumes the session goes on with it (`reserve_open`) or ends it
(`end`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from callgate.core.sessions import Session
from callgate.sessions.conversations import Conversations
from callgate.sessions.session_turn import SHUTDOWN, USER_CANCEL, SessionTurn, TurnInProgress


class _LiveSession:
    """A session that clients come back to, or in which a turn is, or both."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_served = False
        self.turn: SessionTurn | None = None


class SessionTurns:
    """The live sessions of a runtime, and the turn in each. One per runtime."""

    def __init__(self, conversations: Conversations) -> None:
        self.conversations = conversations
        self._live: dict[str, _LiveSession] = {}

    # Turns.

    def reserve(self, session: Session, stop: Callable[[], bool] | None = None) -> SessionTurn:
        """The next turn of a session. `TurnInProgress` while it has one, also one in which
        nobody works.

        `stop` hears of a cancel until `run`, whose caller then looks at `is_cancelled` itself;
        False: the turn cannot be stopped."""
        if session.turn_id is not None:
            raise TurnInProgress(session.turn_id)
        return self._reserve(session, stop)

    def reserve_open(self, session: Session) -> SessionTurn | None:
        """The turn that is open in a session, to go on with it; None if there is none.
        `TurnInProgress` while somebody works in it."""
        return None if session.turn_id is None else self._reserve(session, None)

    def _reserve(self, session: Session, stop: Callable[[], bool] | None) -> SessionTurn:
        live = self._live.get(session.id) or _LiveSession(session)
        if live.turn is not None:
            raise TurnInProgress(live.turn.id)

        def released() -> None:
            live.turn = None
            if not live.is_served and self._live.get(session.id) is live:
                del self._live[session.id]

        turn = live.turn = SessionTurn(session, self.conversations, released, stop)
        self._live[session.id] = live
        return turn

    def running(self, session_id: str) -> SessionTurn | None:
        """The turn of a session from its reservation to its end."""
        live = self._live.get(session_id)
        return None if live is None else live.turn

    def under_way(self) -> list[SessionTurn]:
        """The turns of all sessions, from their reservations to their ends."""
        return [live.turn for live in self._live.values() if live.turn is not None]

    def cancel(self, session_id: str, reason: str = USER_CANCEL) -> bool:
        """Stop the turn of a session; False if there is none that can be stopped."""
        turn = self.running(session_id)
        return turn is not None and turn.cancel(reason)

    async def end(self, session: Session, cancelled: str | None = None) -> None:
        """End a turn in which nobody works: one that was left open, or the program's own."""
        turn = self.running(session.id)
        await self.conversations.end_turn(session, cancelled=cancelled)
        if turn is not None:
            turn.release_unstarted()

    async def close(self) -> None:
        """The runtime goes away: leave the turns that are open as they are, to be resumed."""
        turns = [live.turn for live in self._live.values() if live.turn is not None]
        stopping = [turn for turn in turns if turn.cancel(SHUTDOWN) and turn.has_task]
        for turn in stopping:
            await turn.stopped()

    # Sessions that clients come back to.

    def serve(self, session: Session) -> None:
        """From now on `served` finds it."""
        live = self._live.setdefault(session.id, _LiveSession(session))
        live.session, live.is_served = session, True

    def served(self, session_id: str) -> Session | None:
        live = self._live.get(session_id)
        return live.session if live is not None and live.is_served else None

    @property
    def served_count(self) -> int:
        return sum(live.is_served for live in self._live.values())

    def withdraw_if_idle(self, session_id: str) -> bool:
        """Serve a session no longer, if it has no turn."""
        live = self._live.get(session_id)
        if live is None or not live.is_served or live.turn is not None:
            return False
        del self._live[session_id]
        return True

    def withdraw_idle(self, busy: Collection[str]) -> list[Session]:
        """Serve the sessions no longer that have no turn and are not `busy`; returns them."""
        idle = [
            live.session
            for live in self._live.values()
            if live.is_served and live.turn is None and live.session.id not in busy
        ]
        for session in idle:
            del self._live[session.id]
        return idle

    def cancel_served(self) -> None:
        """Stop the turn of every session that is served."""
        for live in list(self._live.values()):
            if live.is_served and live.turn is not None:
                live.turn.cancel()

    async def withdraw(self, session_id: str) -> Session | None:
        """Cancel the turn of a session that is served, wait for its end, and serve the session
        no longer; None if it was not served."""
        live = self._live.get(session_id)
        if live is None or not live.is_served:
            return None
        del self._live[session_id]  # a turn that is still being prepared holds up nobody
        if live.turn is not None:
            live.turn.cancel()
            await live.turn.stopped()
            await self.conversations.end_turn(live.session, cancelled=USER_CANCEL)
        return live.session
