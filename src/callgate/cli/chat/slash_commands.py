"""The commands of a chat: what begins with `/`."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from callgate.agent.agent import Agent
from callgate.agent.context import Context
from callgate.agent.history import History
from callgate.agent.skills import SkillUnreadable, UnknownSkill
from callgate.cli import agents
from callgate.cli.agents import Chosen
from callgate.cli.chat.interrupts import Interrupts
from callgate.cli.chat.loop_thread import BackgroundLoop
from callgate.cli.chat.screen import Screen
from callgate.cli.commands import sessions, skills, tools, undo
from callgate.cli.errors import OK, CliError
from callgate.cli.options import MODES
from callgate.cli.records.stores import explained, find_session
from callgate.core.content import Label, TextBlock
from callgate.core.events import COMPACTED
from callgate.core.messages import Message
from callgate.core.models import Usage
from callgate.core.sessions import Mode, Session
from callgate.core.text.spelling import nearest
from callgate.surfaces.socket.listings import every
from callgate.wiring.runtime import Wired
from callgate.workspace.undo.history import History as Changes


class Chat(Protocol):
    """What commands see and change of a conversation: `chat.Chat` is one."""

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
    """Carry out one command line; False: the user leaves."""
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
    """All that may follow a `/`, also the skills."""
    return [*NAMES, *(f"/{skill.name}" for skill in chat.wired.skills.available(chat.session))]


def _use(chat: Chat, line: str) -> None:
    """A turn with a skill; whatever else begins with `/` is a command that there is not."""
    if not _run_skill(chat, line):
        name = line.split()[0].lower()
        near = nearest(name, names(chat))
        raise CliError(f"there is no {name}" + (f"; {near}?" if near else "; see /help"))


def _skill(chat: Chat, argument: str) -> None:
    if not argument:
        raise CliError("which skill? /skills lists them")
    if not _run_skill(chat, f"/skill {argument}"):
        raise CliError(f"there is no skill {argument.split()[0]!r}; /skills lists them")


def _run_skill(chat: Chat, line: str) -> bool:
    """Take a turn with the skill that is asked for; False if there is none."""
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
    chat.screen.line("A line that ends in \\ goes on in the next; ``` begins and ends a block.")
    chat.screen.line("A space before / says it to the model, and keeps a line out of the history.")
    chat.screen.line("Ctrl-C stops the model, or empties the line; once more leaves.")


def _mode(chat: Chat, argument: str) -> None:
    if argument:
        if argument not in MODES:
            raise CliError(f"{argument!r} is no mode: {', '.join(MODES)}")
        chat.background.do(agents.set_mode(chat.wired, chat.session, Mode(argument)))
    chat.note(f"Mode {chat.session.mode}.")


def _labels(chat: Chat, argument: str) -> None:
    """What the conversation has read, for the guard; `clear NAME` takes one back."""
    flows = chat.wired.dispatcher.authority.flows
    verb, _, name = argument.partition(" ")
    if argument:
        if verb != "clear" or name not in flows.labels(chat.session):
            known = ", ".join(flows.labels(chat.session)) or "none"
            raise CliError(f"/labels clear NAME; this conversation has: {known}")
        chat.background.do(_clear_label(chat, Label(name)))
    found = [f"{label} ({cause})" for label, cause in flows.labels(chat.session).items()]
    chat.note(f"Has read: {', '.join(found)}." if found else "Has read nothing of note.")


async def _clear_label(chat: Chat, label: Label) -> None:
    chat.wired.runtime.clear_label(chat.session, label)


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.agent = agents.open_agent(chat.wired, argument)
    else:
        known = ", ".join(sorted(chat.wired.settings.models))
        chat.note(f"The settings have {known}." if known else "The settings name no models.")
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
        raise CliError("which session? /sessions lists them")

    async def resume() -> Chosen:
        with explained():
            stored = await find_session(await chat.wired.log.store(), argument)
        if stored.id == chat.session.id:
            raise CliError("this is that session")
        chosen = await agents.resume(chat.wired, stored)
        await _leave_session(chat)
        return chosen

    chat.go_on(chat.background.do(resume()))


def _new(chat: Chat, _: str) -> None:
    chat.background.do(_leave_session(chat))
    chat.go_on(Chosen(chat.wired.session(chat.session.workspace, chat.session.mode)))
    chat.note("A new conversation.")


async def _leave_session(chat: Chat) -> None:
    await chat.wired.runtime.close_session(chat.session)
    chat.agent.forget(chat.session.id)


def _undo(chat: Chat, _: str) -> None:
    """Put back what the newest turn that changed files changed: all of its calls at once."""
    history = Changes(os.path.join(chat.wired.home.path, "undo"))
    changes = history.of_session(chat.session.id).changes
    changed = [turn for turn in dict.fromkeys(each.origin.turn for each in changes) if turn]
    left = [turn for turn in changed if turn not in chat.undone]
    if not left:
        raise CliError(
            "no turn of this conversation has changed files"
            if not changed
            else "everything is undone"
        )
    before = left[-2] if len(left) > 1 else chat.session.id  # it is older than its first turn
    try:
        code = undo.undo(
            _options(
                session=chat.session.id,
                to=before,
                last=False,
                dry_run=False,
                workspace=None,
                mode=None,
                yes=False,
                no_input=False,
            )
        )
    finally:
        chat.interrupts.install()  # a command of its own has its own
    if code == OK:
        chat.undone.add(left[-1])
        chat.background.do(
            _tell(chat, "[The user has undone the changes to files of the last turn.]")
        )


async def _tell(chat: Chat, text: str) -> None:
    """Add to the conversation what the model should know."""
    await chat.wired.runtime.conversations.say(chat.session, Message.text("user", text))
    chat.agent.forget(chat.session.id)


def _cost(chat: Chat, _: str) -> None:
    usage, price = chat.usage, chat.agent.model.price
    cost = f", ${chat.cost_usd:.4f}" if price is not None or chat.cost_usd else ""
    cached = f" ({usage.cache_read:,} from the cache)" if usage.cache_read else ""
    chat.note(f"{usage.input:,} tokens in{cached}, {usage.output:,} out{cost}, since the start.")


def _compact(chat: Chat, _: str) -> None:
    chat.note("Summing up ...")
    upto = chat.background.do(_sum_up(chat))
    summed = f"A summary stands for {upto} messages."
    chat.note(summed if upto else "There is too little to sum up.")


async def _sum_up(chat: Chat) -> int:
    conversations, session = chat.wired.runtime.conversations, chat.session
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
    chat.note(f"What the model thinks is {'shown' if chat.thinking else 'hidden'}.")


def _clear(chat: Chat, _: str) -> None:
    chat.screen.clear()


def _retry(chat: Chat, _: str) -> None:
    prompt = chat.last or chat.background.do(_last_prompt(chat))
    if prompt is None:
        raise CliError("nothing was said yet")
    chat.take(prompt)


async def _last_prompt(chat: Chat) -> str | None:
    for message in reversed(await chat.wired.runtime.conversations.messages(chat.session)):
        if message.role == "user" and all(isinstance(each, TextBlock) for each in message.content):
            return "\n".join(each.text for each in message.content if isinstance(each, TextBlock))
    return None


def _options(**values: Any) -> Namespace:
    """As if they stood on a command line."""
    return Namespace(words=[], json=False, debug=False, **values)


COMMANDS: Mapping[str, _Command] = {
    "/help": _Command("", "this list", _help),
    "/mode": _Command("MODE", f"what may run: {', '.join(MODES)}", _mode),
    "/labels": _Command("[clear NAME]", "what it has read: private, untrusted content", _labels),
    "/model": _Command("NAME", "go on with another model", _model),
    "/tools": _Command("", "the tools that the model sees", _tools),
    "/sessions": _Command("", "conversations in this directory", _sessions),
    "/resume": _Command("ID", "go on with another conversation", _resume),
    "/new": _Command("", "begin a new conversation", _new),
    "/skills": _Command("", "instructions that are asked for by name", _skills),
    "/skill": _Command("NAME ...", "follow one of them; /NAME does too", _skill),
    "/undo": _Command("", "put back the files that the last turn changed", _undo),
    "/retry": _Command("", "say again what you said last", _retry),
    "/compact": _Command("", "put a summary in place of the beginning", _compact),
    "/cost": _Command("", "tokens and money so far", _cost),
    "/thinking": _Command("", "show or hide what the model thinks", _thinking),
    "/clear": _Command("", "empty the screen", _clear),
}
NAMES = (*COMMANDS, "/quit")
