"""What can go wrong between a program and an instance. A call that fails is a result instead.

ClientError
├── NoInstance       nobody listens: nothing was sent
├── InstanceGone     the connection ended; says whether the call may have run
└── RequestRefused   the instance did not do what it was asked
"""

from __future__ import annotations

_WHY = {
    "closed": "This connection was closed.",
    "lost": "The instance went away.",
    "shutting_down": "The instance was stopped.",
    "slow_reader": "The instance hung up: what it sent was not read in time.",
    "protocol": "The instance hung up: it could not read what was sent.",
    "unreadable": "What listens there does not speak the protocol of callgate.",
    "unresponsive": "The instance does not answer.",
}


class ClientError(Exception):
    """`str(error)` is safe to show to a person."""


class NoInstance(ClientError):
    def __init__(self, why: str) -> None:
        super().__init__(f"{why} `callgate serve --workspace DIR` starts an instance.")


class InstanceGone(ClientError):
    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        why = _WHY.get(reason, _WHY["lost"])
        fate = "The call was sent and may have run." if may_have_run else "Nothing was run."
        super().__init__(f"{why} {fate}")
        self.reason = reason
        """closed, lost, unreadable, unresponsive, or what the instance said."""
        self.may_have_run = may_have_run
        """False: this call was never sent, or it was no call."""


class RequestRefused(ClientError):
    """Such as an answer to a question that is no longer open."""
