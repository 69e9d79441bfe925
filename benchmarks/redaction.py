"""What it costs to look for secrets in a text, and to mask them.

    python benchmarks/redaction.py [--rounds N] [--json]

Texts of 2 KB without a word that a secret stands beside, with many such words and no secret, and
command lines with and without one. Microseconds of CPU time: the best round, as whatever else the
machine does only adds to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from callgate.redaction.texts import redact

TEXTS = {
    "plain, 2 KB": ("The quick brown fox jumps over the lazy dog, and nobody minds. " * 33)[:2048],
    "listing, 2 KB": ("-rw-r--r-- 1 root root 812 Nov 17 11:22 a.txt\n" * 45)[:2048],
    "about secrets, 2 KB": ("The secret key is in the vault, and tokens are rotated. " * 37)[:2048],
    "ls": "git log --oneline -n 20 | head -5 && ls -la src",
    "docker -p": "docker run -it --rm -p 8080:80 nginx",
    "curl": "curl -s https://example.com/a.json -o out.json",
    "curl -u": "curl -u alice:hunter2pass https://example.com/a",
    "mysql -p": "mysql -uroot -psecret123 db",
    "export": "export API_KEY=abcd1234efgh5678; make deploy",
}
BATCH = 100


def measure(rounds: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, text in TEXTS.items():
            began = time.process_time()
            for _ in range(BATCH):
                redact(text)
            took = (time.process_time() - began) / BATCH * 1e6
            best[name] = min(best.get(name, took), took)
    return {name: round(each, 1) for name, each in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds)
    if not options.json:
        rows = [[name, f"{each:.1f}"] for name, each in found.items()]
        print(report.table(["text", "µs"], rows) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
