"""Settings of git are read as git reads them, and only inert ones count as inert."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from callgate.core.local import git_settings
from tests.needs import needs

READ = [
    "[core]\n\tbare = false\n",
    '[remote "Origin"]\nurl = a\nFetch = +refs/*:refs/*\n',
    "[core] fsmonitor = ./x",
    "# note \\\n[core]\nfsmonitor = ./x\n",
    "; note\n[core] ; more\nfsmonitor = ./x # why\n",
    '[core]\nfsmonitor = "a # b" c ; d\n',
    "[core]\nfsmonitor = a\\\n  b\n",
    "[core]\r\nfsmonitor = ./x\r\n",
    "\ufeff[core]\nfsmonitor = ./x\n",
    "[core]\nfsmonitor\n",
    "[core]fsmonitor=./x\n",
    "[CORE]\nFSMONITOR = ./x\n",
    "[core.Sub]\nfsmonitor = ./x\n",
    '[a "b\\"c]"]\nd = e\n[core]\nfsmonitor = ./x\n',
    '[a "b]\n[core]\nfsmonitor = ./x\n',
    "[core]\n\n\n  fsmonitor   =   ./x   \n",
    '[core]\nx = a\\nb\\t\\"c\n',
    "[core]\nx = \\q\n",
    '[core]\nx = "a\nfsmonitor = ./x\n',
    "[core]\n1x = a\n",
    "[core]\nx y = a\n",
    "[]\nx = a\n",
    "x = a\n",
]
UNSAFE = """
    core.fsmonitor core.sshcommand core.editor core.pager core.hookspath core.gitproxy core.askpass
    core.attributesfile core.alternaterefscommand alias.x include.path includeif.x.path filter.x.clean
    filter.x.smudge filter.x.process diff.x.command diff.x.textconv diff.external merge.x.driver
    credential.helper gpg.program gpg.ssh.program sequence.editor pager.log remote.x.uploadpack
    remote.x.receivepack remote.x.vcs http.proxy url.x.insteadof protocol.ext.allow browser.x.cmd
    difftool.x.cmd mergetool.x.cmd guitool.x.cmd man.x.cmd interactive.difffilter trailer.x.command
    uploadpack.packobjectshook commit.gpgsign tag.gpgsign hook.x.command trace2.normaltarget
    sendemail.smtpserver submodule.x.command whatever.comes
""".split()


@needs("git")
@pytest.mark.parametrize("text", READ)
def test_settings_are_those_that_git_reads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_bytes(text.encode())
    done = subprocess.run(["git", "config", "-z", "--file", str(file), "--list"], capture_output=True, text=True)
    if done.returncode:
        with pytest.raises(git_settings.Malformed):
            list(git_settings.settings(text, strict=True))
        assert git_settings.unsafe(text)
        return
    theirs = [entry.partition("\n")[::2] for entry in done.stdout.split("\0") if entry]
    ours = [
        (".".join(part for part in (section, quoted, name) if part), value)
        for section, quoted, name, value in git_settings.settings(text, strict=True)
    ]
    assert [(name, value or "true") for name, value in theirs] == ours


@pytest.mark.parametrize("name", UNSAFE)
def test_a_setting_that_may_run_a_program_is_not_inert(name: str) -> None:
    section, _, key = name.rpartition(".")
    first, _, quoted = section.partition(".")
    header = f'[{first} "{quoted}"]' if quoted else f"[{first}]"
    assert git_settings.unsafe(f"{header}\n{key} = ./x\n") == [name]


@pytest.mark.parametrize(
    ("text", "unsafe"),
    [
        ("[core]\nfsmonitor = false\n", []),
        ("[core]\nfsmonitor = true\n", ["core.fsmonitor"]),
        ('[submodule "x"]\nupdate = rebase\n', []),
        ('[submodule "x"]\nupdate = !./x\n', ["submodule.x.update"]),
        ('[remote "o"]\nurl = ext::sh -c ./x\n', ["remote.o.url"]),
        (
            '[branch "m"]\nremote = x::y\npushRemote = x::y\ndescription = a::b\n',
            ["branch.m.pushremote", "branch.m.remote"],
        ),
        ("[remote]\npushDefault = x::y\n", ["remote.pushdefault"]),
        ("[core]\nworktree = ../../sub\n", []),
        ("[core]\nworktree = /home\n", ["core.worktree"]),
        ("[color]\nui = auto\n[advice]\nx = false\n", []),
    ],
)
def test_a_value_decides_where_a_name_does_not(text: str, unsafe: list[str]) -> None:
    assert git_settings.unsafe(text) == unsafe


@needs("git")
@pytest.mark.parametrize(
    "script",
    [
        "git init -q .",
        "git init -q --bare .git",
        "git init -q --shared .",
        "git init -q a; git -C a -c user.name=a -c user.email=a commit -q --allow-empty -m x; git clone -q a .b; mv .b/.git .",
        "git init -q .; git remote add o u; git config user.name a; git sparse-checkout init --cone",
    ],
)
def test_settings_that_git_writes_itself_are_inert(tmp_path: Path, script: str) -> None:
    subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    for name in ("config", "config.worktree"):
        file = tmp_path / ".git" / name
        assert git_settings.unsafe(file.read_text() if file.exists() else "") == []
