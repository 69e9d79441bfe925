"""What to paste into an editor's settings, so that it starts `callgate acp` or `acp-proxy`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from callgate.cli.errors import OK
from callgate.cli.executable import this_program
from callgate.cli.options import model_of
from callgate.cli.ui.terminal import say
from callgate.config.home import Home

Printed = Callable[[str, str, list[str]], str]
"""Of a name for the agent, the program and the words behind it."""


def show(options: Any) -> int:
    return show_command(options.print_config, "callgate", _acp_words(options))


def show_command(editor: str, name: str, words: list[str]) -> int:
    """Print the settings in which an editor starts this callgate with these words."""
    hint, text = _EDITORS[editor]
    say(hint)
    print(text(name, *_command(words)))
    return OK


def _command(chosen: list[str]) -> tuple[str, list[str]]:
    """What an editor starts, and the words behind it: this callgate with its options, and with
    its home where that is not the usual one."""
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
    """As Lua and Emacs Lisp both read it."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{plain}"'


_EDITORS: Mapping[str, tuple[str, Printed]] = {
    "zed": ("Into ~/.config/zed/settings.json (zed: open settings file):", _zed),
    "neovim": ("Into the configuration of your plugin:", _neovim),
    "jetbrains": ("Into ~/.jetbrains/acp.json (AI Chat: Add Custom Agent):", _jetbrains),
    "emacs": ("Into your init file, for agent-shell:", _emacs),
    "vscode": ("Into settings.json, for the extension ACP Client:", _vscode),
}
"""Where it goes, which is said on stderr, and what is printed."""
