"""A question on a terminal: what does not fit is opened page by page, and only then allowed.

    show ---all on the screen---------------------------> choices ---a letter---> answer
      '-----cut, with a mark---> choices ---f, or a yes---> pages ---> choices

A yes counts only if all of the question stood on the screen at its present size, or if every
page was opened. A no counts always. The screen is the person's: one that changed its size is
drawn again before a yes counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from callgate.cli.ui.question import NARROWEST, Shown, choices_text
from callgate.cli.ui.tty import MARK, BegunBefore, Tty
from callgate.cli.ui.visible import clip, wrapped

_OPEN, _QUIT, _NO = "f", "q", "n"
_YES_NO = {"y": "[y]es", _NO: "[n]o"}
_PAGE_WORDS = {"more": "", "back": _QUIT, "quit": _QUIT, "no": _NO}
_BRACKETS = {ord("["): None, ord("]"): None}
_LOWEST = 3
_TOO_SMALL = "callgate: the window is too small for this; make it larger to allow it\n"


class Document(Protocol):
    """What is asked about, for a screen of any size."""

    def text(self, width: int, rows: int) -> Shown: ...

    def rows(self, width: int) -> Iterable[str]: ...


class Dialog:
    """One question to one person, within `tty.asking()`."""

    def __init__(self, tty: Tty, document: Document) -> None:
        self._tty = tty
        self._document = document
        self._opened = False

    async def choose(
        self, choices: Mapping[str, str], allowing: Collection[str], question: str = "Allow?"
    ) -> str | None:
        """The letter that was chosen, or what was typed instead; None at the end of all input.

        Args:
            choices: how each letter is offered.
            allowing: letters that count only once everything was seen.
        """
        while True:
            size = self._tty.size()
            shown = self._show(choices, question, size)
            try:
                line = await self._tty.ask(shown.text + MARK)
            except BegunBefore:
                continue
            word = None if line is None else _letter(line.strip().lower(), choices)
            if word == _OPEN or (word in allowing and shown.cut and not self._opened):
                if await self._open() == _NO:
                    return _NO
            elif word not in allowing or self._opened or self._tty.size() == size:
                return word

    def _show(self, choices: Mapping[str, str], question: str, size: tuple[int, int]) -> Shown:
        """The question and the choices, and whether any of it is cut."""
        width, height = size
        offered = choices_text(choices, width, question)
        shown = self._document.text(width, height - 1 - offered.count("\n"))
        if shown.cut and not self._opened:
            offered = choices_text({_OPEN: "show [f]ull text first", **choices}, width, question)
            shown = self._document.text(width, height - 1 - offered.count("\n"))
        return Shown(shown.text + offered, shown.cut)

    async def _open(self) -> str | None:
        """Show all of it, a page at a time; `n` if that was the answer to a page."""
        while True:
            size = self._tty.size()
            if size[0] < NARROWEST or size[1] < _LOWEST:
                self._tty.write(_TOO_SMALL)
                return None
            word = await self._pages(*size)
            if word != "":
                return word
            if self._tty.size() == size:
                self._opened = True
                return None

    async def _pages(self, width: int, height: int) -> str:
        """An empty text once the last page was turned, or the window changed meanwhile."""
        first = 1
        for page in _paged(self._document.rows(width), max(height - 2, 1)):
            last = first + len(page) - 1
            prompt = clip(f"-- rows {first:,} to {last:,}: [Enter] more  [q]uit  [n]o", width - 4)
            word = await self._turn("".join(f"{row}\n" for row in page), prompt)
            if word or self._tty.size() != (width, height):
                return word
            first = last + 1
        return ""

    async def _turn(self, page: str, prompt: str) -> str:
        """The page stands there, whole, when the line is typed that turns it."""
        while True:
            try:
                line = await self._tty.ask(page + prompt + MARK)
            except BegunBefore:
                continue
            word = _NO if line is None else line.strip().lower()
            word = _PAGE_WORDS.get(word, word)
            if word in ("", _QUIT, _NO):
                return word


async def agreed(tty: Tty, document: Document, question: str) -> bool:
    """A yes or no to anything else than a call, under the same rules."""
    async with tty.asking():
        word = await Dialog(tty, document).choose(_YES_NO, {"y"}, question)
    return word == "y"


class Lines:
    """A document of lines that are safe to show as they are."""

    def __init__(self, lines: Collection[str]) -> None:
        self._lines = lines

    def text(self, width: int, rows: int) -> Shown:
        found = list(islice(self.rows(max(width, 2)), max(rows, 0) + 1))
        cut = len(found) > rows
        if cut:
            found = [*found[: max(rows - 1, 0)], clip("[more: f opens it]", max(width - 1, 8))]
        return Shown("".join(f"{row}\n" for row in found), cut)

    def rows(self, width: int) -> Iterator[str]:
        for line in self._lines:
            for row in wrapped(line, width - 1):
                yield row.text


def _paged(rows: Iterable[str], size: int) -> Iterator[list[str]]:
    following = iter(rows)
    while page := list(islice(following, size)):
        yield page


def _letter(word: str, choices: Mapping[str, str]) -> str:
    """`y` also for `yes`, the first word of the label `[y]es once`."""
    labels = {**choices, _OPEN: "[f]ull"}
    spelt = {label.translate(_BRACKETS).split()[0]: letter for letter, label in labels.items()}
    return spelt.get(word, word)
