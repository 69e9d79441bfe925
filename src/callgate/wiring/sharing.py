"""What a runtime does beside its calls because other homes use its store too.

at its start   rules, trust and pins as the store has them, or had them last
from then on   the same at each change; what calls put aside; how far the audit log has come
"""

from __future__ import annotations

import logging

from callgate.audit.log import AuditLog
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.mirror import Mirror
from callgate.config.policies import PolicyBook
from callgate.config.stores import SharedStore
from callgate.core.stores import StoreError
from callgate.core.task_sets import TaskSet
from callgate.events.log import SessionLog
from callgate.runtime import Runtime
from callgate.sessions.audit_heads import HeadPublisher
from callgate.sessions.shared_artifacts import SharedArtifacts

_log = logging.getLogger("callgate")
_NO_COPY = "the store with the saved rules cannot be reached, and there is no copy of them"


class Sharing:
    def __init__(
        self, home: Home, shared: SharedStore, log: SessionLog, audit: AuditLog | None
    ) -> None:
        self._home = home
        self._log = log
        self.mirror = Mirror(home, shared)
        """Rules, trust and pins, as files of the home."""
        self.saving = TaskSet(_log, "an answer could not be saved")
        self._heads = None if audit is None else HeadPublisher(log, audit, shared.home.id)
        self._policies: PolicyBook | None = None
        self.is_withheld = False
        """Whether the shared rules are not known yet: calls with effects are refused."""

    def begin(self, runtime: Runtime, policies: PolicyBook) -> None:
        """Blocks until the store was read, or does not answer."""
        self._share_artifacts(runtime)
        self._policies = policies
        self.is_withheld = not self.mirror.refresh_now() and not self.mirror.exists
        if self.is_withheld:
            policies.withhold(SettingsError(self._home.saved_rules, None, _NO_COPY))
        policies.refresh()

    async def follow(self) -> None:
        """Keep the files as the store has them. For a runtime that lives on; never returns."""
        await self.mirror.follow(self._log.store, self._refreshed)

    def _refreshed(self) -> None:
        assert self._policies is not None
        self.is_withheld = False
        self._policies.withhold(None)
        self._policies.refresh()

    def _share_artifacts(self, runtime: Runtime) -> None:
        files = runtime.dispatcher.files
        artifacts = SharedArtifacts(self._log.store, self._home.artifacts)
        files.share = artifacts.share

        async def fetch(session_id: str) -> None:
            try:
                directory = await artifacts.fetch(session_id)
            except (StoreError, OSError) as error:
                _log.warning("what session %s put aside is not here: %s", session_id, error)
                return
            if directory is not None:
                files.adopt(session_id, directory)

        runtime.fetch_artifacts = fetch

    async def close(self) -> None:
        """Before the log is closed."""
        await self.saving.wait()
        if self._heads is not None:
            await self._heads.close()
