"""`callgate acp --setup`: asks at a terminal for what an agent lacks, a model and its key.

Editors start it for people who have neither. What is there already is left as it is.
"""

from __future__ import annotations

import os
import sys

from callgate.cli.commands.keys import explained, typed
from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.setup.model_choice import choose_model
from callgate.cli.ui.terminal import is_terminal, say
from callgate.config import keys
from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.core.models import Key
from callgate.models.make import USUAL_VARIABLES, find_table, key_name

_EXAMPLE = "anthropic/claude-sonnet-4-5"


def set_up() -> int:
    refuse_within_a_call("callgate acp --setup")
    if not is_terminal(sys.stdin):
        raise CliError(
            "--setup asks at a terminal, and there is none",
            hint="Name a model in the settings, and use callgate keys set.",
        )
    home = Home.from_environment()
    with explained():
        settings = load_user(home)[0]
        chosen = settings.model or _read_answer(f"Model (such as {_EXAMPLE}): ")
        name, table = find_table(chosen, settings.models, os.environ)
        if settings.model is None:
            choose_model(home, name)
        needs_key = table.kind in USUAL_VARIABLES and table.base_url is None
        if needs_key and keys.key_source(name, table, home, os.environ) is None:
            stored = key_name(name, table)
            keys.store_key(home, stored, Key(typed(stored)))
    say(f"callgate works with {name}.")
    return OK


def _read_answer(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not answer or not answer.isprintable():
        raise CliError("no model was named")
    return answer
