"""`callgate completion`: a script that lets a shell complete commands, options and names.

The lists are made from `commands` when the script is printed; the names of tools and skills
are asked for when Tab is pressed, because they depend on the settings.
"""

from __future__ import annotations

from argparse import Namespace

from callgate.cli.command_line import beginning, every, parser_of
from callgate.cli.errors import OK, CliError
from callgate.cli.families.setup import SHELLS

_TAKE_TOOLS = ("call", "policy explain")
_TOOLS = "callgate tools --names 2>/dev/null"
_KEYS = '$(callgate tools --names -- "@TOOL@" 2>/dev/null)'
_FISH_KEYS = "(callgate tools --names -- $words[(math $place + 1)] 2>/dev/null)"
_TAKE_SKILLS = ("skills show",)
_SKILLS = "callgate skills list --names 2>/dev/null"


def completion(options: Namespace) -> int:
    if options.install or options.remove:
        return _change_files(options)
    if len(options.words) != 1 or options.words[0] not in SHELLS:
        raise CliError(f"completion takes one of {', '.join(SHELLS)}")
    print(_script_of(options.words[0]), end="")
    return OK


def _script_of(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _change_files(options: Namespace) -> int:
    """Put the script where the shell finds it, or take it away, and say what was changed."""
    from callgate.cli.commands import completion_files as files  # lazy: only to install  # noqa: PLC0415

    shells = options.words or [files.shell_in_use()]
    if len(shells) != 1 or shells[0] not in SHELLS:
        known = ", ".join(SHELLS)
        raise CliError(
            f"for which shell? One of {known}", hint="callgate completion bash --install"
        )
    [shell] = shells
    changes = files.removed(shell) if options.remove else files.installed(shell, _script_of(shell))
    for change in changes:
        try:
            files.apply(change)
        except OSError as error:
            raise CliError(f"{change.path} cannot be changed: {error.strerror}") from error
        print("\n".join(files.described(change)))
    if not changes:
        print(f"Nothing to {'remove' if options.remove else 'change'} for {shell}.")
    elif options.install:
        print(f"A new {shell} completes callgate. callgate completion {shell} --remove undoes it.")
    return OK


def _first_words() -> list[str]:
    return list(dict.fromkeys(name.split()[0] for name in every()))


def _second_words(first: str) -> list[str]:
    return [name.split()[1] for name in beginning(first) if name != first]


def _options(name: str) -> list[str]:
    return sorted(parser_of(name)._option_string_actions)


def _fixed_words(name: str) -> list[str]:
    """What may follow a command, whatever the settings are."""
    return _options(name) + (list(SHELLS) if name == "completion" else [])


def _names_command(name: str) -> str | None:
    """The command that prints the names which may follow a command."""
    if name in _TAKE_TOOLS:
        return _TOOLS
    return _SKILLS if name in _TAKE_SKILLS else None


def _cases() -> str:
    """For each command the words that may follow, as branches of a shell's `case`."""
    lines = []
    for name in every():
        options = " ".join(_fixed_words(name))
        command = _names_command(name)
        names = "" if command is None else f" $({command})"
        lines.append(f'    "{name}") words="{options}{names}"')
        if name in _TAKE_TOOLS:  # behind the tool its arguments
            lines.append(f'      [ "@CURRENT@" -gt "$place" ] && words="{options} {_KEYS}"')
        lines[-1] += " ;;"
    return "\n".join(lines)


def _groups() -> dict[str, list[str]]:
    """The words that may follow the first word of a group."""
    known = every()
    return {
        first: [*seconds, *(_options(first) if first in known else ())]
        for first in _first_words()
        if (seconds := _second_words(first))
    }


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


def _script(template: str) -> str:
    seconds = (f'    {first}) words="{" ".join(words)}" ;;' for first, words in _groups().items())
    return _fill(template, "|".join(_groups()), "\n".join(seconds), _cases())


def _fill(template: str, groups: str, seconds: str, cases: str) -> str:
    values = {
        "@GROUPS@": groups,
        "@FIRST@": " ".join(_first_words()),
        "@SECOND@": seconds,
        "@CASES@": cases,
    }
    for mark, text in values.items():
        template = template.replace(mark, text)
    return template


def _bash() -> str:
    return _in_shell(_script(_BASH), "$COMP_CWORD", "${COMP_WORDS[$place]}")


def _zsh() -> str:
    return _in_shell(_script(_ZSH), "$CURRENT", "${words[$place]}").replace('words="', 'found="')


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


def _fish() -> str:
    cases = []
    for name in every():
        options = " ".join(_fixed_words(name))
        command = _names_command(name)
        names = "" if command is None else f" ({command})"
        cases.append(f'    case "{name}"\n      set found {options}{names}')
        if name in _TAKE_TOOLS:  # behind the tool its arguments
            behind = f"set found {options} {_FISH_KEYS}"
            cases.append(f"      test (count $words) -gt $place; and {behind}")
    seconds = [
        f"    case {first}\n      set found {' '.join(words)}" for first, words in _groups().items()
    ]
    return _fill(_FISH, " ".join(_groups()), "\n".join(seconds), "\n".join(cases))
