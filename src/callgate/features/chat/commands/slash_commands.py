"""The slash commands of a chat."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from callgate.cli.commands import sessions, tools, undo
from callgate.cli.errors import OK, CliError
from callgate.cli.options import MODES
from callgate.cli.stores import explained, find_session
from callgate.config.load import load_user
from callgate.config.undo_store import open_history
from callgate.core.content import Label, Message, TextBlock
from callgate.core.events import COMPACTED
from callgate.core.models import Usage
from callgate.core.sessions import Mode, Session
from callgate.core.tasks import BackgroundLoop
from callgate.core.texts import nearest
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.agent.history import Context, History
from callgate.features.chat.commands import agents, skills
from callgate.features.chat.commands.agents import Chosen
from callgate.features.chat.commands.screen import Interrupts, Screen
from callgate.features.chat.settings import ChatSettings
from callgate.instance.wiring.runtime import Wired
from callgate.socket.queries import every
from callgate.sources.skills import SkillUnreadable, UnknownSkill


class Chat(Protocol):
    """The part of a conversation that commands use; `chat.Chat` implements it."""

    wired: Wired
    agent: Agent
    session: Session
    background: BackgroundLoop
    screen: Screen
    interrupts: Interrupts
    thinking: bool
    usage: Usage
    cost_usd: float
    last: str | None
    undone: set[str]

    def note(self, text: str) -> None: ...

    def go_on(self, chosen: Chosen) -> None: ...

    def take(self, prompt: str) -> None: ...


class _Command(NamedTuple):
    usage: str
    summary: str
    run: Callable[[Chat, str], object]


def run(chat: Chat, line: str) -> bool:
    """Run a command line. False if the user leaves."""
    name, _, argument = line.partition(" ")
    name, argument = name.lower(), argument.strip()
    if name in ("/quit", "/exit", "/q"):
        return False
    if name in COMMANDS:
        COMMANDS[name].run(chat, argument)
    else:
        _use(chat, line)
    return True


def names(chat: Chat) -> list[str]:
    """Return the names of all slash commands and skills."""
    return [*NAMES, *(f"/{skill.name}" for skill in chat.wired.skills.available(chat.session))]


def _use(chat: Chat, line: str) -> None:
    """Run a turn with the named skill. Raises `CliError` if there is none."""
    if not _run_skill(chat, line):
        name = line.split()[0].lower()
        near = nearest(name, names(chat))
        raise CliError(f"there is no {name}" + (f"; {near}?" if near else "; see /help"))


def _skill(chat: Chat, argument: str) -> None:
    if not argument:
        raise CliError("a name is missing; /skills lists the skills")
    if not _run_skill(chat, f"/skill {argument}"):
        raise CliError(f"there is no skill {argument.split()[0]!r}; /skills lists the skills")


def _run_skill(chat: Chat, line: str) -> bool:
    """Run a turn with the named skill. False if there is none."""
    try:
        composed = chat.wired.skills.compose(line, chat.session)
    except UnknownSkill:
        return False
    except SkillUnreadable as error:
        raise CliError(str(error)) from None
    if composed.skill is None:
        return False
    chat.take(composed.text)
    return True


def _skills(chat: Chat, _: str) -> None:
    survey = chat.wired.skills.survey(chat.session.workspace)
    skills.print_table(survey)
    skills.say_the_rest(survey)


def _help(chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        chat.screen.line(f"{f'{name} {command.usage}'.rstrip():<16}{command.summary}")
    chat.screen.line(f"{'/quit':<16}leave; Ctrl-D does too")
    chat.screen.line("A line that ends in \\ continues in the next; ``` starts and ends a block.")
    chat.screen.line("A space before / sends the line to the model, and omits it from the history.")
    chat.screen.line("Ctrl-C stops the model, or clears the line; a second Ctrl-C leaves.")


def _mode(chat: Chat, argument: str) -> None:
    if argument:
        if argument not in MODES:
            raise CliError(f"{argument!r} is not a mode: {', '.join(MODES)}")
        chat.background.do(agents.set_mode(chat.wired, chat.session, Mode(argument)))
    chat.note(f"Mode {chat.session.mode}.")


def _labels(chat: Chat, argument: str) -> None:
    """Show the guard's labels of the conversation; `clear NAME` removes one."""
    permission = chat.wired.runtime.permission
    verb, _, name = argument.partition(" ")
    if argument:
        if verb != "clear" or name not in permission.labels(chat.session):
            known = ", ".join(permission.labels(chat.session)) or "none"
            raise CliError(f"use /labels clear NAME; labels of this conversation: {known}")
        chat.background.do(_clear_label(chat, Label(name)))
    found = [f"{label} ({cause})" for label, cause in permission.labels(chat.session).items()]
    chat.note(f"Labels: {', '.join(found)}." if found else "This conversation has no labels.")


async def _clear_label(chat: Chat, label: Label) -> None:
    chat.wired.runtime.permission.clear_label(chat.session, label)


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.agent = agents.open_agent(chat.wired, argument)
    else:
        known = ", ".join(sorted(chat.wired.settings.of(ChatSettings).models))
        chat.note(f"Models of the settings: {known}." if known else "The settings have no models.")
    chat.note(f"Model {chat.agent.model.name}.")


def _tools(chat: Chat, _: str) -> None:
    listed = every(chat.wired.runtime, chat.session)
    tools.print_table([each for each in listed if each["visible"]])


def _sessions(chat: Chat, _: str) -> None:
    sessions.list(
        _options(workspace=chat.session.workspace, all=False, n=20, cursor=None, workers=False)
    )


