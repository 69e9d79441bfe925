"""Plugins in the shapes in which they are written, and what is said of those that are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.host.driving import SAMPLES, Driven

METHODS = """
def init(self, config): return {"n": config.get("n", 0)}
def get_tool_schemas(self): return [{"name": "count", "input_schema": {"type": "object"}}]
def execute_tool(self, state):
    state["n"] += 1
    return {"success": True, "result": state["n"]}
"""
INDENTED = METHODS.replace("\n", "\n    ")
SHAPES = {
    "module": METHODS.replace("self, ", "").replace("self", ""),
    "class": f"class Plugin:{INDENTED}\n",
    "object": f"class A:{INDENTED}\nclass B(A): pass\nplugin = B()\n",
    "named class": f"class A:{INDENTED}\nclass B(A): pass\nplugin = B\n",
    "async": f"class Plugin:{INDENTED}\n".replace("def ", "async def "),
}


@pytest.mark.spec("S1-15", "S1-16", "S1-21", "S1-23", "S1-24")
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_a_plugin_is_found(shape: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(SHAPES[shape])
    with Driven("plugin.py", cwd=tmp_path) as driven:
        state = driven.init(n=4)["result"]["state"]
        assert state == {"n": 4}
        listed = driven.ask("get_tool_schemas", state=state)["result"]
        assert listed == {"value": [{"name": "count", "input_schema": {"type": "object"}}], "state": {"n": 4}}
        answer = driven.ask("execute_tool", tool_name="count", arguments={}, state=state)
        assert answer["result"] == {"value": {"success": True, "result": 5}, "state": {"n": 5}}
        assert driven.end() == 0


def test_a_module_is_found_where_the_host_was_started(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(SHAPES["module"])
    with Driven("mine.tools", cwd=tmp_path) as driven:
        assert driven.init()["result"]["state"] == {"n": 0}


def test_a_plugin_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("N = 7")
    (tmp_path / "plugin.py").write_text("from beside_it import N\n" + SHAPES["module"])
    with Driven(str(tmp_path / "plugin.py")) as driven:
        assert driven.init()["ok"] is True


@pytest.mark.spec("S1-23")
def test_a_method_takes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "def get_tool_schemas(**given): return [{'name': each, 'input_schema': {}} for each in given]\n"
        "def execute_tool(params, tool_name, *, more=1): return [params, tool_name, more]\n"
    )
    with Driven("plugin.py", cwd=tmp_path) as driven:
        assert driven.init()["result"]["state"] == {}
        names = [each["name"] for each in driven.ask("get_tool_schemas")["result"]["value"]]
        assert names == ["state"]
        answer = driven.ask("execute_tool", tool_name="a", arguments={"b": 1}, state={})
        assert answer["result"]["value"] == [{"tool_name": "a", "arguments": {"b": 1}, "state": {}}, "a", 1]


@pytest.mark.spec("S1-21")
def test_a_tool_class_in_a_list_is_a_tool_too(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "from callgate import TextBlock, ToolDefinition, ToolOutput\n"
        "class Hello:\n"
        "    definition = ToolDefinition(name='hello', description='', input_schema={'type': 'object'}, side_effects='none')\n"
        "    async def execute(self, input, context): return ToolOutput(content=[TextBlock('hi')])\n"
        "    async def cancel(self): return False\n"
        "TOOLS = [Hello]\n"
    )
    with Driven("tools.py", cwd=tmp_path) as driven:
        driven.init()
        assert driven.value("hello") == {"success": True, "output": {"content": [{"type": "text", "text": "hi"}]}}


WRONG = {
    "nothing.py": ("X = 1", "defines no tool"),
    "syntax.py": ("\ndef (", "syntax.py:2: "),
    "raises.py": ("\n\n1 / 0", "raises.py:3: ZeroDivisionError"),
    "wants.py": (
        "def get_tool_schemas(): ...\ndef execute_tool(name, arguments): ...",
        "wants.py:2: execute_tool wants name",
    ),
    "two.py": (f"class A:{INDENTED}\nclass B:{INDENTED}\n", "several plugins"),
    "refuses.py": (f"class A:{INDENTED}\n    def __init__(self): raise OSError('no')\n", "OSError: no"),
}


@pytest.mark.spec("S1-04")
@pytest.mark.parametrize("name", WRONG)
def test_a_plugin_that_cannot_be_used_is_named_on_stderr(name: str, tmp_path: Path) -> None:
    text, problem = WRONG[name]
    (tmp_path / name).write_text(text)
    with Driven(name, cwd=tmp_path) as driven:
        assert driven.process.wait(60) == 1
        assert problem in driven.stderr
        assert driven.left() == b""


@pytest.mark.parametrize("spec", ["missing.py", "no_such_module", "--script"])
def test_what_is_not_there_is_said_to_be_missing(spec: str) -> None:
    with Driven(spec) as driven:
        assert (driven.process.wait(60), spec in driven.stderr) == (1, True)


def test_the_command_line_says_how_it_is_used() -> None:
    with Driven() as driven:
        assert (driven.process.wait(60), "usage" in driven.stderr) == (2, True)


def test_the_command_of_callgate_runs_the_same_host() -> None:
    with Driven(str(SAMPLES), argv=(sys.executable, "-m", "callgate", "host")) as driven:
        driven.init()
        assert driven.value("add", x=1, y=2) == {"success": True, "result": 3}
        driven.run("c", "prints")
        assert driven.next()["ok"] is True
        assert (driven.end(), driven.left()) == (0, b"")


def test_the_command_of_callgate_wants_one_thing_to_run() -> None:
    for words in ([], ["a.py", "b.py"]):
        with Driven(*words, argv=(sys.executable, "-m", "callgate", "host")) as driven:
            assert driven.process.wait(60) == 2


# The end.

LINGERING = """
import asyncio, atexit, threading
from callgate import tool

