"""`callgate serve --dev`: a host whose plugin was changed is taken over, if it can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.sources.host_handshake import stamps
from tests.kernel.cli.host_places import Place
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import start


@pytest.fixture
def place() -> Iterator[Place]:
    with short_directory() as base:
        yield Place(base)


class Developing:
    """An instance with `--dev`, and what it says."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.process = start("serve", "--dev", cwd=place.ws, env=place.env)
        assert self.process.stdout is not None and self.process.stderr is not None
        assert self.process.stdout.readline().startswith(b"callgate: listening on ")
        self.heard("--dev")

    def heard(self, words: str) -> str:
        """The next line that has these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words.encode() in line:
                return line.decode()
        raise AssertionError(f"it ended without a word of {words!r}")

    def edit(self, old: str, new: str) -> str:
        self.place.change(old, new)
        return self.heard("its new version")

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture
def developing(place: Place) -> Iterator[Developing]:
    developing = Developing(place)
    yield developing
    developing.close()


def test_a_changed_plugin_is_taken_over_without_a_word_of_ours(developing: Developing) -> None:
    place = developing.place
    assert place.refusal() == (0, None)
    said = developing.edit('"A tool."', '"Another tool."')
    assert "its new version is used" in said and "echo" in said
    assert place.refusal() == (0, None)
    assert "Another tool." in place.pin.read_text()
    assert "new_one added" in developing.edit(" raw ", " new_one ")
    assert (place.refusal("new_one"), place.refusal("raw")[0]) == ((0, None), 1)


def test_a_broken_version_leaves_the_old_one_serving(developing: Developing) -> None:
    place = developing.place
    assert place.refusal() == (0, None)
    pin = place.pin.read_bytes()
    assert "the old one continues" in developing.edit("import json\n", "import json, no_such_module\n")
    assert (place.refusal(), place.pin.read_bytes()) == ((0, None), pin)
    assert "is used" in developing.edit("import json, no_such_module", "import json")


def test_a_version_that_takes_anothers_name_is_not_used(developing: Developing) -> None:
    place = developing.place
    assert place.refusal() == (0, None)
    assert "read_file" in developing.edit(" pid ", " read_file ")
    assert (place.refusal(), place.refusal("pid")) == ((0, None), (0, None))


def test_a_call_under_way_survives_an_edit(developing: Developing) -> None:
    place = developing.place
    os.mkfifo(place.ws / "go")
    calling = start("call", "hang", cwd=place.ws, env=place.env)
    with open(place.ws / "go", "w") as go:  # opens when the call has opened it
        developing.edit('"A tool."', '"Another tool."')
        assert place.refusal() == (0, None)
        go.write("done at last")
    out, _ = calling.communicate(timeout=60)
    assert (calling.returncode, out) == (0, b"done at last\n")


def test_the_files_of_a_host_are_those_its_command_names_and_their_neighbours(tmp_path: Path) -> None:
    for name in ("web.mjs", "lib.js", "tools.py", "notes.txt", "run", "pkg/__init__.py", "pkg/more.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def found(*command: str) -> set[str]:
        return {str(Path(path).relative_to(tmp_path)) for path in stamps(command, str(tmp_path))}

    code = {"web.mjs", "lib.js", "tools.py"}
    assert found("node", "web.mjs") == code
    assert found("node", str(tmp_path / "lib.js"), "--x") == code
    assert found("./run", "notes.txt") == {"run", "notes.txt"}
    assert found("x", "-m", "pkg") == {"pkg/__init__.py", "pkg/more.py"}
    assert found("x", "pkg.more") == {"pkg/__init__.py", "pkg/more.py"}
    assert found("x", "nothing", "\0", ".") == set()
    before = stamps(["web.mjs"], str(tmp_path))
    (tmp_path / "lib.js").write_text("1")
    assert stamps(["web.mjs"], str(tmp_path)) != before
