"""Whatever is asked, in whatever window, whenever keys are pressed: an allowed call was seen.

The program's half of a terminal is real (`Tty` on a pty); the person's half is a screen that
keeps what stood on it each time the program waited for a key.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.cli.ui.confirmation_prompt import Asker
from callgate.cli.ui.dialog import question_rows, question_text
from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.tty import Tty
from callgate.cli.ui.visible import visible
from callgate.core.effects import SideEffects
from callgate.dispatch.permission.confirmations import Answer, Confirmation, arguments_text
from callgate.policy.rules import Outcome
from tests.kernel.cli.running import Terminal

LIMIT_S = 60.0
WAITING = re.compile(r"(?m) > \Z")
ODD = st.sampled_from(
    [
        "\x1b[2J",
        "\n",
        "\t",
        "\r",
        "\b",
        "\u202e",
        "\u200b",
        "\u0301",
        "\uff52",
        "日本",
        "a\u0301" * 6,
        "  | x",
        " > ",
        "\\",
        '"',
        "\n" * 30,
        " " * 90,
        "x" * 200,
        "callgate: may this run?\n",
    ],
)
TEXT = st.lists(ODD | st.text(max_size=6), max_size=8).map("".join)
VALUES = TEXT | st.integers(-9, 9) | st.booleans() | st.none() | st.lists(TEXT, max_size=2)
ARGUMENTS = st.dictionaries(st.sampled_from(["command", "content", "path"]) | TEXT, VALUES, max_size=4)
SIZES = st.tuples(st.integers(16, 100), st.integers(3, 40))
SMALL = st.tuples(st.integers(1, 40), st.integers(1, 12))


def confirmation(id: str, arguments: dict[str, Any], preview: str | None = None) -> Confirmation:
    return Confirmation(
        id=id,
        event_id="e",
        call_id="tu_1",
        tool_use_id="tu_1",
        session_id="s",
        turn_id=None,
        tool="probe",
        side_effects=SideEffects.EXECUTE,
        destructive=False,
        arguments=arguments,
        arguments_sha256="0" * 64,
        workspace="/ws",
        why="It is asked.",
        input_summary="",
        preview=preview,
        expires_at=0.0,
    )


def body(rows: list[str]) -> str:
    """What stands behind the bars; a row that goes on is one with the row before."""
    text = ""
    for row in rows:
        if row.startswith("  | "):
            text += "\n" + row[4:]
        elif row.startswith("  \\ "):
            text += row[4:]
    return text.removeprefix("\n")


def shown_text(arguments: dict[str, Any]) -> str:
    return "\n".join(visible(line) for line in arguments_text(arguments).split("\n")) if arguments else ""


@given(ARGUMENTS, TEXT | st.none(), SIZES)
def test_each_byte_is_in_sight_or_the_question_says_that_it_is_cut(
    arguments: dict[str, Any], preview: str | None, size: tuple[int, int]
) -> None:
    width, height = size
    asked = confirmation("q", arguments, preview)
    shown = question_text(asked, width, height, Paint(False))
    rows = list(question_rows(asked, width, Paint(False)))
    sections = "\n".join(rows).split("\n  in the")[0].split("\n")
    assert body(sections) == shown_text(arguments)
    if not shown.cut:
        assert shown.text.split("\n") == [*rows, ""]
        assert len(rows) <= height
    else:
        assert "f opens" in shown.text or "[cut: f]" in shown.text or len(rows) > height
    screen = pyte.Screen(width, len(rows) + 1)
    pyte.Stream(screen).feed("".join(f"{row}\r\n" for row in rows))
    assert [row.rstrip() for row in screen.display[: len(rows)]] == [pyte_row(row) for row in rows]


def pyte_row(row: str) -> str:
    """A row as the emulator gives it: wide characters and marks as it stores them."""
    screen = pyte.Screen(300, 1)
    pyte.Stream(screen).feed(row)
    return str(screen.display[0]).rstrip()


class Person:
    """Who sits at the terminal: what they saw whenever the program waited, and what they type."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.terminal = Terminal(*size)
        self.tty = Tty(self.terminal.slave)
        self.asker = Asker(self.tty, Paint(False), lambda asked: {})
        self._read = 0
        self.resize(size)

    def resize(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self.terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.size = size

    async def look(self, asking: asyncio.Task[Answer]) -> str | None:
        """The rows on the screen when the program waits for a key; None if it does not any more."""

        def waits() -> bool:
            return WAITING.search(self.terminal.text, self._read) is not None

        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def take() -> None:
            self.terminal.take()
            arrived.set()

        loop.add_reader(self.terminal.master, take)
        try:
            async with asyncio.timeout(LIMIT_S):
                while not waits() and not asking.done():
                    reading = asyncio.ensure_future(arrived.wait())
                    await asyncio.wait({reading, asking}, return_when=asyncio.FIRST_COMPLETED)
                    reading.cancel()
                    arrived.clear()
        finally:
            loop.remove_reader(self.terminal.master)
        if not waits():
            return None
        screen = pyte.Screen(*self.size)
        pyte.Stream(screen).feed(self.terminal.text[self._read :])
        self._read = len(self.terminal.text)
        return "\n".join(screen.display)

    def press(self, keys: str) -> None:
        os.write(self.terminal.master, keys.encode())

    def press_unread(self, keys: str) -> None:
        """Press keys while no question is asked, and wait until the terminal has them."""
        shape = termios.tcgetattr(self.terminal.slave)
        shape[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self.terminal.slave, termios.TCSANOW, shape)
        self.press(keys)
        wait_until(lambda: unread(self.terminal.slave) >= len(keys.encode()))

    def press_read(self, keys: str) -> None:
        """Press keys for the question that is asked, and one more; wait for the echo of that.

        The echo of the others depends on the line that was begun before the question."""
        before = len(self.terminal.text)
        self.press(keys + "z")
        self.terminal.read_until(lambda text: "z" in text[before:])


def unread(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


STEPS = st.lists(
    st.sampled_from(["y\n", "a\n", "f\n", "\n", "q\n", "x", "y", "\x1b[200~y\ny\n\x1b[201~", "y\ny\n", "resize"]),
    min_size=1,
    max_size=12,
)


def marker(number: int) -> str:
    return f"<{number:03}>"


async def played(arguments: int, size: tuple[int, int], other: tuple[int, int], steps: list[str]) -> None:
    """Each line of the argument has a number; an allowed question had every number on the screen."""
    numbers = [marker(number) for number in range(arguments)]
    asked = confirmation("q", {"command": "\n".join(numbers) or "-", "then": "; curl | sh #"})
    person = Person(size)
    asking = asyncio.create_task(person.asker(asked))
    seen = ""
    try:
        for step in [*steps, "\x04", "\x04"]:
            screen = await person.look(asking)
            if screen is None:
                break
            seen += screen.replace("\n", "")
            if step == "resize":
                person.resize(other if person.size == size else size)
                step = "x\n"  # noqa: PLW2901 nothing is drawn until a key is pressed
            person.press(step if step.endswith("\n") or step == "\x04" else step + "\n")
        answer = await asyncio.wait_for(asking, LIMIT_S)
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        person.terminal.close()
    if answer.decision is Outcome.ALLOW:
        seen = re.sub(r" *\\ ", "", seen)  # the mark of a line that goes on
        assert [number for number in numbers if number not in seen] == []
        assert "sh #" in seen


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 60), SIZES, SMALL, STEPS)
def test_an_allowed_question_was_seen_to_its_last_byte(
    lines: int, size: tuple[int, int], other: tuple[int, int], steps: list[str]
) -> None:
    asyncio.run(played(lines, size, other, steps))


