"""Who a request to Google is made as: the port that `config.google` implements."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from callgate.core.errors import ToolError, ToolExecutionError

SCOPE = "https://www.googleapis.com/auth/"
"""Before the names of scopes, which are short everywhere but on the wire."""


def short(scope: str) -> str:
    return scope.removeprefix(SCOPE)


def whole(scope: str) -> str:
    """As the wire has it; `openid` and `email` have no other name."""
    return scope if "/" in scope or scope in ("openid", "email") else SCOPE + scope


class Granted(msgspec.Struct, frozen=True):
    """What lets an account's requests in."""

    account: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Granted({self.account!r})"


class Credentials(Protocol):
    def why_not(self, *, writes: bool) -> str | None:
        """Why no account can be used, as the end of a sentence; None where one can."""
        ...

    async def token(self, account: str | None, scopes: Collection[str], *, writes: bool) -> Granted:
        """For an account, or the usual one, that has allowed one of these scopes. Raises a
        `ToolError` that names the command which helps."""
        ...

    async def renewed(self, refused: Granted) -> Granted:
        """In the place of one that was not accepted."""
        ...


def login_command(account: str | None = None, scope: str | None = None) -> str:
    """What a person runs to log in, or to allow more."""
    words = ["callgate auth google login"]
    words += [] if account is None else [f"--account {account}"]
    words += [] if scope is None else [f"--scope {short(scope)}"]
    return " ".join(words)


def not_allowed(account: str, scope: str) -> ToolError:
    """The person has not allowed that much."""
    return ToolExecutionError(
        f"The Google account {account} has not allowed {short(scope)} yet; run: "
        + login_command(account, scope),
        reason="google_scope",
        details={"status": 403},
    )
