"""Where the completion script of each shell lies, put there and taken away again.

    bash   a file that bash-completion loads by itself
    fish   a file that fish loads by itself
    zsh    a file, and a marked block in `.zshrc` that reads it

What is not ours is never touched: a file that others wrote is left alone and named.
"""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple

from callgate.cli.errors import CliError

_MARK = b"# callgate completion for "
_BEGIN, _END = b"# >>> callgate completion >>>", b"# <<< callgate completion <<<"


class Change(NamedTuple):
    """One file as it is to be."""

    path: str
    before: bytes | None
    """None: there is none."""
    after: bytes | None
    """None: it is to be removed."""


def installed(shell: str, script: str) -> list[Change]:
    """What has to change for a shell to have the script. Nothing is written."""
    path = _script_path(shell)
    before = _read(path)
    if before is not None and _MARK not in before[:200]:
        raise CliError(f"{path} is not ours", hint="Move it away first.")
    changes = [Change(path, before, script.encode())]
    if shell == "zsh":
        changes.append(_with_block(path))
    return [change for change in changes if change.before != change.after]


def removed(shell: str) -> list[Change]:
    """What has to change for a shell to have it no more."""
    path = _script_path(shell)
    before = _read(path)
    changes = []
    if before is not None and _MARK in before[:200]:
        changes.append(Change(path, before, None))
    if shell == "zsh":
        settings = _zshrc()
        text = _read(settings)
        if text is not None and (without := _without_block(text)) != text:
            changes.append(Change(settings, text, without))
    return changes


def apply(change: Change) -> None:
    """Write or remove one file; links are followed, so that a linked `.zshrc` stays one."""
    path = os.path.realpath(change.path)
    if change.after is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(change.after)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def described(change: Change) -> list[str]:
    """What a change does, line by line."""
    if change.after is None:
        return [f"removed {change.path}"]
    lines = len(change.after.splitlines())
    if change.before is None:
        return [f"wrote {change.path} ({lines} lines)"]
    if change.path != _zshrc():
        return [f"replaced {change.path} ({lines} lines)"]
    import difflib  # lazy: for zsh alone  # noqa: PLC0415

    old, new = (
        text.decode("utf-8", "replace").splitlines() for text in (change.before, change.after)
    )
    shown = [line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:2] != "@@"]
    return [f"changed {change.path}:", *(f"  {line}" for line in shown[2:])]


def shell_in_use() -> str:
    """The name of the user's shell, by `SHELL`; "" where that is not set."""
    return os.path.basename(os.environ.get("SHELL", ""))


def _script_path(shell: str) -> str:
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return {
        "bash": os.path.join(data, "bash-completion/completions/callgate"),
        "zsh": os.path.join(data, "zsh/site-functions/_callgate"),
        "fish": os.path.join(config, "fish/completions/callgate.fish"),
    }[shell]


def _zshrc() -> str:
    return os.path.join(os.environ.get("ZDOTDIR") or os.path.expanduser("~"), ".zshrc")


def _with_block(script: str) -> Change:
    path = _zshrc()
    before = _read(path)
    start = b"(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    quoted = b"'" + os.fsencode(script).replace(b"'", b"'\\''") + b"'"
    block = b"\n".join([_BEGIN, start, b"source " + quoted, _END, b""])
    kept = _without_block(before or b"")
    if kept and not kept.endswith(b"\n"):
        kept += b"\n"
    return Change(path, before, kept + block)


def _without_block(text: bytes) -> bytes:
    start = text.find(_BEGIN)
    end = text.find(_END, start)
    if start < 0 or end < 0:
        return text
    return text[:start] + text[end + len(_END) :].removeprefix(b"\n")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from error


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return 0o644
