"""Starting up: what is printed without running anything, and how little is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

import callgate as package
from callgate.cli.command_line import FAMILIES, every, help_text, of_family, parser_of
from callgate.cli.command_modules import command_function
from callgate.cli.errors import EXIT_CODES
from callgate.cli.families.permissions import CALLERS
from callgate.cli.options import MODES
from callgate.core.calls import CallerKind
from callgate.core.sessions import Mode
from tests.unit.cli.running import callgate, environment

LOADED = """
import sys
from callgate.cli.main import main
code = main(sys.argv[1:])
print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def loaded_by(*words: str, cwd: Path) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(None),
        start_new_session=True,
        check=True,
    )
    return set(ran.stderr.split())


BARE = 34
"""Modules of an interpreter that does nothing, at most."""


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["completion", "bash"], []], ids=" ".join)
def test_what_prints_only_text_loads_next_to_nothing(words: list[str], ws: Path) -> None:
    modules = loaded_by(*words, cwd=ws)
    heavy = {"asyncio", "msgspec", "jsonschema_rs", "json", "logging", "subprocess"}
    assert modules & heavy == set()
    assert [name for name in modules if name.startswith("callgate.config")] == []
    # Help and completion show the commands of the packages that we ship, too.
    assert len(modules) < BARE + (56 if words == ["--version"] else 74)


def test_the_version_waits_for_no_command(ws: Path) -> None:
    waited = {"argparse", "callgate.cli.command_line", "callgate.cli.families"}
    assert loaded_by("--version", cwd=ws) & waited == set()


@pytest.mark.parametrize("words", [["trust", "--list"]], ids=" ".join)
def test_what_reads_only_files_loads_no_runtime(words: list[str], ws: Path) -> None:
    modules = loaded_by(*words, cwd=ws)
    assert modules & {"asyncio", "jsonschema_rs", "callgate.wiring.runtime", "callgate.runtime"} == set()


def test_a_call_that_starts_no_command_loads_nothing_that_would(ws: Path) -> None:
    modules = loaded_by("call", "read_file", "path=a.txt", cwd=ws)
    unneeded = {
        "argparse",
        "shutil",
        "json",
        "callgate.sandbox.processes.broker_client",
        "callgate.sandbox.machines",
        "callgate.sources.packs.packs",
        "callgate_catalogue",
        "callgate.tools.loading",
    }
    assert "callgate.tools.files" in modules and modules & unneeded == set()


@pytest.mark.parametrize("words", [["tools"], ["call", "read_file", "path=a.txt"]], ids=lambda words: words[0])
def test_a_call_loads_only_what_it_needs(words: list[str], ws: Path) -> None:
    modules = loaded_by(*words, cwd=ws)
    others = {command_function(name).__module__ for name, each in every().items() if each.run is None}
    others -= {command_function(words[0]).__module__}
    unneeded = {
        "callgate.gate",
        "callgate.sources.functions",
        "pydantic",
        "urllib.request",
        "http.client",
        "unittest",
        "multiprocessing",
        "xml",
    }
    families = {f"callgate.cli.families.{name}" for name in FAMILIES if name != "work"}
    assert modules & (others | families | unneeded) == set()
    assert len(modules) < BARE + 415


def test_the_version_is_the_package_s(ws: Path) -> None:
    assert callgate("--version", cwd=ws).out == f"callgate {package.__version__}\n"


def test_help_names_every_command_and_every_exit_code(ws: Path) -> None:
    ran = callgate("--help", cwd=ws)
    assert ran.code == 0
    assert [name for name in every() if f"\n  {name}" not in ran.out] == []
    assert [name for name in EXIT_CODES if name not in ran.out] == []
    assert callgate(cwd=ws) == ran


def test_help_lists_each_command_once_under_the_heading_of_its_family(ws: Path) -> None:
    shown = callgate("--help", cwd=ws).out.split("\n\n")
    listed = {}
    for family in FAMILIES:
        module = import_module(f"callgate.cli.families.{family}")
        [part] = [part for part in shown if part.startswith(f"{module.HEADING}:\n")]
        rows = part.splitlines()[1:]
        shown_here = of_family(family)
        assert rows == [f"  {name:<21}{each.summary}" for name, each in shown_here.items()]
        listed[family] = sorted({name.split()[0] for name in shown_here})
    assert listed == {family: sorted(words) for family, words in FAMILIES.items()}
    assert len(every()) == sum(part.count("\n  ") for part in shown[2 : 2 + len(FAMILIES)])


GROUPS = sorted({name.split()[0] for name in every() if " " in name} - set(every()))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_help_on_a_group_lists_its_commands_and_no_other(group: str, asked: str) -> None:
    text = help_text([group, asked])
    assert text is not None
    usage, commands, more = text.split("\n\n")
    assert usage == f"usage: callgate {group} COMMAND ..."
    assert commands.splitlines()[1:] == [
        f"  {name:<21}{each.summary}" for name, each in every().items() if name.split()[0] == group
    ]
    assert more == f"callgate {group} COMMAND --help says more."


def test_a_group_helps_where_it_is_asked_to_and_is_wrong_use_alone(ws: Path) -> None:
    helped = callgate("hosts", "--help", cwd=ws)
    assert (helped.code, helped.out) == (0, f"{help_text(['hosts', '--help'])}\n")
    for words in (["hosts"], ["hosts", "nonsense"], ["hosts", "nonsense", "--help"]):
        assert callgate(*words, cwd=ws).code == 2


@pytest.mark.parametrize(
    "words", ["host --help", "confirmations -h", "call --help", "mcp list --help", "nonsense --help"]
)
def test_a_command_s_own_help_is_not_that_of_a_group(words: str) -> None:
    assert help_text(words.split()) is None


def test_each_command_has_a_help_of_its_own(ws: Path) -> None:
    for name in every():
        assert parser_of(name).format_help().startswith(f"usage: callgate {name} ")
    assert callgate("call", "--help", cwd=ws).out == parser_of("call").format_help()


@pytest.mark.parametrize("name", [name for name, each in every().items() if each.run is None])
def test_each_command_of_ours_has_a_function_of_its_own(name: str) -> None:
    function = command_function(name)
    assert function.__module__.startswith("callgate.cli.") and list(signature(function).parameters) == ["options"]


def test_the_choices_are_those_of_the_core() -> None:
    assert (set(MODES), set(CALLERS)) == (set(Mode), set(CallerKind))