def _resume(chat: Chat, argument: str) -> None:
    if not argument:
        raise CliError("an id is missing; /sessions lists the sessions")

    async def resume() -> Chosen:
        with explained():
            stored = await find_session(await chat.wired.log.store(), argument)
        if stored.id == chat.session.id:
            raise CliError("this session is already open")
        chosen = await agents.resume(chat.wired, stored)
        await _leave_session(chat)
        return chosen

    chat.go_on(chat.background.do(resume()))


def _new(chat: Chat, _: str) -> None:
    chat.background.do(_leave_session(chat))
    chat.go_on(Chosen(chat.wired.session(chat.session.workspace, chat.session.mode)))
    chat.note("A new conversation.")


async def _leave_session(chat: Chat) -> None:
    await chat.wired.runtime.sessions.close(chat.session)
    chat.agent.forget(chat.session.id)


def _undo(chat: Chat, _: str) -> None:
    """Undo the newest turn that changed files, with all its calls."""
    history = open_history(chat.wired.home, load_user(chat.wired.home)[0])
    changes = history.of_session(chat.session.id).changes
    changed = [turn for turn in dict.fromkeys(each.origin.turn for each in changes) if turn]
    left = [turn for turn in changed if turn not in chat.undone]
    if not left:
        raise CliError(
            "no turn of this conversation has changed files"
            if not changed
            else "all changes are already undone"
        )
    # the session id is older than its first turn
    before = left[-2] if len(left) > 1 else chat.session.id
    try:
        code = undo.undo(
            _options(
                session=chat.session.id,
                to=before,
                turn=None,
                begin=None,
                since=None,
                others=False,
                last=False,
                dry_run=False,
                workspace=None,
                mode=None,
                yes=False,
                no_input=False,
            )
        )
    finally:
        chat.interrupts.install()  # `undo` installs signal handlers
    if code == OK:
        chat.undone.add(left[-1])
        chat.background.do(_tell(chat, "[The user has undone the file changes of the last turn.]"))


async def _tell(chat: Chat, text: str) -> None:
    """Add a note to the model to the conversation."""
    await chat.wired.runtime.sessions.conversations.say(chat.session, Message.text("user", text))
    chat.agent.forget(chat.session.id)


def _cost(chat: Chat, _: str) -> None:
    usage, price = chat.usage, chat.agent.model.price
    cost = f", ${chat.cost_usd:.4f}" if price is not None or chat.cost_usd else ""
    cached = f" ({usage.cache_read:,} from the cache)" if usage.cache_read else ""
    chat.note(f"{usage.input:,} tokens in{cached}, {usage.output:,} out{cost}, since the start.")


def _compact(chat: Chat, _: str) -> None:
    chat.note("Summarizing ...")
    upto = chat.background.do(_sum_up(chat))
    summed = f"A summary replaces {upto} messages."
    chat.note(summed if upto else "The conversation is too short to summarize.")


async def _sum_up(chat: Chat) -> int:
    conversations, session = chat.wired.runtime.sessions.conversations, chat.session
    messages = await conversations.messages(session)
    history = History(messages, lambda message: conversations.say(session, message))
    upto, usage = await Context(chat.agent.model, history).compact(hard=True)
    chat.usage += usage
    if upto:
        conversations.emit(session, COMPACTED, "user", {"messages": upto})
        chat.agent.forget(session.id)
    return upto


def _thinking(chat: Chat, _: str) -> None:
    chat.thinking = not chat.thinking
    chat.note(f"The model's thinking is {'shown' if chat.thinking else 'hidden'}.")


def _clear(chat: Chat, _: str) -> None:
    chat.screen.clear()


def _retry(chat: Chat, _: str) -> None:
    prompt = chat.last or chat.background.do(_last_prompt(chat))
    if prompt is None:
        raise CliError("there is no earlier prompt")
    chat.take(prompt)


async def _last_prompt(chat: Chat) -> str | None:
    for message in reversed(await chat.wired.runtime.sessions.conversations.messages(chat.session)):
        if message.role == "user" and all(isinstance(each, TextBlock) for each in message.content):
            return "\n".join(each.text for each in message.content if isinstance(each, TextBlock))
    return None


def _options(**values: Any) -> Namespace:
    """Return options as if parsed from a command line."""
    return Namespace(words=[], json=False, debug=False, **values)


COMMANDS: Mapping[str, _Command] = {
    "/help": _Command("", "show this list", _help),
    "/mode": _Command("MODE", f"set the mode: {', '.join(MODES)}", _mode),
    "/labels": _Command("[clear NAME]", "show or clear labels: private, untrusted", _labels),
    "/model": _Command("NAME", "switch to another model", _model),
    "/tools": _Command("", "list the model's tools", _tools),
    "/sessions": _Command("", "list the conversations of this directory", _sessions),
    "/resume": _Command("ID", "continue another conversation", _resume),
    "/new": _Command("", "start a new conversation", _new),
    "/skills": _Command("", "list the skills: instructions with a name", _skills),
    "/skill": _Command("NAME ...", "follow a skill; /NAME does too", _skill),
    "/undo": _Command("", "undo the file changes of the last turn", _undo),
    "/retry": _Command("", "repeat your last prompt", _retry),
    "/compact": _Command("", "replace the oldest messages by a summary", _compact),
    "/cost": _Command("", "show tokens and cost so far", _cost),
    "/thinking": _Command("", "show or hide the model's thinking", _thinking),
    "/clear": _Command("", "clear the screen", _clear),
}
NAMES = (*COMMANDS, "/quit")
