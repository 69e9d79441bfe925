"""`callgate acp --print-config` and `--setup`: an editor's settings, and a model with its key."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from callgate.cli.errors import OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.options import model_of
from callgate.cli.programs import this_program
from callgate.cli.ui.terminal import is_terminal, say
from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.core.models import Key
from callgate.features.chat.commands.keys import choose_model, explained, typed
from callgate.features.chat.models import make
from callgate.features.chat.models.make import USUAL_VARIABLES, find_table, key_name
from callgate.features.chat.settings import ChatSettings

Printed = Callable[[str, str, list[str]], str]
"""Renders settings from a name for the agent, the program and its arguments."""


def show(options: Any) -> int:
    return show_command(options.print_config, "callgate", _acp_words(options))


def show_command(editor: str, name: str, words: list[str]) -> int:
    """Print the editor settings that start this callgate with these arguments."""
    hint, text = _EDITORS[editor]
    say(hint)
    print(text(name, *_command(words)))
    return OK


def _command(chosen: list[str]) -> tuple[str, list[str]]:
    """Return the program and its arguments: this callgate with its options, and with its home if
    that is not the default.
    """
    program, *words = this_program()
    words += chosen
    home = Home.from_environment().path
    if home == os.path.expanduser("~/.callgate"):
        return program, words
    return shutil.which("env") or "env", [f"CALLGATE_HOME={home}", program, *words]


def _acp_words(options: Any) -> list[str]:
    chosen = ["acp"]
    for flag, value in (("--model", model_of(options)), ("--mode", options.mode)):
        if value:
            chosen += [flag, value]
    for flag, given in (("-vv", options.vv), ("-v", options.v), ("--unstable", options.unstable)):
        if given and not (flag == "-v" and options.vv):
            chosen.append(flag)
    return chosen


def _zed(name: str, command: str, args: list[str]) -> str:
    agent = {"type": "custom", "command": command, "args": args, "env": {}}
    return _json({"agent_servers": {name: agent}})


def _jetbrains(name: str, command: str, args: list[str]) -> str:
    return _json({"agent_servers": {name: {"command": command, "args": args, "env": {}}}})


def _vscode(name: str, command: str, args: list[str]) -> str:
    return _json({"acp.agents": {name: {"command": command, "args": args, "env": {}}}})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _neovim(name: str, command: str, args: list[str]) -> str:
    words = ", ".join(_quoted(word) for word in (command, *args))
    behind = ", ".join(_quoted(word) for word in args)
    return f"""\
-- CodeCompanion
require("codecompanion").setup({{
  adapters = {{
    acp = {{
      {name} = function()
        return require("codecompanion.adapters").extend("opencode", {{
          name = "{name}",
          formatted_name = "{name}",
          commands = {{ default = {{ {words} }} }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = "{name}" }} }},
}})

-- or Avante
-- require("avante").setup({{
--   provider = "{name}",
--   acp_providers = {{
--     {name} = {{ command = {_quoted(command)}, args = {{ {behind} }} }},
--   }},
-- }})"""


def _emacs(name: str, command: str, args: list[str]) -> str:
    behind = " ".join(_quoted(word) for word in args)
    return f"""\
(with-eval-after-load 'agent-shell
  (add-to-list
   'agent-shell-agent-configs
   (agent-shell-make-agent-config
    :identifier '{name}
    :mode-line-name "{name}"
    :buffer-name "{name}"
    :shell-prompt "{name}> "
    :shell-prompt-regexp "{name}> "
    :needs-authentication nil
    :client-maker (lambda (buffer)
                    (agent-shell--make-acp-client
                     :command {_quoted(command)}
                     :command-params '({behind})
                     :context-buffer buffer)))))"""


def _quoted(text: str) -> str:
    """Quote a string for Lua and Emacs Lisp."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'


_EDITORS: Mapping[str, tuple[str, Printed]] = {
    "zed": ("For ~/.config/zed/settings.json (zed: open settings file):", _zed),
    "neovim": ("For the configuration of your plugin:", _neovim),
    "jetbrains": ("For ~/.jetbrains/acp.json (AI Chat: Add Custom Agent):", _jetbrains),
    "emacs": ("For your init file, with agent-shell:", _emacs),
    "vscode": ("For settings.json, with the extension ACP Client:", _vscode),
}
"""The hint on stderr and the renderer of the settings, by editor."""


_EXAMPLE = "anthropic/claude-sonnet-4-5"


def set_up() -> int:
    refuse_within_a_call("callgate acp --setup")
    if not is_terminal(sys.stdin):
        raise CliError(
            "--setup needs a terminal",
            hint="Set a model in the settings, and use callgate keys set.",
        )
    home = Home.from_environment()
    with explained():
        settings = load_user(home)[0]
        chat = settings.of(ChatSettings)
        chosen = chat.model or _read_answer(f"Model (such as {_EXAMPLE}): ")
        name, table = find_table(chosen, chat.models, os.environ)
        if chat.model is None:
            choose_model(home, name)
        needs_key = table.kind in USUAL_VARIABLES and table.base_url is None
        if needs_key and make.key_source(name, table, home, os.environ) is None:
            stored = key_name(name, table)
            make.store_key(home, stored, Key(typed(stored)))
    say(f"callgate uses {name}.")
    return OK


def _read_answer(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not answer or not answer.isprintable():
        raise CliError("no model was entered")
    return answer
