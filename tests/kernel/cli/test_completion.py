"""Tab, in each shell: the script that `callgate completion` prints, run by the shell itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from callgate.cli.command_line import every, parser_of
from tests.kernel.cli.running import OPENS_TERMINAL, Terminal, callgate, environment
from tests.needs import needs

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


@pytest.mark.parametrize("words", [["completion"], ["completion", "tcsh"]], ids=" ".join)
def test_a_shell_we_do_not_know_is_wrong_use(words: list[str], ws: Path) -> None:
    assert callgate(*words, cwd=ws).code == 2


def complete_in_bash(script: str, words: list[str], cwd: Path) -> str:
    """What bash offers when Tab is pressed behind the words."""
    asked = f"""{script}
COMP_WORDS=({" ".join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _callgate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return in_shell(["bash", "--norc", "-c", asked], cwd)


def complete_in_zsh(script: str, words: list[str], cwd: Path) -> str:
    """What the function gives to `compadd`, which adds only what fits the word so far."""
    asked = f"""compdef() {{ : }}
_files() {{ print -rl -- "${{PREFIX}}"*(N) }}
compset() {{ PREFIX="${{PREFIX#$~2}}" }}
compadd() {{
  while [[ "$1" != -- ]]; do shift; done
  shift
  local word
  for word; do [[ "$word" == "$PREFIX"* ]] && print -r -- "$word"; done
}}
{script}
words=({" ".join(map(repr, words))}); CURRENT={len(words)}; PREFIX={words[-1]!r}; _callgate; :
"""
    return in_shell(["zsh", "-f", "-c", asked], cwd)


def complete_in_fish(script: str, words: list[str], cwd: Path) -> str:
    (cwd.parent / "script.fish").write_text(script)
    asked = f"source ../script.fish; complete -C {' '.join(words)!r}"
    return in_shell(["fish", "--no-config", "-c", asked], cwd)


def in_shell(command: list[str], cwd: Path) -> str:
    ran = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment({"PATH": PATH}),
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout


COMPLETERS = {"bash": complete_in_bash, "zsh": complete_in_zsh, "fish": complete_in_fish}
in_each_shell = pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in COMPLETERS])


def completed(shell: str, *words: str, cwd: Path) -> set[str]:
    """The words that a shell offers, without their options where none was begun."""
    script = callgate("completion", shell, cwd=cwd).out
    found = COMPLETERS[shell](script, ["callgate", *words], cwd).split()
    return {word for word in found if words[-1].startswith("-") or not word.startswith("-")}


@in_each_shell
def test_a_shell_completes_commands_options_and_tools(shell: str, ws: Path) -> None:
    assert completed(shell, "", cwd=ws) == {name.split()[0] for name in every()}
    assert completed(shell, "--v", cwd=ws) == {"--version"}
    assert completed(shell, "audit", "", cwd=ws) == {"tail", "search", "verify", "export"}
    assert completed(shell, "call", "rea", cwd=ws) == {"read_file"}
    assert completed(shell, "call", "x", "--no", cwd=ws) == {"--no-input", "--no-instance"}
    assert completed(shell, "policy", "explain", "--cal", cwd=ws) == {"--caller"}
    assert completed(shell, "completion", "z", cwd=ws) == {"zsh"}


@in_each_shell
def test_behind_a_tool_a_shell_offers_its_arguments_and_no_other_tool(shell: str, ws: Path) -> None:
    keys = {"path=", "offset=", "limit=", "regex="}
    assert completed(shell, "call", "read_file", "", cwd=ws) == keys
    assert completed(shell, "policy", "explain", "read_file", "p", cwd=ws) == {"path="}


@in_each_shell
def test_behind_a_command_of_a_group_no_other_command_is_offered(shell: str, ws: Path) -> None:
    assert completed(shell, "mcp", "list", "", cwd=ws) == set()
    assert completed(shell, "sessions", "list", "--cur", cwd=ws) == {"--cursor"}
    assert completed(shell, "call", "audit", "ta", cwd=ws) == set()


@pytest.mark.parametrize(
    ("shell", "offered"),
    [
        pytest.param("zsh", {"notes.txt"}, marks=needs("zsh")),
        pytest.param("fish", {"path=notes.txt"}, marks=needs("fish")),
    ],
)
def test_the_value_of_an_argument_is_completed_as_a_file(shell: str, offered: set[str], ws: Path) -> None:
    (ws / "notes.txt").write_text("x")
    assert completed(shell, "call", "read_file", "path=no", cwd=ws) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_stands_in_the_script(shell: str, ws: Path) -> None:
    script = callgate("completion", shell, cwd=ws).out
    for name in every():
        for option in parser_of(name)._option_string_actions:
            assert option in script, (name, option)


@needs("zsh")
def test_zsh_completes_a_tool_when_tab_is_pressed(ws: Path) -> None:
    (ws / "script.zsh").write_text(callgate("completion", "zsh", cwd=ws).out)
    (ws / "shell").write_text(f"exec {shutil.which('zsh')} -f -i")
    env = environment({"PATH": PATH, "TERM": "xterm", "PS1": "ready> "})
    terminal = Terminal()
    command = [sys.executable, "-c", OPENS_TERMINAL, os.ttyname(terminal.slave), "/bin/sh", "shell"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
    with subprocess.Popen(command, cwd=ws, env=env, **streams) as process:
        terminal.read_until(lambda text: "ready> " in text)
        terminal.press("autoload -Uz compinit; compinit -u -D; . ./script.zsh; print loa''ded\r")
        terminal.read_until(lambda text: "loaded" in text)
        terminal.press("callgate call rea\t")
        terminal.read_until(lambda text: "read_file" in text)
        process.kill()
    terminal.close()
