"""Count the sentences that readers stumble over, and compare the counts with budgets.

    python -m scripts.prose                 check the budgets (`make lint` calls it)
    python -m scripts.prose --table         print sentences, flagged sentences and budget by area
    python -m scripts.prose --list [PATH]   print each flagged sentence below PATH
    python -m scripts.prose --update        lower the budgets to the present counts
    python -m scripts.prose --rebalance     after a move of modules: adopt the present counts,
                                            unless their sum exceeds the sum of the budgets

An area is a page at the root, a directory of pages, all messages, or the docstrings and comments of
one top-level package or feature. `scripts/prose.toml` has the budget of each area: its number of
flagged sentences. A count above the budget fails, and so does a budget that is more than `SLACK`
above the count. An area without a budget may have at most `NEW_AREA_PERCENT` flagged sentences.

The patterns find suspects. A flagged sentence can be good, and a bad one can pass.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = "scripts/prose.toml"
SLACK = 5
NEW_AREA_PERCENT = 8

_HEADER = """\
# Number of flagged sentences that each area may have (scripts/prose.py). Budgets only fall:
# `python -m scripts.prose --update` lowers them. After a move of modules use `--rebalance`.
"""

PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, 0 if pattern.startswith("^") else re.IGNORECASE)
    for name, pattern in {
        "whoever, whatever, whichever": r"\b(who|what|which)ever\b",
        "anew": r"\banew\b",
        "of its own": r"\bof (its|our|their|his|your) own\b",
        "relative clause as subject": (
            r"^(What|Whoever|Whatever|Who)\b(?![^.]*\?)[^.]{3,80}"
            r"\b(is|are|was|were|may|can|has|does|goes|stays|counts|runs|asks)\b"
        ),
        "relative clause as object": (
            r"(?<=[a-z,] )what (is|are|was|it|an?|the|they|we|he|she|you|each|one|stands|came"
            r"|comes|somebody|nobody|another|does|did)\b"
        ),
        "passive everyday verb": (
            r"\b(is|are|was|were|be|been)"
            r" (asked|told|said|given|taken|kept|held|shown|known|meant|left|brought|made)\b"
        ),
        "says which": r"\b(say|says|said) (of|so|it|which|what|who|why|how|whether|whose)\b",
        "nobody, somebody": r"\b((no|some|every)body|someone else|no one)\b",
        "stands": r"\b(stands?|stood)\b",
        "beside": r"\bbeside\b",
        "by itself": r"\bby (itself|themselves)\b",
        "those that": (r"\b(one and the same|that which|those who|those that|that of|those of)\b"),
        "goes on, comes of": (
            r"\b(goes on|go on|comes? of|came of|is made of|makes [a-z ]{2,20} of)\b"
        ),
        "meanwhile, hence": r"\b(meanwhile|thereby|hence|whereby)\b",
        "fronted phrase": (
            r"^(Of|With|Without|In|By|From|To|Under|Where|Nor|Neither|Only|So)\b[^,.]{1,60}, \b"
        ),
        "have X done": (
            r"\b(have|has|had) (it|them|an?|the|its|all) [a-z ]{0,25}"
            r"(ed|done|made|run|shown|written)\b"
        ),
        "as any other": (
            r"\b(as any other|like any other|the other way round|all that|none of ours"
            r"|nothing of (ours|it)|of ours)\b"
        ),
    }.items()
}

_ROOT_PAGES = ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")
_PAGE_DIRECTORIES = ("benchmarks", "examples", "packages", "protocols", "tests")
_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|ALTER|DROP)\b")
_DIRECTIVE = re.compile(r"noqa|type: ignore|lazy:|pragma|!|-\*-")


class Sentence(NamedTuple):
    """One sentence and its location."""

    path: str
    line: int
    text: str

    def problems(self) -> list[str]:
        """Return the names of the patterns that match."""
        return [name for name, pattern in PATTERNS.items() if pattern.search(self.text)]


def split(text: str) -> Iterator[str]:
    """Yield the sentences of at least three words."""
    joined = " ".join(text.split())
    for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`\[(])", joined):
        if len(part.split()) >= 3:
            yield part


def of_page(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page, without headings, code and comments."""
    for hidden in (r"```.*?```", r"<!--.*?-->"):
        text = re.sub(hidden, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    block: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if not stripped or re.match(r"[-*|#]|\d+\. ", line):
            yield from (Sentence(path, start, one) for one in split(_without_links(block)))
            block = []
        if stripped.startswith("|"):
            cells = _without_links([line]).split("|")
            yield from (Sentence(path, number, c.strip()) for c in cells if len(c.split()) > 3)
        elif stripped and not stripped.startswith("#"):
            start = start if block else number
            block.append(line)


def _without_links(lines: Iterable[str]) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))


