"""How many modules a command has loaded when it is done: a start that needs no clock.

    python benchmarks/modules.py

Modules of callgate are counted apart from all others, whose number depends on the Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

LIMIT_S = 60.0
_CALL = ["call", "read_file", "path=note.txt"]
_LOADED = """
import sys
from callgate.cli.main import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(sys.modules))
sys.exit(code)
"""
_NEW = {
    "initialize": {"protocolVersion": 1, "clientCapabilities": {}},
    "session/new": {"cwd": "", "mcpServers": []},
}


class Loaded(NamedTuple):
    ours: int
    others: int


def measure() -> Mapping[str, Loaded]:
    """By command, each in a process of its own, with a home and a workspace of its own."""
    with tempfile.TemporaryDirectory(prefix="callgate-modules-") as directory:
        place = _Place(directory)
        found = {
            "--version": place.run(["--version"]),
            "call without an instance": place.run(_CALL),
            "acp, before a greeting": place.run(["acp"]),
            "acp, with a session": place.run(["acp"], _NEW),
        }
        with place.instance():
            found["call with an instance"] = place.run(_CALL)
    return {name: _count(each) for name, each in found.items()}


def _count(modules: set[str]) -> Loaded:
    ours = sum(each.partition(".")[0] == "callgate" for each in modules)
    return Loaded(ours, len(modules) - ours)


class _Place:
    def __init__(self, directory: str) -> None:
        self._listed = os.path.join(directory, "modules")
        self._workspace = os.path.join(directory, "workspace")
        os.mkdir(self._workspace)
        with open(os.path.join(self._workspace, "note.txt"), "w", encoding="utf-8") as file:
            file.write("A note.\n")
        self._env = {**os.environ, "CALLGATE_HOME": os.path.join(directory, "home")}

    def run(self, words: list[str], requests: Mapping[str, Any] | None = None) -> set[str]:
        """The modules that the command has loaded. Each request waits for its answer."""
        with subprocess.Popen(
            [sys.executable, "-c", _LOADED, self._listed, *words],
            cwd=self._workspace,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            for method, params in (requests or {}).items():
                self._ask(process, method, {**params})
            process.communicate(timeout=LIMIT_S)
        if process.returncode != 0:
            raise RuntimeError(f"callgate {' '.join(words)} ended with {process.returncode}")
        with open(self._listed, encoding="utf-8") as file:
            return set(file.read().splitlines())

    def _ask(self, process: subprocess.Popen[bytes], method: str, params: dict[str, Any]) -> None:
        assert process.stdin is not None and process.stdout is not None
        if "cwd" in params:
            params["cwd"] = self._workspace
        request = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if answer.get("id") == method:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return
        raise RuntimeError(f"{method} was not answered")

    @contextmanager
    def instance(self) -> Iterator[None]:
        program = [sys.executable, "-m", "callgate"]
        subprocess.run(
            [*program, "serve", "--detach", "--no-http"],
            cwd=self._workspace,
            env=self._env,
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        try:
            yield
        finally:
            subprocess.run(
                [*program, "stop"],
                cwd=self._workspace,
                env=self._env,
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            )


def main() -> None:
    for name, loaded in measure().items():
        print(f"{name:26} {loaded.ours:4} of callgate {loaded.others:4} others")


if __name__ == "__main__":
    main()
