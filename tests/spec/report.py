"""Prints how many conformance items of each part are covered (`make spec`).

python -m tests.spec.report [--open]      --open lists the items still to come
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.spec.requirements import Requirement, load, proofs, titles


def main(arguments: list[str]) -> None:
    rows, tests = load(), Counter(proof.id for proof in proofs())
    print(f"{'part':9}{'items':>6}{'covered':>9}{'untested':>10}{'open':>6}{'diverged':>10}")
    for part, title in titles().items():
        print(_line(part, [row for row in rows if row.part == part], tests) + f"  {title}")
    print(_line("all", rows, tests))
    if "--open" in arguments:
        for row in rows:
            if row.status == "open":
                print(f"{row.id:6} {row.brought_by or '':11}{row.behaviour}")
            elif row.status == "covered" and not tests[row.id]:
                print(f"{row.id:6} {'UNTESTED':11}{row.behaviour}")


def _line(name: str, rows: list[Requirement], tests: Counter[str]) -> str:
    """Covered counts what a test proves, not what the table claims."""
    status = Counter(row.status for row in rows)
    untested = sum(row.status == "covered" and not tests[row.id] for row in rows)
    covered = status["covered"] - untested
    return f"{name:9}{len(rows):6}{covered:9}{untested:10}{status['open']:6}{status['diverged']:10}"


if __name__ == "__main__":
    main(sys.argv[1:])
