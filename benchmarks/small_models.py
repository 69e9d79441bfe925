"""Whether a small model on this machine can use the tools: it reads, lists and writes files.

    pip install 'callgate[local]' pydantic-ai-slim[openai]
    nice python benchmarks/small_models.py MODEL.gguf [--tries N] [--threads N]
        [--ways text,native,pydantic-ai] [--tasks read,list,write]

By hand only: it takes minutes to hours. One llama.cpp server has the model; `text` and `native`
are our agent with all of its built-in tools, as the settings would have it for `local`;
`pydantic-ai` has three tools that do the same without any guard. Each try is a turn of its own
about other names and words, and counts if the answer, or the file, says what it should.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from callgate import Answer, Gate, Outcome
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.agent.turns import TurnLimits
from callgate.features.chat.models.make import make_model
from callgate.features.chat.settings import ModelTable

WORDS = (
    "plum",
    "river",
    "candle",
    "marble",
    "falcon",
    "ginger",
    "violin",
    "harbor",
    "copper",
    "meadow",
)
MOST_TOKENS = 300
LONGEST_S = 900.0
Ask = Callable[[Path, str], Awaitable[str]]


class Task(NamedTuple):
    name: str
    prompt: str
    prepare: Callable[[Path, str, str], None]
    judge: Callable[[Path, str, str, str], bool]
    """Workspace, the word of this try, the next word, and the answer."""


def _one_file(place: Path, word: str, other: str) -> None:
    (place / f"{other}.txt").write_text(f"The password of the day is {word}.\n")


def _three_files(place: Path, word: str, other: str) -> None:
    for name in (f"{word}.txt", f"{other}.md", "notes.csv"):
        (place / name).write_text("x\n")


def _wrote(place: Path, word: str, other: str, answer: str) -> bool:
    path = place / f"{other}.txt"
    return path.is_file() and word in path.read_text().lower()


TASKS = (
    Task(
        "read",
        "Read the file {other}.txt. What is the password of the day?",
        _one_file,
        lambda place, word, other, answer: word in answer.lower(),
    ),
    Task(
        "list",
        "Which files are in the current directory?",
        _three_files,
        lambda place, word, other, answer: all(
            name in answer for name in (f"{word}.txt", f"{other}.md", "notes.csv")
        ),
    ),
    Task(
        "write",
        "Create a file {other}.txt with the text: {word}",
        lambda place, word, other: None,
        _wrote,
    ),
)


def serve(path: str, threads: int | None) -> tuple[Any, str]:
    """llama.cpp's server in this process, and where it is."""
    xllamacpp = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx = 8192
    parameters.n_parallel = 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.ui = False
    parameters.verbosity = 1
    if threads is not None:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(parameters)
    return server, f"{server.listening_address}/v1"


async def yes(question: Any) -> Answer:
    return Answer(decision=Outcome.ALLOW)


def ours(base_url: str, tools: Literal["native", "text"], home: Path) -> Ask:
    table = ModelTable(
        kind="openai",
        model="small",
        base_url=base_url,
        tools=tools,
        small=True,
        constrain=True,
        max_tokens=MOST_TOKENS,
        temperature=0.2,
        context_tokens=8192,
        timeout_s=LONGEST_S,
    )

    async def ask(place: Path, prompt: str) -> str:
        model = make_model("small", table)
        async with Gate(place, home=home, mode="write", confirm=yes) as gate:
            runtime = gate.runtime
            limits = TurnLimits(cycles=6)
            agent = Agent(runtime, model, limits=limits)
            end = await agent.turn(gate.session, prompt)
            await model.close()
        return end.text or f"({end.stop} after {end.cycles} replies: {end.notice})"

    return ask


def peer(base_url: str) -> Ask:
    pydantic_ai = import_module("pydantic_ai")
    models = import_module("pydantic_ai.models.openai")
    providers = import_module("pydantic_ai.providers.openai")
    usage = import_module("pydantic_ai.usage")
    provider = providers.OpenAIProvider(base_url=base_url, api_key="none")
    model = models.OpenAIChatModel("small", provider=provider)

    async def ask(place: Path, prompt: str) -> str:
        agent = pydantic_ai.Agent(
            model,
            system_prompt="You help a person with the files in the current directory, with tools.",
            model_settings={"max_tokens": MOST_TOKENS, "temperature": 0.2, "timeout": LONGEST_S},
        )

        @agent.tool_plain
        def read_file(path: str) -> str:
            """Read a text file."""
            return (place / path).read_text()

        @agent.tool_plain
        def list_dir(path: str = ".") -> str:
            """List the names in a directory."""
            return "\n".join(sorted(os.listdir(place / path)))

        @agent.tool_plain
        def write_file(path: str, content: str) -> str:
            """Create a file or replace its whole content."""
            (place / path).write_text(content)
            return "written"

        result = await agent.run(prompt, usage_limits=usage.UsageLimits(request_limit=6))
        return str(result.output)

    return ask


async def attempt(ask: Ask, task: Task, number: int, place: Path, verbose: bool) -> bool:
    word, other = WORDS[number % len(WORDS)], WORDS[(number + 3) % len(WORDS)]
    for each in place.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    task.prepare(place, word, other)
    try:
        async with asyncio.timeout(LONGEST_S):
            answer = await ask(place, task.prompt.format(word=word, other=other))
    except Exception as error:  # whatever a contestant raises is a try that failed
        answer = f"{type(error).__name__}: {error}"
        good = False
    else:
        good = task.judge(place, word, other, answer)
    if verbose:
        print("good" if good else "bad ", task.name, repr(answer[:200]), flush=True)
    return good


async def contest(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    server, base_url = serve(options.model, options.threads)
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(lambda: server)  # it ends when nothing refers to it
        place = Path(folder, "work")
        place.mkdir()
        home = Path(folder, "home")
        ways: dict[str, Callable[[], Ask]] = {
            "text": lambda: ours(base_url, "text", home),
            "native": lambda: ours(base_url, "native", home),
            "pydantic-ai": lambda: peer(base_url),
        }
        for way in options.ways.split(","):
            ask = ways[way]()
            for task in (each for each in TASKS if each.name in options.tasks.split(",")):
                started = time.perf_counter()
                good = 0
                for number in range(options.tries):
                    good += await attempt(ask, task, number, place, options.verbose)
                took = (time.perf_counter() - started) / options.tries
                result = f"{good} of {options.tries}, {took:.0f} s each"
                found.setdefault(way, {})[task.name] = result
                print(way, task.name, result, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", default="text,native,pydantic-ai")
    parser.add_argument("--tasks", default="read,list,write")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(contest(options))
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
