"""The kernel works and passes its tests without any feature, and the product works without any one of them."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import callgate
from callgate.feature import FEATURES

SOURCE = Path(callgate.__file__).parent
LIMIT_S = 120


class Product:
    """A copy of the sources in which directories are missing, with its own home."""

    def __init__(self, base: Path, removed: tuple[str, ...]) -> None:
        self.base, self.workspace = base, base / "work"
        self.workspace.mkdir()
        (self.workspace / "a.txt").write_text("hello\n")
        tree = base / "tree"
        shutil.copytree(SOURCE, tree / "callgate")  # with the byte code, which follows the times of the files
        for name in removed:
            shutil.rmtree(tree / "callgate" / name)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(base),
            "CALLGATE_HOME": str(base / "home"),
            "PYTHONPATH": str(tree),
        }

    def python(self, *words: str) -> str:
        ran = subprocess.run(
            [sys.executable, *words],
            cwd=self.workspace,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def callgate(self, *words: str) -> str:
        return self.python("-m", "callgate", *words)


GATE = """
import asyncio
from callgate import BUILT_IN, Gate, tool

@tool(side_effects="none")
async def double(number: int) -> int:
    "Double a number."
    return 2 * number

async def main():
    async with Gate(workspace=".", tools=[*BUILT_IN, double], mode="write") as gate:
        assert (await gate.call("double", {"number": 4})).value == 8
        refused = await gate.call("read_file", {"path": "../../etc/passwd"})
        assert refused.error is not None
        print((await gate.call("read_file", {"path": "a.txt"})).ok)

asyncio.run(main())
"""


def exercise(product: Product) -> None:
    """Use the kernel as a library, as commands without an instance, and through an instance."""
    assert product.python("-c", GATE) == "True\n"
    assert "read_file" in product.callgate("tools")
    written = product.callgate(
        "call", "write_file", "--mode", "write", "--args", '{"path": "b.txt", "content": "x"}', "--json"
    )
    assert json.loads(written)["ok"] is True
    assert "allow" in product.callgate("policy", "explain", "read_file", "path=a.txt")
    product.callgate("undo", "--last", "--yes")
    assert not (product.workspace / "b.txt").exists()
    product.callgate("serve", "--detach")
    try:
        through = product.callgate("call", "read_file", "--args", '{"path": "a.txt"}', "--json")
        assert json.loads(through)["ok"] is True
    finally:
        product.callgate("stop")
    verified = json.loads(product.callgate("audit", "verify", "--json"))
    assert verified["ok"] is True
    assert "write_file" in product.callgate("audit", "tail")


def test_the_kernel_works_without_features(tmp_path: Path) -> None:
    exercise(Product(tmp_path, ("features", "adapters")))


@pytest.mark.parametrize("name", [each.name for each in FEATURES])
def test_the_product_starts_without_one_feature(tmp_path: Path, name: str) -> None:
    exercise(Product(tmp_path, (f"features/{name}",)))


KERNEL = Path(__file__).parent
OF_CALLS = ("dispatch/test_flow.py", "dispatch/test_errors.py", "gate/test_gate.py", "policy/test_decide.py", "events")
"""The kernel's tests of the pipeline, the library, the policy and events: a minute's part of all."""


def needs_features(path: Path, seen: set[Path]) -> bool:
    """Whether a test, or a module of the tests that it imports, imports a feature."""
    seen.add(path)
    for node in ast.walk(ast.parse(path.read_text())):
        found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        for name in found:
            if name.startswith(("callgate.features", "callgate.adapters", "tests.features")):
                return True
            module = KERNEL.parents[1].joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith("tests.") and module.is_file() and module not in seen and needs_features(module, seen):
                return True
    return False


def run_kernel_tests(product: Product, places: Sequence[str]) -> int:
    """Run tests of the kernel against the copy, and return how many passed."""
    assert product.python("-c", "import callgate; print(callgate.__file__)").startswith(str(product.base))
    paths = [KERNEL / each for each in places]
    files = sorted(file for each in paths for file in ([each] if each.suffix else each.rglob("test_*.py")))
    files = [each for each in files if each.name != "test_borders.py" and not needs_features(each, set())]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not soak and not agents"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        cwd=KERNEL.parents[1],
        env=product.env | {"CI": "true"},  # property tests take the same examples in every run
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    return int(passed[1])


def test_the_kernels_tests_of_calls_pass_without_features(tmp_path: Path) -> None:
    assert run_kernel_tests(Product(tmp_path, ("features", "adapters")), OF_CALLS) > 100
