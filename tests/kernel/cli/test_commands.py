"""Starting up: what is printed without running anything, and how little is loaded for it."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import callgate as package
from callgate.cli.command import Deferred
from callgate.cli.command_line import FIRST_WEEK, HEADINGS, every, help_text, parser_of, split, under
from callgate.cli.commands import CALLERS
from callgate.cli.errors import EXIT_CODES, CliError
from callgate.cli.options import MODES
from callgate.core.calls import CallerKind
from callgate.core.sessions import Mode
from callgate.feature import FEATURES, load
from tests.kernel.cli.running import callgate, environment

OURS = {name: each for name, each in every().items() if isinstance(each.run, Deferred)}
"""Without `completion` and the commands of packages."""

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
    # Completion reads what each feature and shipped package declares: three modules of each.
    assert len(modules) < BARE + {"--version": 56, "completion": 88}.get("".join(words[:1]), 74)


def test_the_version_waits_for_no_command(ws: Path) -> None:
    waited = {"argparse", "callgate.cli.command_line", "callgate.cli.commands", "callgate.feature"}
    assert loaded_by("--version", cwd=ws) & waited == set()


@pytest.mark.parametrize("words", [["trust", "--list"]], ids=" ".join)
def test_what_reads_only_files_loads_no_runtime(words: list[str], ws: Path) -> None:
    modules = loaded_by(*words, cwd=ws)
    assert modules & {"asyncio", "jsonschema_rs", "callgate.instance.wiring.runtime", "callgate.runtime"} == set()


def test_a_call_that_starts_no_command_loads_nothing_that_would(ws: Path) -> None:
    modules = loaded_by("call", "read_file", "path=a.txt", cwd=ws)
    unneeded = {
        "argparse",
        "shutil",
        "json",
        "callgate.sandbox.processes.broker_client",
        "callgate.sandbox.machines",
        "callgate.sources.packs",
        "callgate_catalogue",
        "callgate.tools.loading",
    }
    assert "callgate.tools.files" in modules and modules & unneeded == set()


@pytest.mark.parametrize("words", [["tools"], ["call", "read_file", "path=a.txt"]], ids=lambda words: words[0])
def test_a_call_loads_only_what_it_needs(words: list[str], ws: Path) -> None:
    modules = loaded_by(*words, cwd=ws)
    modules_of = {name: each.run.function.__module__ for name, each in OURS.items() if isinstance(each.run, Deferred)}
    others = {*modules_of.values()} - {modules_of[words[0]]}
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
    declared = {f"callgate.features.{each.name}.commands" for each in FEATURES}
    assert modules & (others | declared | unneeded) == set()
    assert len(modules) < BARE + 424


def test_the_version_is_the_package_s(ws: Path) -> None:
    assert callgate("--version", cwd=ws).out == f"callgate {package.__version__}\n"


def test_help_names_every_command_and_every_exit_code(ws: Path) -> None:
    ran = callgate("help", "--all", cwd=ws)
    assert ran.code == 0
    assert [name for name in every() if f"\n  {name}" not in ran.out] == []
    assert [name for name in EXIT_CODES if name not in ran.out] == []
    assert callgate("--help", "--all", cwd=ws) == ran


def test_the_short_help_lists_ten_commands_by_topic(ws: Path) -> None:
    ran = callgate("--help", cwd=ws)
    assert (ran.code, callgate(cwd=ws)) == (0, ran)
    topics = [part for part in ran.out.split("\n\n") if part.split("\n")[0] in {f"{each}:" for each in FIRST_WEEK}]
    known = every()
    assert [row for topic in topics for row in topic.splitlines()[1:]] == [
        f"  {name:<21}{known[name].summary}" for names in FIRST_WEEK.values() for name in names
    ]
    assert sum(map(len, FIRST_WEEK.values())) == 10
    assert "callgate help --all" in ran.out
    assert len(ran.out.splitlines()) <= 30


def test_every_command_that_the_short_help_names_runs_or_helps(ws: Path) -> None:
    for words in re.findall(r"callgate (help --all)", callgate("--help", cwd=ws).out):
        assert callgate(*words.split(), cwd=ws).code == 0
    for name in (name for names in FIRST_WEEK.values() for name in names):
        assert callgate("help", *name.split(), cwd=ws).code == 0


def test_help_lists_each_command_once_under_its_heading(ws: Path) -> None:
    shown = callgate("--help", "--all", cwd=ws).out.split("\n\n")
    listed: list[str] = []
    for heading, words in HEADINGS.items():
        [part] = [part for part in shown if part.startswith(f"{heading}:\n")]
        shown_here = under(heading)
        assert part.splitlines()[1:] == [f"  {name:<21}{each.summary}" for name, each in shown_here.items()]
        assert {name for name in shown_here if not {name, name.split()[0]} & {*words}} == set()
        listed += shown_here
    assert listed == [*every()]


def test_each_feature_declares_the_commands_of_its_entry_in_the_list() -> None:
    for listed in FEATURES:
        feature = load(listed.name)
        assert feature is not None
        named = {each for name in feature.commands() for each in listed.commands if each in (name, name.split()[0])}
        assert named == {*listed.commands}


@pytest.mark.parametrize("words", ["chat", "chat --help", "mcp serve", "policy test x", "audit export"])
def test_a_command_of_a_removed_feature_says_that_it_is_not_installed(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callgate.cli.command_line.load", lambda name: None)
    with pytest.raises(CliError, match=r"needs the feature '\w+', which is not installed"):
        split(words.split())


def test_without_features_the_kernel_has_its_commands_and_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.cli.command_line.load", lambda name: None)
    assert {"call", "policy explain", "audit tail", "serve", "doctor"} <= {*every()}
    assert not {"chat", "policy test", "audit export", "mcp add"} & {*every()}
    assert split(["policy", "explain", "x"]) == ("policy explain", ["x"])
    for words in (["--help"], ["help", "--all"], ["policy", "--help"]):
        assert help_text(words)


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
    assert more == f"callgate {group} COMMAND --help describes one command."


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


@pytest.mark.parametrize("name", OURS)
def test_each_command_of_ours_has_a_function_of_its_own(name: str) -> None:
    run = OURS[name].run
    assert isinstance(run, Deferred)
    assert run.function.__module__.startswith("callgate.") and list(signature(run.function).parameters) == ["options"]


def test_the_choices_are_those_of_the_core() -> None:
    assert (set(MODES), set(CALLERS)) == (set(Mode), set(CallerKind))
