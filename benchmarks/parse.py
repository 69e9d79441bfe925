"""What reading a model's reply costs, whole and in pieces, beside readers that only read JSON.

    python benchmarks/parse.py [--rounds N] [--chunk N] [--quick] [--json]

Replies of 100 KB: `calls` is some hundreds of calls of every kind, `chat` is one long message,
and `code` is one long file, full of line breaks and quotation marks. CPU time in milliseconds; in
every round each contestant reads each reply once, in turn, and ratios are taken within a round.
`callgate` checks each call, and refuses keys that stand twice; the others give values.
`again` reads everything from the start whenever a piece has come, as one does without a reader
that can wait: it stops after some pieces, and the rest is reckoned from them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.stream import CallStream

KIB = 1024
ROOM = 64 * KIB * KIB
LENGTHS = (4 * KIB, 100 * KIB, KIB * KIB, 10 * KIB * KIB)
SAMPLES = 8
"""How many prefixes are read again, of all."""
CODE = 'def greet(name: str) -> None:\n    print(f"Hello,\\t{name}!")\n\n\n'
SENTENCE = "The quick brown fox jumps over the lazy dog; the dog does not mind at all. "

Read = Callable[[], Any]


def call(number: int, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "id": f"c{number}", "operation": kind, "parameters": parameters}


def reply(kind: str, length: int) -> str:
    """A reply of about so many characters."""
    if kind == "chat":
        some = [call(0, "send_chat", {"content": SENTENCE * (length // len(SENTENCE))})]
    elif kind == "code":
        times = length // len(json.dumps(CODE))
        some = [call(0, "file_put", {"path": "greet.py", "content": CODE * times})]
    else:
        batch = [
            call(0, "send_chat", {"content": SENTENCE}),
            call(0, "gmail_list", {"query": "is:unread", "maxResults": 20, "labels": ["a", "b"]}),
            call(0, "sheets_write", {"range": "A1:C2", "values": [[1, 2.5, True], [None, "x"]]}),
            call(0, "file_put", {"path": "notes.txt", "content": CODE}),
        ]
        times = length // len(json.dumps(batch))
        some = [{**one, "id": f"c{n}"} for n, one in enumerate(batch * times)]
    return json.dumps({"toolCalls": some})


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def whole(text: str) -> dict[str, Read]:
    readers: dict[str, Read] = {"json": partial(json.loads, text)}
    if find_spec("orjson"):
        import orjson

        readers["orjson"] = partial(orjson.loads, text)
    if find_spec("jiter"):
        import jiter

        readers["jiter"] = lambda: jiter.from_json(text.encode())
    readers["callgate `parse`"] = partial(parse, text, max_bytes=ROOM)
    readers["callgate `parse`, strict"] = partial(parse, text, strict=True, max_bytes=ROOM)
    return readers


def streamed(chunks: Sequence[str]) -> None:
    stream = CallStream(max_bytes=ROOM)
    for chunk in chunks:
        stream.push(chunk)
    stream.finish()


def pushed(chunks: Sequence[bytes]) -> None:
    import ijson.backends.yajl2_c as ijson

    found: list[Any] = ijson_list()
    reader = ijson.items_coro(found, "toolCalls.item", use_float=True)
    for chunk in chunks:
        reader.send(chunk)
    reader.close()


def ijson_list() -> list[Any]:
    from ijson.utils import sendable_list

    found: list[Any] = sendable_list()
    return found


def again(text: str, size: int, read: Callable[[str], Any]) -> float:
    """Seconds that reading each prefix would take, from some of them."""
    spent = 0.0
    for n in range(1, SAMPLES + 1):
        prefix = text[: len(text) * n // SAMPLES]
        began = time.process_time()
        read(prefix)
        spent += time.process_time() - began
    return spent / SAMPLES * (len(text) / size)


def in_pieces(text: str, size: int) -> dict[str, Read]:
    chunks = cut(text, size)
    data = [chunk.encode() for chunk in chunks]
    readers: dict[str, Read] = {}
    if find_spec("ijson"):
        readers["ijson, yajl2_c"] = partial(pushed, data)
    readers["callgate `CallStream`"] = partial(streamed, chunks)
    return readers


def reread(text: str, size: int) -> dict[str, float]:
    def json_prefix(prefix: str) -> None:
        try:
            json.loads(prefix)
        except ValueError:
            pass

    found = {"again, json": again(text, size, json_prefix)}
    if find_spec("jiter"):
        import jiter

        found["again, jiter"] = again(
            text, size, lambda prefix: jiter.from_json(prefix.encode(), partial_mode=True)
        )
    return found


def timed(read: Read) -> float:
    began = time.process_time()
    read()
    return (time.process_time() - began) * 1e3


def contest(readers: dict[str, Read], floor: str, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            found[name].append(timed(read))
    floors = found.get(floor)
    return {
        name: {
            "ms": round(median(times), 3),
            "ratio": round(median(a / b for a, b in zip(times, floors, strict=True)), 2)
            if floors
            else 0.0,
        }
        for name, times in found.items()
    }


def measure(rounds: int, size: int, lengths: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"whole": {}, "pieces": {}, "linear": {}}
    for kind in ("calls", "chat", "code"):
        text = reply(kind, 100 * KIB)
        assert len(parse(text).calls) and not parse(text).errors
        found["whole"][kind] = contest(whole(text), "orjson", rounds)
        found["pieces"][kind] = contest(in_pieces(text, size), "ijson, yajl2_c", rounds)
        found["pieces"][kind] |= {
            name: {"ms": round(seconds * 1e3, 3)} for name, seconds in reread(text, size).items()
        }
        for length in lengths:
            text = reply(kind, length)
            some = max(rounds * 100 * KIB // length // 2, 3)
            once = contest({"whole": whole(text)["callgate `parse`"]}, "", min(some, rounds))
            pieces = contest(
                {"pieces": in_pieces(text, size)["callgate `CallStream`"]}, "", min(some, rounds)
            )
            found["linear"].setdefault(kind, {})[length] = {
                "whole": round(once["whole"]["ms"] * 1e6 / len(text), 2),
                "pieces": round(pieces["pieces"]["ms"] * 1e6 / len(text), 2),
            }
    return found


def tables(found: dict[str, Any], size: int) -> str:
    kinds = list(found["whole"])
    parts = []
    for section, title, floor in (
        ("whole", "100 KB at once", "to orjson"),
        ("pieces", f"100 KB, {size} characters at a time", "to ijson"),
    ):
        head = [title, *(cell for kind in kinds for cell in (f"`{kind}`, ms", floor))]
        rows = [
            [name]
            + [
                cell
                for kind in kinds
                for each in [found[section][kind][name]]
                for cell in (f"{each['ms']:,}", f"{each.get('ratio') or ''}")
            ]
            for name in found[section][kinds[0]]
        ]
        parts.append(report.table(head, rows))
    ways = ("at once", "in pieces")
    head = ["nanoseconds a character", *(f"`{kind}`, {way}" for kind in kinds for way in ways)]
    rows = [
        [f"{length // KIB:,} KiB"]
        + [str(found["linear"][kind][length][way]) for kind in kinds for way in ("whole", "pieces")]
        for length in found["linear"][kinds[0]]
    ]
    parts.append(report.table(head, rows))
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--chunk", type=int, default=20, help="characters in a piece")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rounds, lengths = (3, LENGTHS[:2]) if options.quick else (options.rounds, LENGTHS)
    found = measure(rounds, options.chunk, lengths)
    if not options.json:
        print(tables(found, options.chunk), end="\n\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