def of_module(path: str, text: str) -> tuple[list[Sentence], list[Sentence]]:
    """Return the sentences for developers (docstrings, comments) and the messages."""
    documentation = list(_comments(path, text))
    messages: list[Sentence] = []
    docstrings = set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and (value := _text(node.value)):
            docstrings.add(node.value)
            for paragraph in re.split(r"\n\s*\n", value):
                if not re.search(r"->|\|.*\||>>>", paragraph):  # a drawing or an example
                    documentation += [Sentence(path, node.lineno, s) for s in split(paragraph)]
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in docstrings and (value := _text(node)):
            is_prose = len(value.split()) >= 5 and re.match(r"[A-Za-z`' ]", value)
            if is_prose and not _SQL.match(value):
                messages += [Sentence(path, node.lineno, one) for one in split(value)]
    return documentation, messages


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _comments(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of comments; lines that follow each other are one text."""
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.search(token.string):
            continue
        number = token.start[0]
        if number != last + 1 or not token.line.lstrip().startswith("#"):
            yield from (Sentence(path, start, one) for one in split("\n".join(block)))
            block, start = [], number
        block.append(token.string.lstrip("# "))
        last = number
    yield from (Sentence(path, start, one) for one in split("\n".join(block)))


def areas(root: Path) -> dict[str, list[Sentence]]:
    """Return the sentences of each area of the project at `root`."""
    found: dict[str, list[Sentence]] = defaultdict(list)

    def pages(area: str, paths: Iterable[Path]) -> None:
        for path in sorted(paths):
            found[area] += of_page(path.relative_to(root).as_posix(), path.read_text())

    for name in _ROOT_PAGES:
        pages(name, root.glob(f"{name}.md"))
    pages("docs", (root / "docs").rglob("*.md"))
    for name in _PAGE_DIRECTORIES:
        pages("other pages", (root / name).rglob("*.md"))
    for path in sorted((root / "src").rglob("*.py")):
        relative = path.relative_to(root)
        documentation, messages = of_module(relative.as_posix(), path.read_text())
        found[_package(relative)] += documentation
        found["messages"] += messages
    for path in sorted((root / "scripts").glob("*.py")):
        found["scripts"] += of_module(path.relative_to(root).as_posix(), path.read_text())[0]
    return dict(found)


def _package(path: Path) -> str:
    """Return the area of a module: `callgate.cli`, `callgate.features.web`, or its top package."""
    _, top, *packages, _ = path.parts
    if top != "callgate":
        return top
    return ".".join((top, *packages[: 2 if packages[:1] == ["features"] else 1]))


def counts(found: Mapping[str, list[Sentence]]) -> dict[str, int]:
    """Return the number of flagged sentences by area."""
    return {area: sum(bool(s.problems()) for s in rows) for area, rows in found.items()}


def complaints(found: Mapping[str, list[Sentence]], budgets: Mapping[str, int]) -> list[str]:
    """Return a line for each area that breaks its budget."""
    lines = []
    for area, count in counts(found).items():
        if area not in budgets:
            allowed = len(found[area]) * NEW_AREA_PERCENT // 100
            if count > allowed:
                lines.append(f"{area}: {count} flagged sentences, {allowed} allowed (no budget)")
        elif count > budgets[area]:
            lines.append(f"{area}: {count} flagged sentences, budget {budgets[area]}")
        elif budgets[area] > count + SLACK:
            lines.append(f"{area}: budget {budgets[area]} is too generous for {count}: --update")
    gone = sorted(set(budgets) - set(found))
    return lines + [f"{area}: has a budget and no sentences: --update" for area in gone]


def lowered(present: Mapping[str, int], budgets: Mapping[str, int]) -> dict[str, int]:
    """Return budgets that are at most the old ones; gone areas have none, new ones no row."""
    return {area: min(present[area], old) for area, old in budgets.items() if area in present}


def rebalanced(present: Mapping[str, int], budgets: Mapping[str, int]) -> dict[str, int]:
    """Return the present counts as budgets.

    Raises `ValueError` if their sum exceeds the sum of the old budgets.
    """
    before, after = sum(budgets.values()), sum(present.values())
    if after > before:
        raise ValueError(f"{after} flagged sentences exceed the sum of the budgets, {before}.")
    return dict(present)


def read_budgets(root: Path) -> dict[str, int]:
    table = tomllib.loads((root / TABLE).read_text())
    return dict(table["budgets"])


def write_budgets(root: Path, budgets: Mapping[str, int]) -> None:
    rows = "".join(f'"{area}" = {budgets[area]}\n' for area in sorted(budgets))
    (root / TABLE).write_text(f"{_HEADER}[budgets]\n{rows}")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--table", action="store_true", help="print the counts by area")
    action.add_argument("--list", nargs="?", const="", metavar="PATH", help="print the sentences")
    action.add_argument("--update", action="store_true", help="lower the budgets")
    action.add_argument("--rebalance", action="store_true", help="adopt counts after a move")
    options = parser.parse_args(arguments)
    found, budgets = areas(root), read_budgets(root)
    if options.list is not None:
        for row in (row for rows in found.values() for row in rows):
            if row.path.startswith(options.list) and (problems := row.problems()):
                print(f"{row.path}:{row.line}: {row.text}  [{'; '.join(problems)}]")
        return 0
    if options.table:
        for area, count in sorted(counts(found).items()):
            total, budget = len(found[area]), budgets.get(area, "none")
            share = 100 * count / max(total, 1)
            print(f"{area:24}{total:6} sentences {count:5} flagged {share:5.1f} %  budget {budget}")
        return 0
    if options.update or options.rebalance:
        change = lowered if options.update else rebalanced
        try:
            budgets = change(counts(found), budgets)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        write_budgets(root, budgets)
    lines = complaints(found, budgets)
    for line in lines:
        print(line, file=sys.stderr)
    if lines:
        print("`python -m scripts.prose --list PATH` prints the sentences.", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
