"""`callgate completion`: scripts for shell completion of commands, options and names.

The script contains the commands and options. It requests the names of tools and skills when the
user presses Tab, because they depend on the settings.

Installation and removal of completion scripts.

    bash   a file that bash-completion loads automatically
    fish   a file that fish loads automatically
    zsh    a file, and a marked block in `.zshrc` that loads it

A file that callgate did not write is never changed; the error message names it.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callgate.cli.command import TOOL_NAMES
from callgate.cli.errors import OK, CliError

_MARK = b"# callgate completion for "
_BEGIN, _END = b"# >>> callgate completion >>>", b"# <<< callgate completion <<<"


class FileChange(NamedTuple):
    """Planned change of one file."""

    path: str
    before: bytes | None
    """None: the file does not exist."""
    after: bytes | None
    """None: remove the file."""


def installed(shell: str, script: str) -> list[FileChange]:
    """Return the changes that install the script for a shell. Writes nothing."""
    path = _script_path(shell)
    before = _read(path)
    if before is not None and _MARK not in before[:200]:
        raise CliError(f"callgate did not write {path}", hint="Move the file away first.")
    changes = [FileChange(path, before, script.encode())]
    if shell == "zsh":
        changes.append(_with_block(path))
    return [change for change in changes if change.before != change.after]


def removed(shell: str) -> list[FileChange]:
    """Return the changes that remove the script of a shell. Writes nothing."""
    path = _script_path(shell)
    before = _read(path)
    changes = []
    if before is not None and _MARK in before[:200]:
        changes.append(FileChange(path, before, None))
    if shell == "zsh":
        settings = _zshrc()
        text = _read(settings)
        if text is not None and (without := _without_block(text)) != text:
            changes.append(FileChange(settings, text, without))
    return changes


def apply(change: FileChange) -> None:
    """Write or remove one file. Links are followed, so that a linked `.zshrc` remains a link."""
    path = os.path.realpath(change.path)
    if change.after is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    import tempfile  # lazy: only a change of a file needs it  # noqa: PLC0415

    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(change.after)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def described(change: FileChange) -> list[str]:
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


def _with_block(script: str) -> FileChange:
    path = _zshrc()
    before = _read(path)
    start = b"(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    quoted = b"'" + os.fsencode(script).replace(b"'", b"'\\''") + b"'"
    block = b"\n".join([_BEGIN, start, b"source " + quoted, _END, b""])
    remaining = _without_block(before or b"")
    if remaining and not remaining.endswith(b"\n"):
        remaining += b"\n"
    return FileChange(path, before, remaining + block)


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


_KEYS = '$(callgate tools --names -- "@TOOL@" 2>/dev/null)'
_FISH_KEYS = "(callgate tools --names -- $words[(math $place + 1)] 2>/dev/null)"


class Shown(NamedTuple):
    """Completion data of one command."""

    options: list[str]
    completes: str | tuple[str, ...]
    """As in `Command`."""

    @property
    def fixed_words(self) -> str:
        """The next words that do not depend on the settings."""
        return " ".join([*self.options, *(() if self.names else self.completes)])

    @property
    def names(self) -> str | None:
        """The command that prints the other next words."""
        text = self.completes
        return f"callgate {text} 2>/dev/null" if isinstance(text, str) else None

    @property
    def takes_arguments(self) -> bool:
        """Whether arguments of the named tool follow."""
        return self.completes == TOOL_NAMES


Known = Mapping[str, Shown]


def completion(options: Namespace, known: Known, shells: Sequence[str]) -> int:
    """Print the script of a shell, install it or remove it.

    Args:
        known: all commands, in the order of the help.
        shells: the supported shells.
    """
    if options.install or options.remove:
        return _change_files(options, known, shells)
    if len(options.words) != 1 or options.words[0] not in shells:
        raise CliError(f"completion needs one of {', '.join(shells)}")
    print(_script_of(options.words[0], known), end="")
    return OK


def _script_of(shell: str, known: Known) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](known)


def _change_files(options: Namespace, known: Known, names: Sequence[str]) -> int:
    """Install or remove the script, and print the changes."""

    shells = options.words or [shell_in_use()]
    if len(shells) != 1 or shells[0] not in names:
        raise CliError(
            f"--install and --remove need one of {', '.join(names)}",
            hint="Try callgate completion bash --install.",
        )
    [shell] = shells
    changes = removed(shell) if options.remove else installed(shell, _script_of(shell, known))
    for change in changes:
        try:
            apply(change)
        except OSError as error:
            raise CliError(f"{change.path} cannot be changed: {error.strerror}") from error
        print("\n".join(described(change)))
    if not changes:
        print(f"Nothing to {'remove' if options.remove else 'change'} for {shell}.")
    elif options.install:
        print(f"Start a new {shell}. To undo: callgate completion {shell} --remove.")
    return OK


def _first_words(known: Known) -> list[str]:
    return list(dict.fromkeys(name.split()[0] for name in known))


def _cases(known: Known) -> str:
    """Return the next words of each command, as branches of a shell's `case`."""
    lines = []
    for name, shown in known.items():
        options = shown.fixed_words
        names = "" if shown.names is None else f" $({shown.names})"
        lines.append(f'    "{name}") words="{options}{names}"')
        if shown.takes_arguments:
            lines.append(f'      [ "@CURRENT@" -gt "$place" ] && words="{options} {_KEYS}"')
        lines[-1] += " ;;"
    return "\n".join(lines)


