"""Pin agent frameworks in tests/features/agents/frameworks/requirements.txt, or run their tests.

    python3.11 -m scripts.frameworks pin FILE     (`make framework-pins` prepares and calls it)
    python -m scripts.frameworks run [ARGUMENTS]  (`make frameworks` does; the rest goes to pytest)

pip resolves the extras of pyproject.toml that are frameworks within constraints.txt, as for the
benchmarks (`scripts.peers`). Missing frameworks are reported as not tested.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

FRAMEWORKS = {
    "pydantic-ai": "pydantic_ai",
    "openai-agents": "agents",
    "langchain": "langchain",
    "inspect-ai": "inspect_ai",
    "agno": "agno",
    "claude-agent-sdk": "claude_agent_sdk",
    "fastmcp": "fastmcp",
}
"""callgate's extra and the import name of each framework."""
HEAD = """\
# The agent frameworks whose adapters `make frameworks` tests: their versions and the hashes of
# their files. Written by `make framework-pins`; do not edit. It goes on top of constraints.txt:
#     pip install --no-deps --require-hashes -r tests/features/agents/frameworks/requirements.txt
"""
RUNNERS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-rerunfailures", "pytest-timeout")
ROOT = Path(__file__).resolve().parent.parent


def pin(target: Path) -> None:
    import tomllib
    from concurrent.futures import ThreadPoolExecutor

    from scripts.constraints import file_hashes, index_url, resolve, sections
    from scripts.peers import LIFTED, running_pins

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = [*RUNNERS, *(each for name in FRAMEWORKS for each in extras[name])]
    ours = running_pins((ROOT / "constraints.txt").read_text())
    limits = {name: version for name, version in ours.items() if name not in LIFTED}
    found = resolve(wanted, limits)
    pins = {name: version for name, version in found.items() if name not in ours}
    index = index_url()
    with ThreadPoolExecutor(8) as pool:
        hashes = dict(
            zip(pins, pool.map(lambda each: file_hashes(index, *each), pins.items()), strict=True)
        )
    target.write_text(HEAD + "".join(sections([("the adapters of frameworks", pins)], hashes)))


def installed(framework: str) -> bool:
    return find_spec(FRAMEWORKS[framework]) is not None


def run(arguments: list[str]) -> int:
    tested = [name for name in FRAMEWORKS if installed(name)]
    tests = [
        f"tests/features/agents/frameworks/test_{name.replace('-', '_')}.py" for name in tested
    ]
    tests.append("tests/features/agents/frameworks/test_examples.py")
    # Warnings of frameworks do not fail tests.
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=default",
    ]
    code = subprocess.run([*pytest, "--disable-warnings", *arguments, *tests], cwd=ROOT).returncode
    for name in FRAMEWORKS.keys() - tested:
        print(f"Not tested, because it is not installed: {name}")
    return code


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    sys.exit(run(rest) if command == "run" else pin(Path(rest[0])))
