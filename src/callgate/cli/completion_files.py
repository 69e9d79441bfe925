"""Installation and removal of completion scripts.

    bash   a file that bash-completion loads automatically
    fish   a file that fish loads automatically
    zsh    a file, and a marked block in `.zshrc` that loads it

A file that callgate did not write is never changed; the error message names it.
"""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple

from callgate.cli.errors import CliError

_MARK = b"# callgate completion for "
_BEGIN, _END = b"# >>> callgate completion >>>", b"# <<< callgate completion <<<"


class Change(NamedTuple):
    """Planned change of one file."""

    path: str
    before: bytes | None
    """None: the file does not exist."""
    after: bytes | None
    """None: remove the file."""


def installed(shell: str, script: str) -> list[Change]:
    """Return the changes that install the script for a shell. Writes nothing."""
    path = _script_path(shell)
    before = _read(path)
    if before is not None and _MARK not in before[:200]:
        raise CliError(f"callgate did not write {path}", hint="Move the file away first.")
    changes = [Change(path, before, script.encode())]
    if shell == "zsh":
        changes.append(_with_block(path))
    return [change for change in changes if change.before != change.after]


def removed(shell: str) -> list[Change]:
    """Return the changes that remove the script of a shell. Writes nothing."""
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
    """Write or remove one file. Links are followed, so that a linked `.zshrc` remains a link."""
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
    """Return lines that describe a change."""
    if change.after is None:
        return [f"removed {change.path}"]
    lines = len(change.after.splitlines())
    if change.before is None:
        return [f"wrote {change.path} ({lines} lines)"]
    if change.path != _zshrc():
        return [f"replaced {change.path} ({lines} lines)"]
    import difflib  # lazy: only for zsh  # noqa: PLC0415

    old, new = (
        text.decode("utf-8", "replace").splitlines() for text in (change.before, change.after)
    )
    shown = [line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:2] != "@@"]
    return [f"changed {change.path}:", *(f"  {line}" for line in shown[2:])]


def shell_in_use() -> str:
    """Return the name of the user's shell, from `SHELL`; "" if it is not set."""
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
    remaining = _without_block(before or b"")
    if remaining and not remaining.endswith(b"\n"):
        remaining += b"\n"
    return Change(path, before, remaining + block)


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