def _groups(known: Known) -> dict[str, list[str]]:
    """Return the second words of each group of commands, by the first word."""
    groups: dict[str, list[str]] = {}
    for name in known:
        first, _, second = name.partition(" ")
        if second:
            groups.setdefault(first, []).append(second)
    for first, words in groups.items():
        words += known[first].options if first in known else ()
    return groups


_BASH = """\
# callgate completion for bash: eval "$(callgate completion bash)"
_callgate() {
  local current="${COMP_WORDS[COMP_CWORD]}" name="${COMP_WORDS[1]}" words=""
  local place=2
  if [ "$current" = "=" ] || [ "${COMP_WORDS[COMP_CWORD-1]}" = "=" ]; then
    return  # the value of an argument: files are offered
  fi
  case "$name" in
    @GROUPS@) name="$name ${COMP_WORDS[2]}" place=3 ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="@FIRST@ --help --version"
  elif [ "$COMP_CWORD" -lt "$place" ]; then
    case "${COMP_WORDS[1]}" in
@SECOND@
    esac
  else
    case "$name" in
@CASES@
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ "${COMPREPLY[0]}" == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -o default -F _callgate callgate
"""

_ZSH = """\
#compdef callgate
# callgate completion for zsh: eval "$(callgate completion zsh)"
_callgate() {
  local name="${words[2]}" place=3 found=""
  if [[ "$PREFIX" == *=* ]]; then # the value of an argument: files are offered
    compset -P '*='
    _files
    return
  fi
  case "$name" in
    @GROUPS@) name="$name ${words[3]}" place=4 ;;
  esac
  if (( CURRENT == 2 )); then
    found="@FIRST@ --help --version"
  elif (( CURRENT < place )); then
    case "${words[2]}" in
@SECOND@
    esac
  else
    case "$name" in
@CASES@
    esac
  fi
  compadd -S '' -- ${(M)${=found}:#*=}
  compadd -- ${${=found}:#*=}
}
compdef _callgate callgate
"""


def _script(template: str, known: Known) -> str:
    groups = _groups(known)
    seconds = (f'    {first}) words="{" ".join(words)}" ;;' for first, words in groups.items())
    return _fill(template, known, "|".join(groups), "\n".join(seconds), _cases(known))


def _fill(template: str, known: Known, groups: str, seconds: str, cases: str) -> str:
    values = {
        "@GROUPS@": groups,
        "@FIRST@": " ".join(_first_words(known)),
        "@SECOND@": seconds,
        "@CASES@": cases,
    }
    for mark, text in values.items():
        template = template.replace(mark, text)
    return template


def _bash(known: Known) -> str:
    return _in_shell(_script(_BASH, known), "$COMP_CWORD", "${COMP_WORDS[$place]}")


def _zsh(known: Known) -> str:
    script = _in_shell(_script(_ZSH, known), "$CURRENT", "${words[$place]}")
    return script.replace('words="', 'found="')


def _in_shell(script: str, current: str, tool: str) -> str:
    return script.replace("@CURRENT@", current).replace("@TOOL@", tool)


_FISH = """\
# callgate completion for fish: callgate completion fish | source
function __callgate_words
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l name $words[2]
  set -l place 2
  set -l found
  if string match -q -- '*=*' $current # the value of an argument: files are offered
    set -l pair (string split -m 1 -- = $current)
    for path in (__fish_complete_path $pair[2])
      echo "$pair[1]=$path"
    end
    return
  end
  switch "$name"
    case @GROUPS@
      set name "$name $words[3]"
      set place 3
  end
  if test (count $words) -eq 1
    set found @FIRST@ --help --version
  else if test (count $words) -lt $place
    switch "$words[2]"
@SECOND@
    end
  else
    switch "$name"
@CASES@
    end
  end
  printf '%s\\n' $found
end
complete -c callgate -f -a '(__callgate_words)'
"""


def _fish(known: Known) -> str:
    cases = []
    for name, shown in known.items():
        options = shown.fixed_words
        names = "" if shown.names is None else f" ({shown.names})"
        cases.append(f'    case "{name}"\n      set found {options}{names}')
        if shown.takes_arguments:
            behind = f"set found {options} {_FISH_KEYS}"
            cases.append(f"      test (count $words) -gt $place; and {behind}")
    groups = _groups(known)
    seconds = [
        f"    case {first}\n      set found {' '.join(words)}" for first, words in groups.items()
    ]
    return _fill(_FISH, known, " ".join(groups), "\n".join(seconds), "\n".join(cases))
