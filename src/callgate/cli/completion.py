"""`callgate completion`: a script for shell completion of commands, options and names.

The script contains the commands and options. It requests the names of tools and skills when the
user presses Tab, because they depend on the settings.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callgate.cli.command import TOOL_NAMES
from callgate.cli.errors import OK, CliError

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
    from callgate.cli import completion_files as files  # lazy: only to install  # noqa: PLC0415

    shells = options.words or [files.shell_in_use()]
    if len(shells) != 1 or shells[0] not in names:
        raise CliError(
            f"--install and --remove need one of {', '.join(names)}",
            hint="Try callgate completion bash --install.",
        )
    [shell] = shells
    if options.remove:
        changes = files.removed(shell)
    else:
        changes = files.installed(shell, _script_of(shell, known))
    for change in changes:
        try:
            files.apply(change)
        except OSError as error:
            raise CliError(f"{change.path} cannot be changed: {error.strerror}") from error
        print("\n".join(files.described(change)))
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
