"""`callgate auth google`: log in to Google accounts, list them, and log out.

No command prints a token or accepts one as an argument."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from callgate import ToolError, ToolErrorClass
from callgate.packs.commands import CliError
from callgate.packs.files import make_private_directory
from callgate.packs.terminal import (
    OK,
    SettingsError,
    open_in_browser,
    print_field,
    print_json,
    read_settings,
    refuse_within_a_call,
    say,
    visible,
)
from callgate_catalogue.google import oauth
from callgate_catalogue.google.accounts import (
    SCOPE,
    USUAL,
    Account,
    GoogleAccounts,
    check_name,
    endpoints,
    full_scope,
    short,
)
from callgate_catalogue.google.catalogue import SERVICES
from callgate_catalogue.settings import GoogleTable

_IDENTITY_SCOPES = ("openid", "email")
"""Scopes that reveal the address of the account."""
_LARGEST_FILE = 64 * 1024
_NO_CLIENT = """\
Google's console gives out a client file: make a project, enable the APIs, then Credentials,
Create credentials, OAuth client ID, Desktop app, Download JSON. See docs/use/google.md."""


def google(options: Namespace) -> int:
    """Run the subcommand that the first word names."""
    action, *words = options.words or [""]
    if action == "login":
        return _login(options, words)
    if words or action not in ("status", "logout"):
        raise CliError(
            "auth google needs one of: login, status, logout",
            hint="See callgate auth google --help.",
        )
    return _status(options) if action == "status" else _logout(options)


def _login(options: Namespace, services: list[str]) -> int:
    refuse_within_a_call("callgate auth google login")
    with _explained():
        home, table, accounts = _opened()
        name = check_name(options.account or accounts.usual() or USUAL)
        everyone = accounts.known().accounts
        known = everyone.get(name)
        before = known or everyone.get(accounts.usual() or "")
        client = _client(options.client_file, home, table, before)
        requested = _scopes(services, options, known)
        tokens = asyncio.run(
            oauth.log_in(
                endpoints(table),
                client,
                requested,
                _show(options),
                port=options.port,
                hint="" if known is None else known.email,
                adds=not options.read_only,
            )
        )
        accounts.put(name, tokens, client, read_only=options.read_only)
    missing = [short(each) for each in requested if each not in (*tokens.scopes, *_IDENTITY_SCOPES)]
    if options.json:
        allowed = _shorts(tokens.scopes)
        print_json({"account": name, "email": tokens.email, "scopes": allowed, "missing": missing})
        return OK
    identity = f" as {visible(tokens.email)}" if tokens.email else ""
    say(f"The account {name} is logged in{identity}.")
    for scope in missing:
        say(f"callgate: {scope} was not granted; tools that need it will report it")
    say("Try next:\n  callgate tools\n  callgate call gmail_list")
    return OK


def _client(
    file: str | None, home: str, table: GoogleTable, before: Account | None
) -> oauth.OAuthClient:
    """Return the client from the named file, the settings, or an earlier login."""
    if file is None and table.client_file is not None:
        file = os.path.join(home, os.path.expanduser(table.client_file))
    if file is None:
        if before is None:
            raise CliError(
                "the client file is missing: callgate auth google login --client-file FILE",
                hint=_NO_CLIENT,
                reason="no_client",
            )
        return oauth.OAuthClient(before.client_id, before.client_secret)
    try:
        with open(file, "rb") as opened:
            return oauth.read_client(opened.read(_LARGEST_FILE))
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise CliError(f"{file}: {problem}", hint=_NO_CLIENT, reason="no_client") from None


def _scopes(services: list[str], options: Namespace, known: Account | None) -> list[str]:
    """Return the scopes to request besides the granted ones; all services without arguments."""
    unknown = [each for each in services if each not in SERVICES]
    if unknown:
        raise CliError(
            f"there is no service {unknown[0]!r}", hint=f"There are: {', '.join(SERVICES)}."
        )
    chosen = services or ([] if options.scope else list(SERVICES))
    wanted = [scope for each in chosen for scope in SERVICES[each][0 if options.read_only else 1]]
    wanted += options.scope or []
    had = [] if known is None or options.read_only else known.scopes
    return list(dict.fromkeys([*_IDENTITY_SCOPES, *map(full_scope, wanted), *had]))


def _show(options: Namespace) -> oauth.Show:
    def show(address: str) -> None:
        say(f"Log in here, and grant the permissions that you want:\n\n{address}\n")
        if not options.no_open and not open_in_browser(address):
            say("callgate: no browser could be opened; open the address in one on this machine")

    return show


def _status(options: Namespace) -> int:
    with _explained():
        accounts = GoogleAccounts(*read_settings("google"))  # read-only: creates no directory
        usual, known = accounts.usual(), accounts.known().accounts
    rows = [
        {
            "account": name,
            "email": account.email,
            "usual": name == usual,
            "read_only": account.read_only,
            "scopes": _shorts(account.scopes),
        }
        for name, account in known.items()
    ]
    if options.json:
        print_json(rows)
        return OK
    if not rows:
        say("No Google account is logged in. Run: callgate auth google login")
    for row in rows:
        marks = [
            mark
            for mark, key in (("usual", "usual"), ("for reading only", "read_only"))
            if row[key]
        ]
        suffix = f" ({', '.join(marks)})" if marks else ""
        print_field(f"{row['account']}  ", f"{row['email']}{suffix}")
        print_field("  ", " ".join(_shorts(known[str(row["account"])].scopes)))
    return OK


def _logout(options: Namespace) -> int:
    refuse_within_a_call("callgate auth google logout")
    with _explained():
        _, table, accounts = _opened()
        name = options.account or accounts.usual()
        account = accounts.known().accounts.get(name or "")
        if name is None or account is None:
            problem = "no Google account is logged in" if name is None else f"no account {name!r}"
            raise CliError(problem, error_class=ToolErrorClass.NOT_FOUND, reason="no_account")
        revoked = True
        try:
            asyncio.run(oauth.revoke(endpoints(table), account.refresh_token))
        except ToolError as error:
            revoked = False
            say(f"callgate: {error.message}")
        accounts.forget(name)
    if options.json:
        print_json({"account": name, "forgotten": True, "revoked": revoked})
        return OK
    say(f"The account {name} is logged out.")
    if not revoked:
        say("hint: https://myaccount.google.com/permissions revokes the permission at Google.")
    return OK


def _shorts(scopes: tuple[str, ...]) -> list[str]:
    """Return the scopes that tools request."""
    return sorted(short(each) for each in scopes if each.startswith(SCOPE))


def _opened() -> tuple[str, GoogleTable, GoogleAccounts]:
    home, table = read_settings("google")
    make_private_directory(home)
    return home, table, GoogleAccounts(home, table)


@contextmanager
def _explained() -> Iterator[None]:
    """Report problems with settings, accounts and Google as errors of the command."""
    try:
        yield
    except ToolError as error:
        raise CliError(
            error.message, error_class=error.error_class, reason=error.reason or "google"
        ) from None
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    except ValueError as error:
        raise CliError(str(error)) from None
