"""What an agent's settings call: a shell script around `hook_client`, and its plugin for opencode.

Two nets, each of which turns a failure into the agent's own refusal:

    settings   $(HOOK pre) || printf REFUSAL   the script is gone, was killed, or failed half-way
    script     answer=$(timeout ... client)    the client crashed, hung, or printed half an answer

After a call nothing can be refused: a failure there prints nothing.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import shutil
import sys

from callgate.cli.hooks import hook_client
from callgate.config.agents.settings_files import DIRECTORY, hook_directory, token_file
from callgate.core.directories import make_private_directory, write_private
from callgate.protocol.hooks import dialects

CLIENT_S, SCRIPT_S, AGENT_S = 5, 10, 15
"""How long the client, the script and the agent wait longer than a person has for an answer: each
gives up before the next would."""
SILENT = "callgate gave no answer, so nothing was run: see callgate hook status."

_SCRIPT = """\
#!/bin/sh
# callgate's hook for {agent}. Made by callgate hook install; callgate hook remove removes it.
phase=${{1:-pre}}
answer=$({timeout} {python} -I -S {client} {agent} "$phase" {directory} {template} {client_s} \\
  2>/dev/null
  printf 'rc%s' "$?")
case $answer in
*rc0) printf '%s' "${{answer%rc0}}" ;;
*) [ "$phase" = post ] || printf '%s' {refusal} ;;
esac
exit 0
"""
_RUN = """\
#!/bin/sh
# Runs the command of one ticket in callgate's sandbox; each ticket counts once.
exec {python} -I -S {client} {agent} run {directory} "$1"
"""
_PLUGIN = """\
// callgate's hook for opencode. Made by callgate hook install; callgate hook remove removes it.
// A plugin that fails to load is skipped without a word: it imports nothing that may be missing.
import {{ spawn }} from "node:child_process"

const HOOK = {hook}
const LIMIT_MS = {limit}

const ask = (phase, event) => new Promise((resolve, reject) => {{
  const child = spawn(HOOK, [phase], {{ stdio: ["pipe", "pipe", "ignore"] }})
  const timer = setTimeout(() => child.kill("SIGKILL"), LIMIT_MS)
  let answer = ""
  child.stdout.setEncoding("utf8")
  child.stdout.on("data", (piece) => {{ answer += piece }})
  child.on("error", reject)
  child.stdin.on("error", () => {{}})
  child.on("close", () => {{ clearTimeout(timer); resolve(answer) }})
  child.stdin.end(JSON.stringify(event))
}})

export const Callgate = async ({{ directory }}) => ({{
  "tool.execute.before": async (input, output) => {{
    let verdict
    try {{
      verdict = JSON.parse(await ask("pre", {{
        hook_event_name: "tool.execute.before", session_id: input.sessionID, cwd: directory,
        tool_name: input.tool, tool_input: output.args ?? {{}}, tool_call_id: input.callID,
      }}))
    }} catch (error) {{
      throw new Error({silent})
    }}
    if (verdict?.decision !== "allow") throw new Error(verdict?.reason ?? {silent})
  }},
  "tool.execute.after": async (input, output) => {{
    try {{
      await ask("post", {{
        hook_event_name: "tool.execute.after", session_id: input.sessionID, cwd: directory,
        tool_name: input.tool, tool_input: input.args ?? {{}}, tool_call_id: input.callID,
        tool_response: String(output?.output ?? "").slice(0, 4000),
      }})
    }} catch (error) {{}}
  }},
}})
"""


def write_scripts(home: str, agent: str, wait_s: float, *, new_token: bool = False) -> None:
    """Write the files of an agent's hook into our home. Idempotent: an existing token stays,
    unless `new_token` is set because other processes may know it."""
    directory = hook_directory(home, agent)
    make_private_directory(directory)
    token = token_file(home, agent)
    if new_token or not os.path.exists(token):
        write_private(token, secrets.token_urlsafe(32) + "\n")
    for name, text in script_texts(home, agent, wait_s).items():
        path = os.path.join(directory, name)
        write_private(path, text)
        os.chmod(path, 0o700)


def script_texts(home: str, agent: str, wait_s: float) -> dict[str, str]:
    """The scripts of an agent's hook, by their names."""
    values = {
        "agent": agent,
        "python": shlex.quote(_python()),
        "client": shlex.quote(os.path.abspath(hook_client.__file__)),
        "directory": shlex.quote(os.path.join(home, DIRECTORY)),
        "template": shlex.quote(_template(agent)),
        "refusal": shlex.quote(_silent(agent)),
        "timeout": _timeout(math.ceil(wait_s) + SCRIPT_S),
        "client_s": math.ceil(wait_s) + CLIENT_S,
    }
    return {"hook": _SCRIPT.format(**values), "run": _RUN.format(**values)}


def _timeout(seconds: int) -> str:
    """The program that ends a client that hangs, by its path: settings of a repository may set
    PATH for the hook. Empty where there is none."""
    found = shutil.which("timeout")
    return "" if found is None else f"{shlex.quote(os.path.realpath(found))} -s KILL {seconds}"


def _python() -> str:
    """Without the site of a virtual environment, whose link to it could be another's."""
    return os.path.realpath(sys.executable)


def _template(agent: str) -> str:
    return dialects.refusal(agent, hook_client.REASON).decode()


def _silent(agent: str) -> str:
    return dialects.refusal(agent, SILENT).decode()


def command(home: str, agent: str, phase: str) -> str:
    """What an agent's settings run."""
    hook = shlex.quote(os.path.join(hook_directory(home, agent), "hook"))
    if phase == "post":
        return f"{hook} post || :"
    refusal = shlex.quote(_silent(agent))
    return f"a=$({hook} pre) && printf '%s' \"$a\" || printf '%s' {refusal}"


def plugin(home: str, wait_s: float) -> str:
    """The plugin of opencode."""
    hook = os.path.join(hook_directory(home, "opencode"), "hook")
    return _PLUGIN.format(
        hook=json.dumps(hook), limit=(math.ceil(wait_s) + AGENT_S) * 1000, silent=json.dumps(SILENT)
    )
