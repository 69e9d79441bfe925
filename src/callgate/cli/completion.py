"""`callgate completion`: a script that lets a shell complete commands, options and names.

The lists are made from `commands` when the script is printed; the names of tools and skills
are asked for when Tab is pressed, because they depend on the settings.
"""

from __future__ import annotations

from argparse import Namespace

from callgate.cli.commands import beginning, every, parser_of
from callgate.cli.exits import OK
from callgate.cli.families.setup import SHELLS
from callgate.cli.problems import CliError

_TAKE_TOOLS = ("call", "policy explain")
_TOOLS = "callgate tools --names 2>/dev/null"
_KEYS = '$(callgate tools --names -- "@TOOL@" 2>/dev/null)'
_FISH_KEYS = "callgate tools --names -- (commandline -opc)[{}] 2>/dev/null"
_TAKE_SKILLS = ("skills show",)
_SKILLS = "callgate skills list --names 2>/dev/null"


def completion(options: Namespace) -> int:
    if len(options.words) != 1 or options.words[0] not in SHELLS:
        raise CliError(f"completion takes one of {', '.join(SHELLS)}")
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.words[0]](), end="")
    return OK


def _first_words() -> list[str]:
    return list(dict.fromkeys(name.split()[0] for name in every()))


def _second_words(first: str) -> list[str]:
    return [name.split()[1] for name in beginning(first) if name != first]


def _options(name: str) -> list[str]:
    return sorted(parser_of(name)._option_string_actions)


def _asked(name: str) -> str | None:
    """The command that prints the names which may follow a command."""
    if name in _TAKE_TOOLS:
        return _TOOLS
    return _SKILLS if name in _TAKE_SKILLS else None


def _cases() -> str:
    """For each command the words that may follow, as branches of a shell's `case`."""
    lines = []
    for name in every():
        words = _options(name) + (list(SHELLS) if name == "completion" else [])
        asked = _asked(name)
        names = "" if asked is None else f" $({asked})"
        lines.append(f'    "{name}") words="{" ".join(words)}{names}"')
        if name in _TAKE_TOOLS:  # behind the tool its arguments
            lines.append(f'      [ "@CURRENT@" -gt "$place" ] && words="{" ".join(words)} {_KEYS}"')
        lines[-1] += " ;;"
    return "\n".join(lines)


def _groups() -> str:
    known = every()
    lines = []
    for first in _first_words():
        if seconds := _second_words(first):
            words = [*seconds, *(_options(first) if first in known else ())]
            lines.append(f'    {first}) words="{" ".join(words)}" ;;')
    return "\n".join(lines)


_BASH = """\
# callgate completion for bash: eval "$(callgate completion bash)"
_callgate() {
  local current="${COMP_WORDS[COMP_CWORD]}" name="${COMP_WORDS[1]}" words=""
  local place=2
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
  if [ "$current" = "=" ] || [ "${COMP_WORDS[COMP_CWORD-1]}" = "=" ]; then
    return  # the value of an argument: files are offered
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
    groups = "|".join(first for first in _first_words() if _second_words(first))
    parts = {
        "@GROUPS@": groups,
        "@FIRST@": " ".join(_first_words()),
        "@SECOND@": _groups(),
        "@CASES@": _cases(),
    }
    for mark, text in parts.items():
        template = template.replace(mark, text)
    return template


def _bash() -> str:
    return _in_shell(_script(_BASH), "$COMP_CWORD", "${COMP_WORDS[$place]}")


def _zsh() -> str:
    return _in_shell(_script(_ZSH), "$CURRENT", "${words[$place]}").replace('words="', 'found="')


def _in_shell(script: str, current: str, tool: str) -> str:
    return script.replace("@CURRENT@", current).replace("@TOOL@", tool)


def _flag(option: str) -> str:
    """How fish is told of an option: long, one letter, or several behind one dash."""
    if option.startswith("--"):
        return f"-l {option[2:]}"
    return f"-s {option[1:]}" if len(option) == 2 else f"-o {option[1:]}"


def _fish() -> str:
    lines = ["# callgate completion for fish: callgate completion fish | source"]

    def offer(what: str, *after: str) -> None:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in after)
        lines.append(f"complete -c callgate -n '{seen or '__fish_use_subcommand'}' {what}")

    lines.append("complete -c callgate -f")
    for first in _first_words():
        offer(f"-a {first}")
        for second in _second_words(first):
            offer(f"-a {second}", first)
    for name in every():
        for option in _options(name):
            offer(_flag(option), *name.split())
        if (asked := _asked(name)) is not None:
            offer(f"-a '({asked})'", *name.split())
        if name in _TAKE_TOOLS:
            offer(f"-a '({_FISH_KEYS.format(len(name.split()) + 2)})'", *name.split())
        if name == "completion":
            offer(f"-a '{' '.join(SHELLS)}'", name)
    return "\n".join(lines) + "\n"
