"""Names of protected files and of control files in a workspace.

Writing them needs an explicit rule, even for missing files, at any depth. Names are compared after
folding (case, Unicode compatibility, invisible characters), because some file systems fold them:
refusing a harmless look-alike costs nothing.

Names of files that agents read as instructions, or that common tools run: control files.

Unlike protected files (`protected`), people and agents edit them every day. So file tools may write
them; the guard asks only if the text was copied from untrusted content.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

_REPOSITORIES = {
    ".git",  # hooks, config (a file in worktrees and submodules)
    "git~1",  # .git by its short name on FAT and NTFS
    ".gitmodules",
    ".gitconfig",
    ".hg",
    ".svn",
    ".bzr",
    ".jj",
}
_COMMIT_HOOKS = {
    ".githooks",
    ".husky",
    ".lefthook",
    *(
        f"{dot}lefthook{local}.{ending}"
        for dot in ("", ".")
        for local in ("", "-local")
        for ending in ("yml", "yaml", "toml", "json", "jsonc")
    ),
    ".overcommit.yml",
    ".pre-commit-config.yaml",
    "prek.toml",
}
_SHELLS = {
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zprofile",
    ".zshenv",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".mkshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".logout",
    "config.fish",
    ".envrc",  # direnv, on entering the directory
    ".rvmrc",  # RVM, likewise
    ".autoenv.zsh",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".pam_environment",
    ".tmux.conf",
    ".screenrc",
    ".ssh",
}
_INTERPRETERS = {
    ".gdbinit",
    ".lldbinit",
    ".pdbrc",
    ".irbrc",
    ".pryrc",
    ".rdbgrc",
    ".byebugrc",
    ".rprofile",
    ".octaverc",
    ".ghci",
    ".ocamlinit",
    ".iex.exs",
    ".erlang",
    ".perldb",
    "sitecustomize.py",
    "usercustomize.py",
}
_EDITORS = {
    ".vscode",  # tasks, launch, settings: commands run when the folder opens
    ".idea",
    ".fleet",
    ".zed",
    ".devcontainer",  # initializeCommand runs on the host
    ".devcontainer.json",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".helix",
    ".theia",
    ".exrc",
    ".vimrc",
    ".gvimrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
}
_AGENTS = {
    ".callgate",
    ".mcp.json",
    "mcp.json",
    ".claude",
    ".cline",
    ".cursor",
    ".codex",
    ".gemini",
    ".qwen",
    ".vibe",
    ".kimi-code",
    ".windsurf",
    ".continue",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".roo",
    ".kiro",
    ".amazonq",
    ".aider.conf.yml",
    ".copilot",
    ".factory",
    ".kimi",
    "crush.json",
    ".crush.json",
    ".kilocode",
    ".junie",
    ".augment",
    ".trae",
}
_PACKAGES = {
    ".npmrc",  # script-shell, git: programs that npm runs
    ".yarnrc",
    ".yarnrc.yml",
    ".pnpmfile.cjs",
    ".pnpmfile.mjs",
    "bunfig.toml",
    ".mise.toml",
    "mise.toml",
    ".mise.local.toml",
    "mise.local.toml",
    ".mise",
}
NAMES = frozenset().union(
    _REPOSITORIES, _COMMIT_HOOKS, _SHELLS, _INTERPRETERS, _EDITORS, _AGENTS, _PACKAGES
)
"""Lower case, at any depth. Files that only instruct a model (`AGENTS.md`, `CLAUDE.md`) are not
listed: a prompt executes nothing.
"""
PAIRS = frozenset(
    {
        ".cargo/config",
        ".cargo/config.toml",
        ".config/autostart",
        ".config/environment.d",
        ".config/fish",
        ".config/git",
        ".config/nvim",
        ".config/pip",  # where packages come from, in a workspace that is a home
        ".config/uv",
        ".pip/pip.conf",
        ".config/mise",
        ".config/mise.toml",
        ".config/lefthook.yml",
        "mise/config.toml",
        ".clinerules/hooks",
        ".config/systemd",
        ".github/agents",  # of Copilot, as the next four
        ".github/copilot",
        ".github/extensions",
        ".github/hooks",
        ".github/lsp.json",
        "library/launchagents",
    }
)
SUFFIXES = (".code-workspace", ".sublime-project")
EXEMPT = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox", "__pycache__"})
"""Directories of installed packages. No program looks for these names in them, and packages
contain many of them."""
PIPELINES = frozenset({".gitlab-ci.yml"})
"""Executed by a server after a push, as is `.github/workflows`."""
ALLOWED = frozenset({".opencode/.gitignore"})
"""Files under a protected name that an agent creates at its start and needs. They execute nothing.
"""
_FIRSTS = frozenset(pair.partition("/")[0] for pair in PAIRS)


@lru_cache(maxsize=1024)  # a call checks the same path several times
def is_protected(relative_path: str) -> bool:
    """Whether file tools need an explicit rule to write a path in a workspace."""
    return runs_here(relative_path) or is_pipeline(relative_path)


def is_pipeline(relative_path: str) -> bool:
    """Whether a server executes a file after a push. Commands may write it, because version control
    does; the result names changes."""
    names = _folded(relative_path).split("/")
    if not PIPELINES.isdisjoint(names):
        return True
    return ".github" in names and (".github", "workflows") in pairwise(names)


def is_only_pipeline(relative_path: str) -> bool:
    """Whether the only reason to protect a file is a server that executes it after a push."""
    return is_pipeline(relative_path) and not runs_here(relative_path)


def runs_here(relative_path: str) -> bool:
    """Whether a program on this machine executes a file automatically: protected from commands."""
    path = _folded(relative_path)
    names = path.split("/")
    if not NAMES.isdisjoint(names) or path.endswith(SUFFIXES):
        return True
    if _FIRSTS.isdisjoint(names):
        return False
    return not PAIRS.isdisjoint("/".join(pair) for pair in pairwise(names))


def _folded(path: str) -> str:
    if path.isascii():
        folded = path.lower()
    else:
        visible = "".join(char for char in path if unicodedata.category(char) not in ("Cf", "Mn"))
        folded = unicodedata.normalize("NFKC", visible).casefold()
    if " /" in folded or "./" in folded or folded.endswith((" ", ".")):
        # Some systems ignore dots and spaces at the end of a name.
        return "/".join(name.rstrip(" .") or name for name in folded.split("/"))
    return folded


_NAMES = frozenset(
    """agents.md agent.md claude.md claude.local.md gemini.md qwen.md codex.md copilot.md memory.md
    skill.md soul.md conventions.md .cursorrules .windsurfrules .clinerules .roorules .goosehints
    .aider.conf.yml copilot-instructions.md llms.txt .mcp.json mcp.json conftest.py setup.py
    setup.cfg pyproject.toml tox.ini noxfile.py pytest.ini tasks.py fabfile.py manage.py
    sitecustomize.py usercustomize.py package.json package-lock.json yarn.lock pnpm-lock.yaml .npmrc
    .yarnrc .yarnrc.yml .pnpmfile.cjs bunfig.toml deno.json makefile gnumakefile justfile rakefile
    gemfile cargo.toml build.rs go.mod pom.xml build.gradle build.gradle.kts gradlew dockerfile
    containerfile docker-compose.yml docker-compose.yaml compose.yml compose.yaml vagrantfile
    jenkinsfile procfile taskfile.yml pip.conf .pypirc uv.toml environment.yml cmakelists.txt
    crontab .env""".split()  # noqa: SIM905
)
_DIRECTORIES = frozenset(
    """.cursor .claude .gemini .codex .agents .windsurf .clinerules .roo .continue .github .circleci
    .buildkite .woodpecker .drone skills memory memories .memory""".split()  # noqa: SIM905
)
_REQUIREMENTS = re.compile(
    r"(?:requirements|constraints)[^/]*\.(?:txt|in)\Z|(?:docker-)?compose[^/]*\.ya?ml\Z"
)
_SUFFIXES = (".mk", ".mdc", ".gradle", ".cmake", ".service", ".pth", ".config.js", ".config.ts")


@lru_cache(maxsize=1024)
def is_control_file(path: str) -> bool:
    """Whether an agent or a tool reads a file as instructions, or runs it later."""
    names = path.casefold().replace("\\", "/").split("/")
    last = names[-1]
    return (
        last in _NAMES
        or last.endswith(_SUFFIXES)
        or _REQUIREMENTS.match(last) is not None
        or not _DIRECTORIES.isdisjoint(names[:-1])
        or is_pipeline(path)
    )
