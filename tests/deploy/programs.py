"""What the tests of deploy/ share: the programs that check it, and our own command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from callgate.cli.command_line import beginning, read, split

PROJECT = Path(__file__).parents[2]
TOOLS = PROJECT / ".tools" / "deploy"
CHART = PROJECT / "deploy" / "helm" / "callgate"
LIMIT_S = 120.0


def run(*words: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """The output of a program that must succeed."""
    ran = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        input=stdin,
        env={**os.environ, **(env or {})},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout or ran.stderr


def helm(*words: str) -> str:
    return run(str(TOOLS / "bin" / "helm"), *words)


def validate(manifests: Path, version: str) -> str:
    """Against the schemas of one version of Kubernetes; a field that it does not know is an error."""
    return run(
        sys.executable,
        "-m",
        "kubernetes_validate",
        "-k",
        version,
        "--strict",
        str(manifests),
        env={"PYTHONPATH": str(TOOLS)},
    )


def accept(words: Sequence[str]) -> None:
    """Fail unless our own command line takes these words."""
    if words[0] == "worker" and not beginning("worker"):
        pytest.skip("this callgate has no workers")
    name, options = split(list(words))
    chosen = read(name, options)
    assert chosen.words == []
