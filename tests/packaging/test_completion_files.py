"""`callgate completion --install`: what it writes, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs


def callgate(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "callgate", "completion", *words],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
    )


def files(home: Path) -> dict[str, str]:
    return {str(each.relative_to(home)): each.read_text() for each in home.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", ".local/share/bash-completion/completions/callgate"),
        ("zsh", ".local/share/zsh/site-functions/_callgate"),
        ("fish", ".config/fish/completions/callgate.fish"),
    ],
)
def test_an_installation_is_said_found_and_undone(tmp_path: Path, shell: str, path: str) -> None:
    before = files(tmp_path)
    done = callgate(tmp_path, shell, "--install")
    assert done.returncode == 0, done.stderr
    assert path in done.stdout and "--remove." in done.stdout
    assert files(tmp_path)[path] == callgate(tmp_path, shell).stdout
    again = callgate(tmp_path, shell, "--install")
    assert again.stdout == f"Nothing to change for {shell}.\n"
    removed = callgate(tmp_path, shell, "--remove")
    assert path in removed.stdout
    left = {name: text for name, text in files(tmp_path).items() if text}
    assert left == before
    assert callgate(tmp_path, shell, "--remove").stdout == f"Nothing to remove for {shell}.\n"


def test_settings_of_zsh_keep_everything_else(tmp_path: Path) -> None:
    settings = tmp_path / "dotfiles" / "zshrc"
    settings.parent.mkdir()
    settings.write_bytes(b"export A=1\n\xff # no newline")
    settings.chmod(0o600)
    (tmp_path / ".zshrc").symlink_to(settings)
    shown = callgate(tmp_path, "zsh", "--install").stdout
    assert "+source" in shown
    text = settings.read_bytes()
    assert text.startswith(b"export A=1\n\xff # no newline\n# >>> callgate")
    settings.write_bytes(text + b"export B=2\n")
    callgate(tmp_path, "zsh", "--remove")
    assert settings.read_bytes() == b"export A=1\n\xff # no newline\nexport B=2\n"
    assert (tmp_path / ".zshrc").is_symlink() and settings.stat().st_mode & 0o777 == 0o600


def test_a_file_of_others_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / ".config/fish/completions/callgate.fish"
    path.parent.mkdir(parents=True)
    path.write_text("# mine\n")
    refused = callgate(tmp_path, "fish", "--install")
    assert refused.returncode == 2 and "callgate did not write" in refused.stderr
    callgate(tmp_path, "fish", "--remove")
    assert path.read_text() == "# mine\n"


def test_the_shell_is_that_of_the_user_where_none_is_named(tmp_path: Path) -> None:
    assert "bash-completion" in callgate(tmp_path, "--install", SHELL="/bin/bash").stdout
    refused = callgate(tmp_path, "--install", SHELL="/bin/tcsh")
    assert refused.returncode == 2 and "need one of bash, zsh, fish" in refused.stderr


@needs("bash")
def test_bash_completes_from_the_installed_file(tmp_path: Path) -> None:
    callgate(tmp_path, "bash", "--install")
    script = (
        'source "$HOME/.local/share/bash-completion/completions/callgate"; '
        "COMP_WORDS=(callgate acp-); COMP_CWORD=1; _callgate; echo ${COMPREPLY[@]}"
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"HOME": str(tmp_path)})
    assert ran.stdout == "acp-proxy\n"
