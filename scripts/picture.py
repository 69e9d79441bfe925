"""Draw approval questions on a terminal, from real runs: docs/images/question.svg, network.svg.

.venv/bin/python -m scripts.picture
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

from scripts.terminal_svg import MARGIN, ROW, head, row_spans

COLUMNS, ROWS = 92, 26
BEFORE = "def greet(name):\n    print('hello', name)\n\n\ngreet('world')\n"
AFTER = BEFORE.replace("'hello', name", "f'Good morning, {name}!'").replace("world", "\x1b[2Jworld")
INSTALL = "curl -sSO https://files.example.org/tool.tar.gz\n"
IMAGES = Path(__file__).parents[1] / "docs/images"


def record(workspace: Path, arguments: list[str]) -> pyte.Screen:
    """Run a command on a separate terminal until it asks; return the screen."""
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
    lines = [
        head(COLUMNS, 58 + ROW * len(rows)),
        f'<text x="{MARGIN}" y="28" fill="#7f848e" xml:space="preserve">$ {escape(title)}</text>',
    ]
    lines += [
        f'<text x="{MARGIN}" y="{52 + ROW * index}" xml:space="preserve">'
        f"{row_spans(screen, row)}</text>"
        for index, row in enumerate(rows)
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    # Not in /tmp, which commands do not see.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="callgate-") as directory:
        os.environ["CALLGATE_HOME"] = f"{directory}/home"
        workspace = Path(directory, "project")
        workspace.mkdir()
        (workspace / "greet.py").write_text(BEFORE)
        (workspace / "new.py").write_text(AFTER)
        (workspace / "install.sh").write_text(INSTALL)
        write = ["call", "write_file", "path=greet.py", f"content={AFTER}"]
        run = ["call", "--mode", "guarded", "shell", "command=sh install.sh"]
        pictures = {
            "question": (write, 'callgate call write_file path=greet.py content="$(cat new.py)"'),
            "network": (run, 'callgate call --mode guarded shell command="sh install.sh"'),
        }
        IMAGES.mkdir(exist_ok=True)
        for name, (arguments, title) in pictures.items():
            svg = draw(record(workspace, arguments), title)
            (IMAGES / f"{name}.svg").write_text(svg.replace(directory, "~"))


if __name__ == "__main__":
    main()
