"""Names of files that agents read as instructions, or that common tools run: control files.

Unlike protected files (`protected`), people and agents edit them every day. So file tools may write
them; the guard asks only if the text was copied from untrusted content.
"""

from __future__ import annotations

import re
from functools import lru_cache

from callgate.workspace.protected import is_pipeline

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
_REQUIREMENTS = re.compile(r"(?:requirements|constraints)[^/]*\.(?:txt|in)\Z")
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
