"""What agents keep in a home: files that they execute or read as settings, and data; and attacks."""

from __future__ import annotations

from pathlib import Path

EXECUTED = {
    "claude": """.claude/settings.json .claude/settings.local.json .claude/CLAUDE.md .claude/hooks/x.sh
        .claude/plugins/installed_plugins.json .claude/plugins/cache/x/hooks/hooks.json .claude/skills/x/SKILL.md
        .claude/agents/x.md .claude/commands/x.md .claude/output-styles/x.md .claude/workflows/x.js
        .claude/shell-snapshots/snapshot-bash.sh .claude/session-env/x/hook.sh .claude/backups/.claude.json.backup.1
        .claude/local/claude .claude/local/node_modules/.bin/claude .local/share/claude/versions/2/claude
        .claude/.claude.json .claude.json""",
    "codex": """.codex/config.toml .codex/hooks.json .codex/.env .codex/AGENTS.md .codex/rules/x.rules .codex/skills/x/SKILL.md
        .codex/skills/.system/x/scripts/run.py .codex/plugins/x/plugin.json .codex/prompts/x.md .codex/bin/rg
        .codex/shell_snapshots/x.sh .codex/tmp/arg0/codex-x/apply_patch .codex/.tmp/plugins/x .codex/work.config.toml
        .codex/packages/x/codex .codex/models_cache.json .codex/unheard-of/run.sh""",
    "gemini": """.gemini/settings.json .gemini/.env .gemini/GEMINI.md .gemini/trustedFolders.json .gemini/extensions/x/gemini-extension.json
        .gemini/commands/x.toml .gemini/skills/x/SKILL.md .gemini/policies/x.toml .gemini/agents/x.md .gemini/tmp/bin/rg
        .gemini/history/x/.git/config .gemini/mcp-oauth-tokens.json .gemini/system.md""",
    "cursor-agent": """.cursor/hooks.json .cursor/mcp.json .cursor/cli-config.json .cursor/plugins/x.json .cursor/skills/x/SKILL.md
        .cursor/rules/x.mdc .cursor/extensions/x/main.js .local/share/cursor-agent/versions/2/cursor-agent""",
    "opencode": """.config/opencode/opencode.json .config/opencode/opencode.jsonc .config/opencode/plugin/x.js .config/opencode/plugins/x.js
        .config/opencode/tool/x.ts .config/opencode/tools/x.ts .config/opencode/agent/x.md .config/opencode/command/x.md
        .config/opencode/skill/x/SKILL.md .config/opencode/node_modules/x/index.js .config/opencode/package.json
        .local/share/opencode/bin/rg .local/share/opencode/snapshot/x/config .cache/opencode/node_modules/x/index.js
        .cache/opencode/bin/server .cache/opencode/models.json""",
    "qwen": """.qwen/settings.json .qwen/.env .qwen/QWEN.md .qwen/extensions/x/qwen-extension.json .qwen/extension-store/state.json
        .qwen/commands/x.toml .qwen/skills/x/SKILL.md .qwen/agents/x.md .qwen/tmp/bin/rg .qwen/bin/rg .qwen/trustedFolders.json""",
    "vibe": """.vibe/config.toml .vibe/hooks.toml .vibe/.env .vibe/trusted_folders.toml .vibe/tools/x.py .vibe/skills/x/SKILL.md
        .vibe/agents/x.toml .vibe/prompts/x.md .vibe/plugins/x.json .vibe/logs/session/plugins/packages/x/plugin.json""",
    "kimi": """.kimi-code/config.toml .kimi-code/mcp.json .kimi-code/.env .kimi-code/plugins/x.json .kimi-code/skills/x/SKILL.md
        .kimi-code/agents/x.yaml .kimi-code/bin/rg .kimi-code/updates/kimi .kimi-code/cache/x.js""",
    "copilot": """.copilot/settings.json .copilot/mcp-config.json .copilot/lsp-config.json .copilot/hooks/callgate.json
        .copilot/hooks/x.json .copilot/agents/x.md .copilot/skills/x/SKILL.md .copilot/extensions/x/extension.mjs
        .copilot/installed-plugins/x/hooks.json .copilot/copilot-instructions.md .copilot/pkg/universal/2/index.js
        .cache/copilot/pkg/linux-x64/2/index.js""",
    "cline": """.cline/data/settings/rules/x.md .cline/data/settings/cline_mcp_settings.json .cline/data/globalState.json
        Documents/Cline/Hooks/PreToolUse Documents/Cline/Hooks/TaskStart Documents/Cline/Rules/x.md""",
    "goose": """.config/goose/config.yaml .config/goose/secrets.yaml .config/goose/permission.yaml .config/goose/recipes/x.yaml
        .local/share/goose/bin/x""",
}  # fmt: skip
"""What each agent executes, or reads as its settings, when it starts the next time."""
DATA = {
    "claude": (".claude/projects/-work/x.jsonl", ".claude/history.jsonl"),
    "codex": (".codex/sessions/2026/x.jsonl", ".codex/history.jsonl"),
    "gemini": (".gemini/tmp/work/chats/x.json",),
    "cursor-agent": (".cursor/chats/x",),
    "opencode": (".local/share/opencode/log/x", ".local/share/opencode/sandbox-state/opencode.db"),
    "qwen": (".qwen/projects/-work/x.jsonl",),
    "vibe": (".vibe/logs/session/unified/x",),
    "kimi": (".kimi-code/sessions/x/wire.jsonl", ".kimi-code/session_index.jsonl"),
    "copilot": (".copilot/session-state/x/events.jsonl", ".copilot/logs/x.log", ".copilot/session-store.db"),
    "cline": (".cline/data/sessions/x.db", ".cline/data/logs/hub-daemon.log"),
    "goose": (".local/share/goose/sessions/x", ".local/state/goose/logs/x"),
}
"""Sessions and logs."""


PERSISTENT = {
    "claude": (".claude/projects/", ".claude/history.jsonl", ".claude/debug/", ".claude/todos/", ".claude/tasks/"),
    "codex": (".codex/sessions/", ".codex/sandbox-state/", ".codex/log/", ".codex/history.jsonl"),
    "gemini": (".gemini/tmp/",),
    "qwen": (".qwen/projects/", ".qwen/tmp/", ".qwen/usage", ".qwen/debug/", ".qwen/logs/"),
    "kimi": (".kimi-code/sessions/", ".kimi-code/session_index.jsonl", ".kimi-code/logs/", ".kimi-code/cache/query-store/",
             ".kimi-code/user-history/"),
    "copilot": (".copilot/session-state/", ".copilot/session-store.db", ".copilot/logs/"),
}  # fmt: skip
"""Where a real run leaves files."""


def files(root: Path) -> dict[str, str]:
    """Every file and link of a home with its content, without callgate's own."""
    found = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    found = [path for path in found if path.relative_to(root).parts[0] != ".callgate"]
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text(errors="replace")
        for path in found
    }


def attack(paths: list[Path]) -> str:
    """A script that tries to change each file, to replace what it is in, and to lead it elsewhere."""
    lines = ["exec 2>/dev/null"]
    for path in paths:
        above = path.parent
        lines += [
            f"mkdir -p {above}; echo evil > {path}; echo evil >> {path}; chmod 777 {path}",
            f"echo evil > {path}.new; mv {path}.new {path}; rm -f {path}; ln -s /etc/passwd {path}",
            # A home in /tmp is the run's own: there, it could be renamed.
            f"[ {above} = ~ -o -L {above} ] || mv {above} {above}.away; mkdir -p {above}; echo evil > {path}",
        ]
    return "\n".join(lines)
