"""The frameworks that adapters are for: how they are installed, pinned, named and left alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from scripts.frameworks import FRAMEWORKS, RUNNERS

ROOT = Path(__file__).parents[4]
PINS = dict(
    re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "tests/features/agents/frameworks/requirements.txt").read_text(), re.M)
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_framework_is_an_extra_and_pinned_with_what_tests_it() -> None:
    wanted = [each for name in FRAMEWORKS for each in EXTRAS[name]]
    packages = {re.split(r"[><=~! ]", each)[0] for each in wanted}
    assert packages | set(RUNNERS) <= PINS.keys()


def test_every_pin_has_hashes_and_names_no_index() -> None:
    text = (ROOT / "tests/features/agents/frameworks/requirements.txt").read_text()
    blocks = re.split(r"^(?=\S+==)", text, flags=re.M)[1:]
    assert len(blocks) == len(PINS)
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs/build/frameworks.md").read_text()
    rows = re.findall(r"callgate\[([\w-]+)\]'` \| ([\d., ]+) \|", page)
    packages = {name: [re.split(r"[><=]", each)[0] for each in EXTRAS[name]] for name in FRAMEWORKS}
    assert dict(rows) == {name: ", ".join(PINS[each] for each in packages[name]) for name in FRAMEWORKS}


def test_every_framework_has_an_adapter_a_test_and_an_example() -> None:
    for name in FRAMEWORKS:
        module = name.replace("-", "_")
        assert (ROOT / f"src/callgate/adapters/{module}.py").is_file()
        assert (ROOT / f"tests/features/agents/frameworks/test_{module}.py").is_file()
        assert (ROOT / f"examples/frameworks/with_{module}.py").is_file()


def test_a_gate_loads_no_adapter() -> None:
    program = (
        "import asyncio, sys\n"
        "from callgate import Gate\n"
        "async def main():\n"
        "    async with Gate(tools=[]) as gate:\n"
        "        await gate.call('nothing')\n"
        "asyncio.run(main())\n"
        "print([each for each in sys.modules if each.startswith(('callgate.adapters', 'callgate.sources.foreign'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
