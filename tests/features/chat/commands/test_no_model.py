"""`chat` and `run` without a model: each option with its command, and the commands work as printed."""

from __future__ import annotations

import asyncio
import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kernel.cli.running import callgate
from tests.models_server import ModelServer, Says
from tests.ollama_server import OllamaServer

_CALL = json.dumps({"toolCalls": [{"type": "list_dir", "id": "c1", "operation": "run", "parameters": {"path": "."}}]})


def printed(ws: Path, *words: str) -> list[str]:
    """The commands of the hint."""
    ran = callgate(*words, cwd=ws)
    assert (ran.code, ran.out) == (2, "")
    assert "no model is configured" in ran.err
    return [line.strip() for line in ran.err.splitlines() if line.startswith("    ")]


def test_each_option_has_its_commands(ws: Path) -> None:
    assert printed(ws, "chat") == [
        "callgate keys set anthropic",
        "callgate chat --model anthropic/claude-sonnet-4-5",
        "ollama pull llama3",
        "callgate chat --model ollama/llama3",
        "pip install 'callgate[local]'",
        "callgate chat --model local/model.gguf",
        "callgate chat --model scripted",
    ]
    assert printed(ws, "run", "it's late")[-1] == """callgate run --model scripted 'it'"'"'s late'"""


def test_a_gguf_file_here_is_named(ws: Path) -> None:
    (ws / "tiny.gguf").write_bytes(b"GGUF")
    (command,) = [each for each in printed(ws, "chat") if "local/" in each]
    assert command == f"callgate chat --model local/{ws}/tiny.gguf"
    ran = callgate(*shlex.split(command)[1:], cwd=ws)
    if find_spec("xllamacpp") is None:
        assert (ran.code, "pip install 'callgate[local]'" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["chat", "run"])
async def test_the_commands_for_a_key_work_as_printed(ws: Path, command: str) -> None:
    words = ["run", "Hello"] if command == "run" else ["chat"]
    store, use = (shlex.split(each)[1:] for each in printed(ws, *words)[:2])
    assert callgate(*store, cwd=ws, stdin=b"sk-made-up-for-a-test\n").code == 0
    async with ModelServer(Says("Good day.")) as server:
        env = {"ANTHROPIC_BASE_URL": server.origin}
        ran = await asyncio.to_thread(callgate, *use, cwd=ws, stdin=b"Hello\n", env=env)
    assert (ran.code, "Good day." in ran.out) == (0, True), ran.err


@pytest.mark.parametrize("words", [["chat"], ["run", "Hello"]], ids=["chat", "run"])
def test_the_command_for_the_script_works_as_printed(ws: Path, words: list[str]) -> None:
    use = shlex.split(printed(ws, *words)[-1])[1:]
    ran = callgate(*use, cwd=ws, stdin=b"Hello\n")
    assert (ran.code, "I am a script, not a language model." in ran.out) == (0, True)
    assert "list_dir" in ran.out + ran.err


@pytest.mark.parametrize("words", [["chat"], ["run", "Hello"]], ids=["chat", "run"])
def test_the_command_for_ollama_works_as_printed(ws: Path, words: list[str]) -> None:
    (use,) = (shlex.split(each)[1:] for each in printed(ws, *words) if "ollama/" in each)
    with OllamaServer({"llama3:latest": True, "llama3": True}, "Good evening.") as server:
        ran = callgate(*use, cwd=ws, stdin=b"Hello\n", env={"OLLAMA_HOST": server.host})
    assert (ran.code, "Good evening." in ran.out) == (0, True), ran.err


def test_ollama_is_found_on_its_default_port(ws: Path) -> None:
    try:
        server = OllamaServer({"llama3": True}, "Good evening.", port=11434)
    except OSError:
        pytest.skip("needs port 11434: another program listens there")
    with server:
        ran = callgate("run", "--model", "ollama/llama3", "Hello", cwd=ws, env={"OLLAMA_HOST": ""})
    assert (ran.code, ran.out) == (0, "Good evening.\n")


def test_a_model_without_tool_calling_still_calls_tools(ws: Path) -> None:
    (ws / "seen.txt").touch()
    replies = (_CALL, "I saw it.")
    with OllamaServer({"llama3": False}, *replies) as server:
        ran = callgate("run", "--model", "ollama/llama3", "Look.", cwd=ws, env={"OLLAMA_HOST": server.host})
        asked = [json.dumps(each["messages"]) for each in server.requests]
    assert (ran.code, "I saw it." in ran.out, "* list_dir" in ran.err) == (0, True, True), ran.err
    assert "seen.txt" in asked[1]


def test_an_ollama_that_does_not_run_and_a_model_that_is_not_there_are_explained(ws: Path) -> None:
    with OllamaServer({}) as server:
        absent = callgate("run", "--model", "ollama/llama3", "Hello", cwd=ws, env={"OLLAMA_HOST": server.host})
    stopped = callgate("run", "--model", "ollama/llama3", "Hello", cwd=ws, env={"OLLAMA_HOST": server.host})
    assert (absent.code, "ollama pull llama3" in absent.err) == (1, True)
    assert (stopped.code, "Run: ollama serve" in stopped.err) == (1, True)