@atexit.register
def told(): print("left in order", flush=True)

@tool(side_effects="none")
def idle() -> None:
    "Nothing."

@tool(side_effects="none")
def thread() -> None:
    "Leave a thread."
    threading.Thread(target=threading.Event().wait).start()

@tool(side_effects="none")
async def task(context: "ToolContext") -> None:
    "Never end."
    context.progress()
    await asyncio.to_thread(threading.Event().wait)

@tool(side_effects="none")
def function(context: "ToolContext") -> None:
    "Never end."
    context.progress()
    threading.Event().wait()
"""


@pytest.mark.spec("S1-47")
@pytest.mark.parametrize("tool", ["idle", "thread", "task", "function"])
def test_stdin_that_ends_ends_the_host_whatever_still_runs(tool: str, tmp_path: Path) -> None:
    (tmp_path / "lingering.py").write_text(LINGERING)
    with Driven("lingering.py", cwd=tmp_path) as driven:
        driven.init()
        driven.run("c", tool)
        driven.next()
        assert driven.end() == 0
        assert ("left in order" in driven.stderr) == (tool == "idle")


def test_a_call_that_waits_for_its_turn_does_not_begin_when_stdin_has_ended() -> None:
    with Driven(str(SAMPLES)) as driven:
        driven.init()
        driven.run("a", "until_read", path="x")
        driven.next()
        driven.run("b", "prints")
        assert driven.end() == 0
        assert "printed" not in driven.stderr


def test_a_tool_that_waits_for_the_runtime_is_told_that_it_has_gone() -> None:
    with Driven(str(SAMPLES)) as driven:
        driven.init()
        driven.run("a", "until_read", path="x")
        driven.next()
        assert driven.end() == 0
        assert b"ShuttingDown" in driven.left()


def test_requests_may_come_from_a_file(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.write_bytes(b'{"v":1,"id":"1","method":"nope"}\n')
    with asked.open() as requests:
        ended = subprocess.run(
            [sys.executable, "-m", "callgate.host", SAMPLES], stdin=requests, capture_output=True, timeout=20
        )
    assert (ended.returncode, b"MethodNotFound" in ended.stdout) == (0, True)


def test_a_host_without_stderr_still_answers() -> None:
    argv = ("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "callgate.host")
    with Driven(str(SAMPLES), argv=argv) as driven:
        driven.init()
        assert driven.value("add", x=1, y=2) == {"success": True, "result": 3}
        assert driven.call("prints")["ok"] is True
        assert (driven.end(), driven.left()) == (0, b"")
