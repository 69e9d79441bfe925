"""What to paste into an editor's settings, so that it starts `callgate acp`."""

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

Printed = Callable[[str, list[str]], str]


def show(options: Any) -> int:
    hint, text = _EDITORS[options.print_config]
    say(hint)
    print(text(*_command(options)))
    return OK


def _command(options: Any) -> tuple[str, list[str]]:
    """What an editor starts, and the words behind it: this callgate with its options, and with
    its home where that is not the usual one."""
    program, words = _callgate(options)
    home = Home.from_environment().path
    if home == os.path.expanduser("~/.callgate"):
        return program, words
    return shutil.which("env") or "env", [f"CALLGATE_HOME={home}", program, *words]


def _callgate(options: Any) -> tuple[str, list[str]]:
    chosen = ["acp"]
    for flag, value in (("--model", model_of(options)), ("--mode", options.mode)):
        if value:
            chosen += [flag, value]
    for flag, given in (("-vv", options.vv), ("-v", options.v), ("--unstable", options.unstable)):
        if given and not (flag == "-v" and options.vv):
            chosen.append(flag)
    program, *words = this_program()
    return program, [*words, *chosen]


def _zed(command: str, args: list[str]) -> str:
    agent = {"type": "custom", "command": command, "args": args, "env": {}}
    return _json({"agent_servers": {"callgate": agent}})


def _jetbrains(command: str, args: list[str]) -> str:
    return _json({"agent_servers": {"callgate": {"command": command, "args": args, "env": {}}}})


def _vscode(command: str, args: list[str]) -> str:
    return _json({"acp.agents": {"callgate": {"command": command, "args": args, "env": {}}}})


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _neovim(command: str, args: list[str]) -> str:
    words = ", ".join(_quoted(word) for word in (command, *args))
    behind = ", ".join(_quoted(word) for word in args)
    return f"""\
-- CodeCompanion
require("codecompanion").setup({{
  adapters = {{
    acp = {{
      callgate = function()
        return require("codecompanion.adapters").extend("opencode", {{
          name = "callgate",
          formatted_name = "callgate",
          commands = {{ default = {{ {words} }} }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = "callgate" }} }},
}})

-- or Avante
-- require("avante").setup({{
--   provider = "callgate",
--   acp_providers = {{
--     callgate = {{ command = {_quoted(command)}, args = {{ {behind} }} }},
--   }},
-- }})"""


def _emacs(command: str, args: list[str]) -> str:
    behind = " ".join(_quoted(word) for word in args)
    return f"""\
(with-eval-after-load 'agent-shell
  (add-to-list
   'agent-shell-agent-configs
   (agent-shell-make-agent-config
    :identifier 'callgate
    :mode-line-name "callgate"
    :buffer-name "callgate"
    :shell-prompt "callgate> "
    :shell-prompt-regexp "callgate> "
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
