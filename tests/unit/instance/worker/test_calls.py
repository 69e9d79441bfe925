"""Calls of a session whose workspace is on a worker: a server and workers as real processes."""

from __future__ import annotations

from typing import Any

from tests.unit.instance.worker.deployments import Deployment


def text(result: Any) -> str:
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


def test_files_and_commands_of_a_pool_are_those_of_its_worker(deployed: Deployment) -> None:
    deployed.worker(deployed.token("build"), "one")
    session = deployed.session()
    written = deployed.call(session, "write_file", path="a.txt", content="hello\n")
    assert written["ok"], written
    assert (deployed.directory("one") / "a.txt").read_text() == "hello\n"
    assert not (deployed.root / "served" / "a.txt").exists()
    patched = deployed.call(session, "patch_file", path="a.txt", old="hello", new="bye")
    assert patched["ok"], patched
    assert "bye" in text(deployed.call(session, "read_file", path="a.txt"))
    assert "a.txt" in text(deployed.call(session, "search_text", pattern="bye"))
    ran = deployed.call(session, "shell", command="pwd; cat a.txt; echo out > b.txt")
    assert ran["ok"], ran
    assert str(deployed.directory("one")) in text(ran) and "bye" in text(ran)
    assert (deployed.directory("one") / "b.txt").read_text() == "out\n"
