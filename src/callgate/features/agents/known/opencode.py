"""opencode: callgate's plugin submits each call, and throws unless the answer is `allow`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from callgate.features.agents.known.values import (
    KEY,
    AddedHooks,
    Agent,
    AgentHome,
    Dialect,
    Entry,
    HookFile,
    Hooks,
    Login,
    ScriptedRun,
    Switches,
    decision_deny,
    quoted,
    tool_rows,
)

_PLUGIN = """\
// callgate's hook for opencode. Made by callgate hook install; callgate hook remove removes it.
// A plugin that fails to load is skipped without a word: it imports nothing that may be missing.
import {{ spawn }} from "node:child_process"

const HOOK = {hook}
const LIMIT_MS = {limit}
const QUICK_MS = 8000

const ask = (phase, event, limit = LIMIT_MS) => new Promise((resolve, reject) => {{
  const child = spawn(HOOK, [phase], {{ stdio: ["pipe", "pipe", "ignore"] }})
  const timer = setTimeout(() => child.kill("SIGKILL"), limit)
  let answer = ""
  child.stdout.setEncoding("utf8")
  child.stdout.on("data", (piece) => {{ answer += piece }})
  child.on("error", reject)
  child.stdin.on("error", () => {{}})
  child.on("close", () => {{ clearTimeout(timer); resolve(answer) }})
  child.stdin.end(JSON.stringify(event))
}})

