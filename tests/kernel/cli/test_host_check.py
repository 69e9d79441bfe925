"""`callgate host check`: whoever writes a host learns what is wrong with it, by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from callgate.cli.hosts.check import REQUIRED
from callgate.cli.hosts.probes import OPTIONAL, PROBES
from tests.kernel.cli.running import Ran, callgate, wait_until_gone
from tests.needs import needs

PROJECT = Path(__file__).parents[3]
PLUGINS = PROJECT / "tests" / "kernel" / "packages" / "plugins"
LEAST = [sys.executable, str(Path(__file__).parent / "least_host.py")]
PYTHON = [sys.executable, "-m", "callgate.host"]
NODE = ["node", str(PROJECT / "packages" / "tool-host-node" / "host.mjs")]
CHECKS = ["init", *PROBES, "stdin ends", "stdout", "one answer"]
SILENT = ("mute", "short")
"""Faults for which the answer is waited for in vain."""
SCRIPT = """#!/bin/sh
case "$1" in
  schema) echo '{"name": "say", "description": "", "input_schema": {"type": "object"}}' ;;
  preview) echo "say it" ;;
  run) echo '"said"' ;;
esac
"""


def check(*words: str, cwd: Path, options: tuple[str, ...] = ()) -> Ran:
    return callgate("host", "check", "--json", *options, "--", *words, cwd=cwd)


def by_level(ran: Ran) -> dict[str, list[str]]:
    levels: dict[str, list[str]] = {}
    for each in ran.json["checks"]:
        levels.setdefault(each["level"], []).append(each["check"])
    return levels


def seen(ran: Ran, name: str) -> str:
    (found,) = [each["seen"] for each in ran.json["checks"] if each["check"] == name]
    return str(found)


def without(*names: str) -> list[str]:
    return [each for each in OPTIONAL if each not in names]


@pytest.mark.spec("S1-12", "S1-13", "S1-35")
def test_the_least_host_does_all_that_is_recommended(ws: Path) -> None:
    ran = check(*LEAST, cwd=ws)
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert by_level(ran) == {"ok": CHECKS, "not offered": [*OPTIONAL]}
    assert seen(ran, "tools") == "one, two, three, four"


def test_the_python_host_does_all_that_is_recommended(ws: Path) -> None:
    ran = check(*PYTHON, str(PLUGINS / "noisy.py"), cwd=ws)
    assert ran.code == 0
    assert by_level(ran)["not offered"] == without("cancel")
    optional = check(*PYTHON, str(PLUGINS / "optional.py"), cwd=ws)
    assert (optional.code, list(by_level(optional))) == (0, ["ok"])


@needs("node")
def test_the_node_host_does_all_that_is_recommended(ws: Path) -> None:
    ran = check(*NODE, str(PLUGINS / "noisy.mjs"), cwd=ws)
    assert ran.code == 0
    assert by_level(ran)["not offered"] == without("cancel")
    optional = check(*NODE, str(PLUGINS / "optional.mjs"), cwd=ws)
    assert (optional.code, list(by_level(optional))) == (0, ["ok"])


def test_the_script_host_does_all_that_is_recommended(ws: Path) -> None:
    script = ws / "say.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    ran = check(*PYTHON, "--script", str(script), cwd=ws, options=("--call", "say"))
    assert ran.code == 0
    assert by_level(ran)["not offered"] == without("cancel", "format_tool_call_preview")
    assert seen(ran, "call") == "said"


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        ("twice", ["one answer"]),
        ("noise", ["stdout"]),
        ("stays", ["stdin ends"]),
        ("any v", ["wrong version"]),
        ("error id", ["wrong version", "one answer"]),
        ("schemas", ["tools"]),
        ("same names", ["tools"]),
        ("no tools", ["tools"]),
        ("method", ["unknown method"]),
        ("dies", ["not JSON"]),
        ("mute", ["not JSON", "no request", "line too long"]),
        ("wants params", ["absent params"]),
        ("strict", ["unknown keys", "big line"]),
        ("short", ["big line", "one answer"]),
        ("tags", ["get_tags"]),
        # Without an answer that can be taken, nearly everything is missing.
        (
            "state",
            [
                "tools",
                "state",
                "unknown method",
                "wrong version",
                "not JSON",
                "no request",
                "wrong params",
                "absent params",
                "unknown keys",
                "blank lines",
                "overlapping",
                "big line",
                "line too long",
            ],
        ),
        ("id", ["init", "one answer"]),
        ("v", ["init"]),
        ("no init", ["init"]),
        ("crash", ["init"]),
    ],
)
@pytest.mark.spec("S1-02", "S1-05", "S1-07", "S1-08", "S1-14", "S1-47")
def test_a_fault_is_found_by_the_checks_that_are_about_it(fault: str, failed: list[str], ws: Path) -> None:
    mark = f"mark-{fault}-{ws.parent}"
    patience = "2" if fault in SILENT else "30"
    ran = check(*LEAST, fault, mark, cwd=ws, options=("--timeout", patience))
    required = [each for each in failed if each in REQUIRED]
    assert (ran.code, ran.json["ok"]) == ((1, False) if required else (0, True))
    assert by_level(ran).get("FAILED", []) == required
    assert by_level(ran).get("recommended", []) == [each for each in failed if each not in REQUIRED]
    skipped = by_level(ran).get("skipped", [])
    assert skipped == ([*PROBES, *OPTIONAL] if "init" in failed else [])
    wait_until_gone(mark)


def test_an_optional_method_that_fails_is_no_fault(ws: Path) -> None:
    ran = check(*LEAST, "failing tags", cwd=ws)
    assert (ran.code, by_level(ran)["not offered"]) == (0, without("get_tags"))


@pytest.mark.parametrize(
    ("call", "fault", "failed"),
    [
        (("one", "n=41"), "", []),
        (("four",), "", ["call"]),
        (("none",), "", ["call"]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_a_tool_is_run_where_it_is_asked_for(call: tuple[str, ...], fault: str, failed: list[str], ws: Path) -> None:
    ran = check(*LEAST, *filter(None, [fault]), cwd=ws, options=("--call", *call))
    assert (ran.code, by_level(ran).get("FAILED", [])) == (1 if failed else 0, failed)
    if not failed:
        assert seen(ran, "call") == "42"


def test_a_host_that_runs_what_it_does_not_describe_is_advised(ws: Path) -> None:
    ran = check(*LEAST, "runs anything", cwd=ws, options=("--call", "one"))
    assert (ran.code, by_level(ran)["recommended"]) == (0, ["unknown tool"])


@pytest.mark.parametrize("way", [pytest.param("ignores", marks=pytest.mark.soak), "exits", "refuses"])
def test_a_host_with_the_required_methods_alone_passes(way: str, ws: Path) -> None:
    host = PROJECT / "tests" / "kernel" / "sources" / "hosts" / "required_host.py"
    words = [sys.executable, "-I", str(host), way, str(ws / "asked.txt")]
    patience = "3" if way == "ignores" else "30"  # it is waited for at each of a dozen questions
    ran = check(*words, cwd=ws, options=("--timeout", patience, "--call", "echo"))
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert [each["check"] for each in ran.json["checks"] if each["required"]] == ["init", "tools", "call"]
    assert "unknown method" in by_level(ran)["recommended"]


def test_no_tool_is_run_unless_it_is_asked_for(ws: Path) -> None:
    (ws / "tools.py").write_text(
        "from callgate import tool\n"
        "@tool(side_effects='write')\n"
        "def leave_a_mark() -> None:\n"
        "    '''Leave a mark.'''\n"
        "    open('mark', 'w').close()\n"
    )
    command = [*PYTHON, str(ws / "tools.py")]
    assert check(*command, cwd=ws).code == 0
    assert not (ws / "mark").exists()
    assert check(*command, cwd=ws, options=("--call", "leave_a_mark")).code == 0
    assert (ws / "mark").exists()


def test_its_config_is_handed_over_and_its_last_words_are_shown(ws: Path) -> None:
    (ws / "plugin.py").write_text(
        "import sys\n"
        "def init(config):\n"
        "    print('the root is', config['root'], file=sys.stderr)\n"
        "    return {}\n"
        "def get_tool_schemas():\n"
        "    return [{'name': 'a', 'input_schema': {}}]\n"
        "def execute_tool(): ...\n"
    )
    command = [*PYTHON, str(ws / "plugin.py")]
    assert by_level(check(*command, cwd=ws))["FAILED"] == ["init"]
    ran = check(*command, cwd=ws, options=("--config", '{"root": "/srv"}'))
    assert (ran.code, "the root is /srv" in ran.json["stderr"]) == (0, True)


def test_a_person_reads_one_line_a_check(ws: Path) -> None:
    ran = callgate("host", "check", "--", *LEAST, "twice", cwd=ws)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == len(CHECKS) + len(OPTIONAL)
    advised = [line.split()[1:3] for line in lines if line.startswith("recommended")]
    assert advised == [["one", "answer"]]


def test_what_cannot_be_started_or_was_not_named_is_said(ws: Path) -> None:
    missing = check("./no-such-program", cwd=ws)
    assert (missing.code, missing.json["error"]["reason"]) == (1, "not_started")
    assert callgate("host", "check", cwd=ws).code == 2
    for config in ("{", "[]"):
        assert check(*LEAST, cwd=ws, options=("--config", config)).code == 2
