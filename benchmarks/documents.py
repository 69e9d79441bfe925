"""What `search` costs: the first look at a workspace, the next one, and a query.

    python benchmarks/documents.py [--files N] [--rounds N] [--quick] [--json]

A workspace of 10,000 files of code and prose, about 3 KB each, in 100 directories. `index` is the
first search, which reads everything; `unchanged` one that finds nothing new to read; `one changed`
one after a file was written. Wall time through the whole dispatcher, the median of all rounds;
beside it what it takes to read the same files and to insert the same texts into FTS5, and no more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import apsw

from benchmarks import report
from callgate import Gate

WORDS = 400
"""Of a file; the rare ones stand in few files."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.quick:
        options.files, options.rounds = 200, 1
    rounds = [asyncio.run(measured(options.files)) for _ in range(options.rounds)]
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    if not options.json:
        rows = [[name, f"{seconds * 1e3:,.1f}"] for name, seconds in found.items()]
        print(report.table([f"{options.files:,} files", "ms"], rows))
    print(json.dumps({"files": options.files, "seconds": found}))
    return 0


async def measured(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory, "ws")
        for path, text in made(count):
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(text)
        for path in workspace.rglob("*.*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        found = {"read and insert alone": bare(workspace, Path(directory, "bare.db"))}
        settings = "[documents]\nrefresh_s = 600\n"
        Path(directory, "home").mkdir(mode=0o700)
        Path(directory, "home", "settings.toml").write_text(settings)
        async with Gate(workspace, home=Path(directory, "home")) as gate:

            async def search(query: str) -> float:
                start = time.perf_counter()
                result = await gate.call("search", {"query": query, "scope": "workspace"})
                assert result.ok and result.value, result
                return time.perf_counter() - start

            found["index"] = await search("rare7")
            found["unchanged, a rare word"] = await search("rare7")
            found["unchanged, words in every file"] = await search("word1 word2")
            (workspace / "dir0" / "file0.md").write_text("rare7 and something new")
            found["one changed"] = await search("something new")
        return found


def made(count: int) -> Iterator[tuple[str, str]]:
    chance = random.Random(1)
    common = [f"word{number}" for number in range(2_000)]
    for number in range(count):
        words = [*chance.choices(common, k=WORDS), "word1", "word2", f"rare{number % 1_000}"]
        lines = (" ".join(words[at : at + 10]) for at in range(0, len(words), 10))
        ending = ("md", "py", "txt", "rst")[number % 4]
        yield f"dir{number % 100}/file{number}.{ending}", "\n".join(lines)


def bare(workspace: Path, path: Path) -> float:
    start = time.perf_counter()
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
    db.execute("CREATE VIRTUAL TABLE texts USING fts5(name, body)")
    with db:
        for file in workspace.rglob("*.*"):
            db.execute("INSERT INTO texts VALUES(?, ?)", (str(file), file.read_text()))
    db.close()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