export const Callgate = async ({{ client, directory }}) => {{
  const roots = new Map()
  const commands = new Map()
  const late = () => new Promise((_, reject) => setTimeout(reject, QUICK_MS).unref())

  // The conversation with the user: a sub-agent has a session below it. undefined: unknown.
  const rootOf = async (id) => {{
    if (roots.has(id)) return roots.get(id)
    let root = id
    for (let depth = 0; depth < 8; depth += 1) {{
      let found
      try {{
        found = (await Promise.race([client.session.get({{ path: {{ id: root }} }}), late()]))?.data
      }} catch (error) {{}}
      if (found?.id !== root) return undefined
      if (!found.parentID) break
      root = found.parentID
    }}
    if (roots.size > 1000) roots.clear()
    roots.set(id, root)
    return root
  }}

  return {{
  // The text of a command may come from the repository: the user wrote only its name and arguments.
  "command.execute.before": async (input) => {{
    commands.set(input.sessionID, "/" + input.command + " " + (input.arguments ?? ""))
  }},
  "chat.message": async (input, output) => {{
    try {{
      const typed = commands.get(input.sessionID)
      commands.delete(input.sessionID)
      if ((await rootOf(input.sessionID)) !== input.sessionID) return
      const texts = (output?.parts ?? []).filter((part) => part?.type === "text")
      const written = texts.filter((part) => !part.synthetic)
      await ask("prompt", {{
        hook_event_name: "chat.message", session_id: input.sessionID, cwd: directory,
        prompt: typed ?? written.map((part) => part.text).join("\\n"),
      }}, QUICK_MS)
    }} catch (error) {{}}
  }},
  "tool.execute.before": async (input, output) => {{
    let verdict
    try {{
      verdict = JSON.parse(await ask("pre", {{
        hook_event_name: "tool.execute.before", cwd: directory,
        session_id: (await rootOf(input.sessionID)) ?? input.sessionID,
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
        hook_event_name: "tool.execute.after", cwd: directory,
        session_id: (await rootOf(input.sessionID)) ?? input.sessionID,
        tool_name: input.tool, tool_input: input.args ?? {{}}, tool_call_id: input.callID,
        tool_response: String(output?.output ?? "").slice(0, 65536),
      }})
    }} catch (error) {{}}
  }},
  }}
}}
"""


def _program(entry: Entry) -> str:
    limit, silent = entry.seconds * 1000, quoted(entry.failure)
    return _PLUGIN.format(hook=quoted(entry.script), limit=limit, silent=silent)


def _scripted_run(home: str, url: str, prompt: str) -> ScriptedRun:
    model = {"name": KEY, "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    package = "@ai-sdk/openai-compatible"
    provider = {"npm": package, "name": KEY, "options": options, "models": {KEY: model}}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"{KEY}/{KEY}",
        "small_model": f"{KEY}/{KEY}",
        "permission": {"bash": "allow", "edit": "allow"},
        "provider": {KEY: provider},
    }
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return ScriptedRun(
        options=("run", prompt),
        env={
            **{f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in ("DATA", "CACHE", "STATE")},
            **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        },
        packages=".config/opencode",  # otherwise it installs them first, which takes a minute
    )


def _used_directories(environ: Mapping[str, str], user: Path) -> Iterator[Any]:
    """Yield the directories of the sessions in its database."""
    path = Path(environ.get("XDG_DATA_HOME") or user / ".local/share") / "opencode/opencode.db"
    if not path.is_file():
        return
    import apsw  # lazy: for opencode alone  # noqa: PLC0415

    try:
        database = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            rows = database.execute("SELECT DISTINCT directory FROM session LIMIT 10000")
            yield from (directory for (directory,) in rows)
        finally:
            database.close()
    except apsw.Error:
        return


# fmt: off
_SETTINGS = ("opencode.json", "opencode.jsonc", "config.json", "tui.json", "tui.jsonc",
             "AGENTS.md", "agent/", "agents/", "command/", "commands/", "mode/", "modes/",
             "plugin/", "plugins/", "skill/", "skills/", "themes/", "tool/", "tools/")
# fmt: on

_TOOLS = """
bash              shell   command workdir timeout description
write             write   filePath content
edit              edit    filePath oldString newString replaceAll
multiedit         edit    filePath edits
read              read    filePath offset limit
list              list    path ignore
glob              find    pattern path
grep              search  pattern path include
webfetch          fetch   url format timeout
apply_patch       patch   patchText
patch             patch   patchText
skill             none    name
task              none    description prompt subagent_type task_id command
question          none    questions
todowrite         none    todos
todoread          none
invalid           none    tool error
plan_enter        none
plan_exit         none
websearch         network query numResults livecrawl type contextMaxCharacters
"""

# fmt: off
AGENT = Agent(
    name="opencode",
    label="opencode",
    programs=("opencode", "opencode-ai",),
    hosts=("api.anthropic.com", "api.openai.com", "opencode.ai", "models.dev"),
    homes=(
        AgentHome(path=".config/opencode", variable="XDG_CONFIG_HOME", below="opencode",
                  configuration=_SETTINGS),
        AgentHome(variable="OPENCODE_CONFIG_DIR", configuration=_SETTINGS),
        AgentHome(
            path=".local/share/opencode",
            variable="XDG_DATA_HOME",
            below="opencode",
            variables={"OPENCODE_DB": "sandbox-state/opencode.db"},  # default: next to programs
            persistent=("log", "tool-output", "sandbox-state"),
            logins=(
                Login("auth.json", ("*.type", "*.refresh", "*.access", "*.expires", "*.key",
                                    "*.accountId"), types=("oauth", "api")),
                Login("mcp-auth.json", ("*.tokens.accessToken", "*.tokens.refreshToken",
                                        "*.tokens.expiresAt", "*.tokens.scope")),
            ),
            private=("snapshot", "storage", "worktree", "repos", "plans"),
            configuration=(
                "bin/",
            ),
        ),
        AgentHome(path=".local/state/opencode", variable="XDG_STATE_HOME", below="opencode",
                  persistent_files=("prompt-history.jsonl", "frecency.jsonl"),
                  private=("kv.json", "model.json", "locks")),
        AgentHome(path=".cache/opencode", variable="XDG_CACHE_HOME", below="opencode",
                  private=("models.json", "version"), configuration=("bin/",)),
    ),
    env=(
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_CONFIG_DIR",
        "OPENCODE_DB",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    ),
    used_directories=_used_directories,
    hooks=Hooks(
        user="~/.config/opencode/plugin/callgate.js",
        project=".opencode/plugin/callgate.js",
        protected=(
            "~/.config/opencode/opencode.json", "opencode.json",
            "~/.config/opencode/opencode.jsonc", "opencode.jsonc",
            "~/.config/opencode/plugin", "~/.config/opencode/plugins",
            ".opencode/plugin", ".opencode/plugins", ".opencode/opencode.json",
            ".opencode/opencode.jsonc",
        ),
        file=HookFile(
            form="program",
            events=(
                ("tool.execute.before", "pre"), ("tool.execute.after", "post"),
                ("chat.message", "prompt"),
            ),
            program=_program,
        ),
        dialect=Dialect(allow=lambda _: {"decision": "allow"}, deny=decision_deny),
        tools=tool_rows(_TOOLS),
        shell_call=lambda command: ("bash", {"command": command, "description": "try"}),
        fails_open=("A plugin that fails to load is silently skipped.",),
        verified="1.18.33, allow and deny",
        switches=Switches(variables=("OPENCODE_PURE",), options=(("--pure",),)),
        added=AddedHooks(
            programs=(".opencode/plugin", ".opencode/plugins", ".opencode/tool", ".opencode/tools")
        ),
        scripted_run=_scripted_run,
    ),
)
# fmt: on