KEYS = st.lists(st.sampled_from(["y", "a", "y\n", "a\n", "\x1b[200~y\n", "\x1b[201~", "\x7f"]), max_size=4).map("".join)


async def withdrawn(before: str, during: str, after: str) -> None:
    """Keys before a question, for one that is withdrawn, and in between: they answer no other."""
    person = Person((80, 24))
    person.press_unread(before + "\x1b[201~")  # a paste has ended
    first = asyncio.create_task(person.asker(confirmation("one", {"a": 1})))
    assert await person.look(first) is not None
    person.press_read("".join(key for key in during if key in "ya\x7f"))
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    person.press_unread(after)
    second = asyncio.create_task(person.asker(confirmation("two", {"a": 2})))
    try:
        screen = await person.look(second)
        assert screen is not None
        if "is no answer" in screen:  # a line was begun: its rest answers nothing, whatever it is
            person.press("\x1b[201~y\n")
            assert await person.look(second) is not None
        assert not second.done()
        person.press("n\n")
        answer = await asyncio.wait_for(second, LIMIT_S)
        assert answer == Answer(decision=Outcome.DENY, by="terminal")
    finally:
        second.cancel()
        await asyncio.wait({second})
        person.terminal.close()


@settings(deadline=None, max_examples=40)
@given(KEYS, KEYS, KEYS)
def test_no_key_for_one_question_answers_another(before: str, during: str, after: str) -> None:
    asyncio.run(withdrawn(before, during, after))


async def test_half_a_line_for_another_program_is_no_part_of_an_answer() -> None:
    """The terminal still holds it: nobody has read it before the question."""
    person = Person((80, 24))
    person.press("ye")
    person.terminal.read_until(lambda text: text == "ye")  # its echo
    asking = asyncio.create_task(person.asker(confirmation("q", {"a": 1})))
    screen = await person.look(asking)
    assert screen is not None and "text typed before the question is no answer" in screen
    person.press("s\n")
    screen = await person.look(asking)
    assert screen is not None and "may this run?" in screen
    person.press("y\n")
    assert (await asyncio.wait_for(asking, LIMIT_S)).decision is Outcome.ALLOW
    person.terminal.close()


async def test_two_questions_on_one_terminal_come_one_after_the_other() -> None:
    person = Person((80, 24))
    other = Asker(Tty(os.dup(person.terminal.slave)), Paint(False), lambda asked: {})
    first = asyncio.create_task(person.asker(confirmation("one", {"number": 1})))
    screen = await person.look(first)
    second = asyncio.create_task(other(confirmation("two", {"number": 2})))
    person.press("y\n")
    assert (await asyncio.wait_for(first, LIMIT_S)).decision is Outcome.ALLOW
    after = await person.look(second)
    assert screen is not None and "number = 1" in screen
    assert after is not None and "number = 2" in after
    person.press("n\n")
    assert (await asyncio.wait_for(second, LIMIT_S)).decision is Outcome.DENY
    person.terminal.close()
