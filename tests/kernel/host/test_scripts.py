"""Executables as tools: any language, ten lines."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.host.driving import PATIENCE_S, Driven
from tests.kernel.packages import host_suite
from tests.kernel.packages.host_suite import Driver, Start
from tests.needs import needs

SUITE = [
    host_suite.what_is_no_request_is_answered_once_and_the_host_goes_on,
    host_suite.another_version_is_a_protocol_error,
    host_suite.an_unknown_method_is_refused_and_the_host_goes_on,
    host_suite.wrong_params_are_a_protocol_error,
    host_suite.texts_survive_whatever_is_in_them,
    host_suite.four_mebibytes_come_back,
    host_suite.a_line_too_long_is_refused_in_both_directions,
    host_suite.the_host_exits_when_stdin_ends,
]
"""What does not need a plugin with a memory or a voice of its own."""


BASH = r"""#!/bin/bash
case "$1" in
  schema) cat <<'EOF'
[{"name": "count", "description": "Count.", "input_schema": {"type": "object"}},
 {"name": "say", "description": "Say.", "input_schema": {"type": "object"}},
 {"name": "fail", "description": "Fail.", "input_schema": {"type": "object"}},
 {"name": "leave", "description": "Leave.", "input_schema": {"type": "object"}},
 {"name": "hide", "description": "Leave.", "input_schema": {"type": "object"}},
 {"name": "hang", "description": "Hang.", "input_schema": {"type": "object"}}]
EOF
  ;;
  preview) [ "$2" = fail ] && exit 1; echo "would $2 $(cat)" ;;
  run) case "$2" in
    count) tr -cd a | wc -c ;;
    say) cat ; echo ;;
    fail) for n in $(seq 100); do echo "line $n" >&2; done; exit 3 ;;
    leave) sleep 600 & echo left ;;
    hide) setsid sleep 15 & echo hidden ;;
    hang) sleep 600 & echo $! >&2; wait ;;
  esac ;;
esac
"""
ECHO = """#!{python}
import json, sys
match sys.argv[1]:
    case "schema":
        print(json.dumps([dict(name=name, input_schema=dict(type="object")) for name in ("echo", "grow")]))
    case "run":
        given = json.load(sys.stdin)
        result = given if sys.argv[2] == "echo" else "x" * given["size"]
        print(json.dumps(dict(success=True, result=result), ensure_ascii=False))
    case _:
        sys.exit(1)
"""


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    with Driven("--script", script(tmp_path_factory.mktemp("scripts") / "tool.sh", BASH)) as driven:
        driven.init()
        yield driven
        assert driven.end() == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Driver] = []

    def start(plugin: str) -> Driver:
        path = script(tmp_path / plugin, ECHO.format(python=sys.executable))
        started.append(Driver([sys.executable, "-m", "callgate.host", "--script", path]))
        return started[-1]

    yield start
    for driver in started:
        driver.leave()


@pytest.mark.spec("S1-05", "S1-06", "S1-07", "S1-12", "S1-13", "S1-14", "S1-27", "S1-47", "S1-52")
@pytest.mark.spec("S1-53")
@pytest.mark.parametrize("scenario", SUITE, ids=lambda each: each.__name__)
def test_a_script_host_keeps_what_it_can_of_the_suite(scenario: Callable[[Start], None], start: Start) -> None:
    scenario(start)


@pytest.mark.spec("S1-21", "S1-23", "S1-24", "S1-43")
def test_a_script_describes_and_runs_its_tool(bash: Driven) -> None:
    listed = bash.ask("get_tool_schemas", state={})["result"]["value"]
    assert [each["name"] for each in listed] == ["count", "say", "fail", "leave", "hide", "hang"]
    assert bash.call("count", text="banana")["result"] == {"value": 3, "state": {}}
    assert bash.value("say", a=1) == {"a": 1}
    preview = bash.ask("format_tool_call_preview", tool_name="count", arguments={"b": 2}, state={})
    assert preview["result"]["value"] == 'would count {"b": 2}'


def test_a_preview_that_fails_is_none(bash: Driven) -> None:
    preview = bash.ask("format_tool_call_preview", tool_name="fail", arguments={}, state={})
    assert preview["result"]["value"] is None


@pytest.mark.parametrize(("tool", "text"), [("leave", "left"), ("hide", "hidden")])
def test_a_script_has_ended_whatever_it_left_behind(bash: Driven, tool: str, text: str) -> None:
    assert bash.value(tool) == {"success": True, "result": text}


def test_an_unknown_tool_is_said_to_be_unknown(bash: Driven) -> None:
    assert bash.call("nobody")["error"]["type"] == "UnknownTool"


@pytest.mark.spec("S1-24")
def test_an_exit_code_is_a_failure_with_the_last_of_stderr(bash: Driven) -> None:
    bash.run("c", "fail")
    said = ""
    while "event" in (frame := bash.next()):
        said += frame["event"]["payload"]["text"]
    assert said == "".join(f"line {n}\n" for n in range(1, 101))
    assert frame["result"]["value"] == {
        "success": False,
        "error": "\n".join(f"line {n}" for n in range(81, 101)),
        "output": {"metadata": {"exit_code": 3}},
    }


@pytest.mark.spec("S1-49")
@needs("linux")
def test_a_cancelled_script_is_ended_with_all_that_it_started(bash: Driven) -> None:
    bash.run("c", "hang")
    child = os.pidfd_open(int(bash.part()["text"]))
    bash.send("x", "cancel", id="c")
    assert [bash.next()["error"]["type"], bash.next()["id"]] == ["Cancelled", "x"]
    try:
        assert select.select([child], [], [], PATIENCE_S)[0] == [child]
    finally:
        os.close(child)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\necho '{'",
        "#!/bin/sh\necho 5",
        "#!/bin/sh\necho broken >&2; exit 1",
        "#!/bin/sh\necho '{}'",
        "#!/no/such/program",
    ],
)
def test_a_script_that_cannot_say_what_it_is_fails_the_listing_and_is_named(text: str, tmp_path: Path) -> None:
    path = script(tmp_path / "bad", text)
    with Driven("--script", path) as driven:
        driven.init()
        assert path in driven.ask("get_tool_schemas")["error"]["detail"]


def test_what_cannot_be_executed_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(BASH)
    for path in (tmp_path / "plain", tmp_path / "missing", tmp_path):
        with Driven("--script", str(path)) as driven:
            assert (driven.process.wait(60), str(path) in driven.stderr) == (1, True)
