"""Draws docs/images/question.svg: the question as a terminal shows it, from a real run.

    .venv/bin/python scripts/picture.py
"""

from __future__ import annotations

import os
import pty
import select
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

COLUMNS, ROWS = 92, 26
COLOURS = {"red": "#e06c75", "green": "#98c379", "brown": "#e5c07b", "blue": "#61afef",
           "cyan": "#56b6c2", "magenta": "#c678dd", "default": "#d7dae0"}  # fmt: skip
BEFORE = "def greet(name):\n    print('hello', name)\n\n\ngreet('world')\n"
AFTER = BEFORE.replace("'hello', name", "f'Good morning, {name}!'").replace("world", "\x1b[2Jworld")
TARGET = Path(__file__).parents[1] / "docs/images/question.svg"


def record(workspace: Path, arguments: list[str]) -> pyte.Screen:
    """Run a command on a terminal of its own until it asks; return what the screen shows."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    command = [str(Path(sys.executable).with_name("callgate")), *arguments]
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(workspace)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.environ.pop("NO_COLOR", None)
        os.execv(command[0], command)
    while not any("Allow?" in line for line in screen.display):
        ready, _, _ = select.select([master], [], [], 20)
        if not ready:
            raise SystemExit("no question came")
        stream.feed(os.read(master, 65_536))
    os.write(master, b"n\n")
    os.waitpid(pid, 0)
    return screen


def draw(screen: pyte.Screen, title: str) -> str:
    shown = [number for number, line in enumerate(screen.display) if line.strip()]
    rows = range(shown[0], shown[-1] + 1)
    height = 58 + 19 * len(rows)
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' width="{COLUMNS * 8.4 + 40:.0f}" height="{height}"'
        ' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        '<rect width="100%" height="100%" rx="8" fill="#1e2127"/>',
        f'<text x="20" y="28" fill="#7f848e" xml:space="preserve">$ {escape(title)}</text>',
    ]
    for index, row in enumerate(rows):
        spans = []
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            colour = COLOURS.get(cell.fg, COLOURS["default"])
            style = f'fill="{colour}"' + (' font-weight="bold"' if cell.bold else "")
            if spans and spans[-1][0] == style:
                spans[-1][1].append(cell.data)
            else:
                spans.append((style, [cell.data]))
        text = "".join(f"<tspan {s}>{escape(''.join(c))}</tspan>" for s, c in spans)
        lines.append(f'<text x="20" y="{52 + 19 * index}" xml:space="preserve">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CALLGATE_HOME"] = f"{directory}/home"
        workspace = Path(directory, "project")
        workspace.mkdir()
        (workspace / "greet.py").write_text(BEFORE)
        (workspace / "new.py").write_text(AFTER)
        arguments = ["call", "write_file", "path=greet.py", f"content={AFTER}"]
        screen = record(workspace, arguments)
        svg = draw(screen, 'callgate call write_file path=greet.py content="$(cat new.py)"')
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(svg.replace(directory, "~"))


if __name__ == "__main__":
    main()
