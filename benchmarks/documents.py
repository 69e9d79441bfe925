"""What `search` costs: the first look at a workspace, the next one, and a query.

    python benchmarks/documents.py [--files N] [--vectors N] [--rounds N] [--quick] [--json]

A workspace of 10,000 files of code and prose, about 3 KB each, in 100 directories. `index` is the
first search, which reads everything; `unchanged` one that finds nothing new to read; `one changed`
one after a file was written. Wall time through the whole dispatcher, the median of all rounds;
beside it what it takes to read the same files and to insert the same texts into FTS5, and no more.

`nearest` is what a search by meaning adds, without the embedder: the 50 nearest of 40,000 vectors
of 384 numbers, and what it takes to look for passages that have none yet. Beside it the same where
all numbers of all vectors are compared, and how many of the 50 both find: of vectors with
neighbours, as those of texts are, and of noise, the worst there is.
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
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import mul
from pathlib import Path
from statistics import median

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import apsw

from benchmarks import report
from callgate import Gate
from callgate_catalogue.documents.index import opened
from callgate_catalogue.documents.vectors import Scope, Vectors, normalised

WORDS = 400
"""Of a file; the rare ones stand in few files."""
NUMBERS = 384
NEAREST = 50
GROUPS = 200
SCOPE = Scope(("workspace", "documents"), "", lambda origin, path: True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--vectors", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.quick:
        options.files, options.vectors, options.rounds = 200, 5_000, 1
    rounds = [asyncio.run(measured(options.files)) for _ in range(options.rounds)]
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    if not options.json:
        rows = [[name, f"{seconds * 1e3:,.1f}"] for name, seconds in found.items()]
        print(report.table([f"{options.files:,} files", "ms"], rows))
    near, same = nearest(options.vectors, options.rounds)
    if not options.json:
        rows = [[name, f"{seconds * 1e3:,.1f}"] for name, seconds in near.items()]
        rows += [[f"of {NEAREST} found, {name}", f"{share:.0%}"] for name, share in same.items()]
        print(report.table([f"{options.vectors:,} vectors", "ms"], rows))
    print(
        json.dumps(
            {
                "files": options.files,
                "seconds": found,
                "vectors": options.vectors,
                "nearest_seconds": near,
                "nearest_found": same,
            }
        )
    )
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


def nearest(count: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each, and which part of what is nearest was found."""
    taken: dict[str, list[float]] = {"nothing new to embed": [], "nearest": [], "all compared": []}
    same: dict[str, list[float]] = {"of vectors with neighbours": [], "of noise": []}
    for kind, shares in same.items():
        with tempfile.TemporaryDirectory() as directory:
            draw = drawn(with_neighbours=kind != "of noise")
            kept = embedded(directory, count, draw)
            for number in range(rounds):
                query = normalised(draw(number))
                with opened(directory) as index:
                    vectors = Vectors(index, "bench", NUMBERS)
                    start = time.perf_counter()
                    vectors.work(SCOPE, 2_000, count, lambda: False)
                    middle = time.perf_counter()
                    found = vectors.nearest(query, SCOPE, -1.0, NEAREST)
                    end = time.perf_counter()
                best = compared(query, kept)
                taken["all compared"].append(time.perf_counter() - end)
                taken["nothing new to embed"].append(middle - start)
                taken["nearest"].append(end - middle)
                shares.append(len(best & {hit.path for hit, _ in found}) / NEAREST)
    medians = {name: median(seconds) for name, seconds in taken.items()}
    return medians, {name: median(shares) for name, shares in same.items()}


def drawn(with_neighbours: bool) -> Callable[[int], list[float]]:
    chance = random.Random(1)
    noise = [chance.gauss(0, 1) for _ in range(500_000)]
    groups = [[chance.gauss(0, 1) for _ in range(NUMBERS)] for _ in range(GROUPS)]

    def draw(number: int) -> list[float]:
        start = chance.randrange(len(noise) - NUMBERS)
        own = noise[start : start + NUMBERS]
        if not with_neighbours:
            return own
        return [a + b for a, b in zip(groups[number % GROUPS], own, strict=True)]

    return draw


def embedded(
    directory: str, count: int, draw: Callable[[int], list[float]]
) -> dict[str, array[float]]:
    """An index of so many texts with vectors; returned by path."""
    status = os.stat(directory)
    with opened(directory) as index:
        vectors = Vectors(index, "bench", NUMBERS)
        vectors.begin()
        with index.changing():
            for number in range(count):
                index.put("workspace", str(number), status, 1, b"", str(number))
        pending = vectors.work(SCOPE, count, count, lambda: False).pending
        made = [(each, draw(int(each.text))) for each in pending]
        for start in range(0, count, 1_000):
            vectors.store(made[start : start + 1_000])
    return {each.text: normalised(numbers) for each, numbers in made}


def compared(query: array[float], kept: dict[str, array[float]]) -> set[str]:
    numbers = query.tolist()
    near = {path: sum(map(mul, vector, numbers)) for path, vector in kept.items()}
    return set(sorted(near, key=lambda path: -near[path])[:NEAREST])


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
