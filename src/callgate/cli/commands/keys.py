"""`callgate keys`: the keys of models that we keep. No command prints one or takes it as a word."""

from __future__ import annotations

import getpass
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.visible import visible
from callgate.config import keys
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.core.errors import ToolErrorClass
from callgate.core.models import Key, ModelError
from callgate.models.make import USUAL_VARIABLES
from callgate.models.tables import ModelTable

_LONGEST = 64 * 1024
_PROVIDERS: Mapping[str, ModelTable] = {
    "anthropic": ModelTable(kind="anthropic"),
    "openai": ModelTable(kind="openai"),
}


def set(options: Namespace) -> int:
    name = _named(options, "set")
    refuse_within_a_call("callgate keys set")
    with explained():
        keys.check_name(name)
        keys.store_key(Home.from_environment(), name, Key(typed(name)))
    if options.json:
        print_json({"name": name, "stored": True})
    else:
        say(f"The key of {name} is stored.")
    return OK


def delete(options: Namespace) -> int:
    name = _named(options, "delete")
    refuse_within_a_call("callgate keys delete")
    with explained():
        deleted = keys.delete_key(Home.from_environment(), name)
    if options.json:
        print_json({"name": name, "deleted": deleted})
    else:
        say(f"The key of {name} is deleted." if deleted else f"No key of {name} is stored.")
    return OK if deleted else FAILED


def list(options: Namespace) -> int:
    if options.words:
        raise CliError("keys list takes no arguments")
    with explained():
        rows = _rows(Home.from_environment())
    if options.json:
        print_json(rows)
        return OK
    if not rows:
        print("No model needs a key, and none is stored.")
        say("hint: this lists models and providers, and where the key of each comes from.")
        say("hint: callgate keys set anthropic stores one; ANTHROPIC_API_KEY counts too.")
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{visible(row['name']):<{width}}  {visible(row['source'] or 'no key')}")
    return OK


def _rows(home: Home) -> Sequence[dict[str, Any]]:
    """Models of the settings, then other stored keys, then providers with a usual variable."""
    tables = load_user(home)[0].models
    named = {name: table for name, table in tables.items() if table.kind in USUAL_VARIABLES}
    rows = {name: keys.key_source(name, named[name], home, os.environ) for name in sorted(named)}
    for name in sorted(keys.stored_keys(home)):
        rows.setdefault(name, f"stored {name}")
    for provider, table in _PROVIDERS.items():
        source = keys.key_source(f"{provider}/", table, home, os.environ)
        if source is not None:
            rows.setdefault(provider, source)
    return [{"name": name, "source": source} for name, source in rows.items()]


def _named(options: Namespace, command: str) -> str:
    if len(options.words) != 1:
        raise CliError(
            f"keys {command} takes one name; the key itself is typed or comes on stdin",
            hint=f"See callgate keys {command} --help.",
        )
    return str(options.words[0])


def typed(name: str) -> str:
    """The key of a model, from the keyboard or from stdin."""
    if is_terminal(sys.stdin):
        return getpass.getpass(f"Key of {name} (it is not shown): ")
    return sys.stdin.buffer.read(_LONGEST).decode("utf-8", "replace")


@contextmanager
def explained() -> Iterator[None]:
    """Problems with keys and settings, in a command's words."""
    try:
        yield
    except ModelError as error:
        raise CliError(
            error.message, error_class=ToolErrorClass.EXECUTION_ERROR, reason="key"
        ) from None
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from None
    except ValueError as error:
        raise CliError(str(error)) from None
