"""Who a request to Google is made as, and what to run where nobody is. Light to import."""

from __future__ import annotations

from callgate import ToolError, ToolExecutionError

SCOPE = "https://www.googleapis.com/auth/"
"""Before the names of scopes, which are short everywhere but on the wire."""


def short(scope: str) -> str:
    return scope.removeprefix(SCOPE)


def full_scope(scope: str) -> str:
    """As the wire has it; `openid` and `email` have no other name."""
    return scope if "/" in scope or scope in ("openid", "email") else SCOPE + scope


class Granted:
    """What lets an account's requests in."""

    __slots__ = ("account", "token")

    def __init__(self, account: str, token: str) -> None:
        self.account, self.token = account, token

    def __repr__(self) -> str:
        return f"Granted({self.account!r})"


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
