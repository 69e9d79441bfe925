from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.frameworks import FRAMEWORKS, installed
from tests.features.agents.frameworks.claude_server import serving

EXAMPLES = Path(__file__).parents[4] / "examples" / "frameworks"
PRINTED = {
    "pydantic-ai": ["send_mail {'subject': None, 'to': 'ann@example.org'}? yes", "sent to ann@example.org"],
    "openai-agents": [
        "send_mail {'subject': None, 'to': 'ann@example.org'}? yes, but to bob@example.org",
        "sent to bob@example.org",
    ],
    "langchain": ["send_mail {'to': 'ann@example.org'}? no", "Not before noon."],
    "inspect-ai": ["Mode read does not allow effect network (built-in default)."],
    "agno": ["send_mail {'to': 'ann@example.org'}? yes", "sent to ann@example.org"],
    "claude-agent-sdk": ["Bash echo hello? yes", "done"],
    "fastmcp": ["send_mail {'to': 'ann@example.org'}? yes", "sent to ann@example.org"],
}


def test_every_framework_has_an_example() -> None:
    there = {each.stem.removeprefix("with_").replace("_", "-") for each in EXAMPLES.glob("*.py")}
    assert there == FRAMEWORKS.keys()


def test_the_lines_of_the_page_are_those_of_the_examples() -> None:
    page = (EXAMPLES.parents[1] / "docs/build/frameworks.md").read_text()
    examples = "\n".join(each.read_text() for each in EXAMPLES.glob("*.py"))
    code = {line.partition("  # (")[0].strip() for line in examples.splitlines()}
    sections = page.split("\n## ")
    shown = [
        re.findall("```python no-test\n(.*?)```", each, re.DOTALL) for each in sections if "effects=lambda" not in each
    ]
    lines = {line for blocks in shown for block in blocks for line in block.splitlines()}
    assert len(lines) >= 9
    assert lines <= code


@pytest.mark.parametrize("framework", [each for each in PRINTED if installed(each)])
def test_the_example_of_a_framework_runs(framework: str, tmp_path: Path) -> None:
    example = EXAMPLES / f"with_{framework.replace('-', '_')}.py"
    with serving("Bash", {"command": "echo hello", "description": "Say hello"}) as model:
        environment = {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model.server_port}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        done = subprocess.run(
            [sys.executable, str(example)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    for line in PRINTED[framework]:
        assert line in done.stdout
