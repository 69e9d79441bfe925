"""Dry run of a command in an overlay of the workspace, to show its output and its changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from callgate.cli.errors import CliError
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolRegistrationError
from callgate.core.sessions import Session
from callgate.core.tools import ToolFactory
from callgate.dispatch.commands.path_search import find
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.instance.wiring.runtime import Wired
from callgate.policy.decide import binding
from callgate.policy.decisions import Question
from callgate.policy.rules import Outcome
from callgate.sandbox import sight
from callgate.sandbox.profiles import SandboxPaths
from callgate.tools.preview import PreviewCommand
from callgate.tools.previews import Preview, discard
from callgate.tools.shell import Shell

_ELSEWHERE = "/var/tmp"  # noqa: S108 for a home that is inside the workspace


async def rehearse(wired: Wired, like: Session, command: str) -> str:
    """Return the output and the changes of a command, for a person who must approve it.

    The dry run is a separate call in a separate session, approved by the person's request.
    """
    previews: list[Preview] = []
    session = wired.session(like.workspace, like.mode)
    session.title = "preview"
    register_preview(wired, session, previews.append)
    call = ToolCall(
        tool="preview", arguments={"command": command}, session=session, caller=CallerKind.CLI
    )
    try:
        with wired.runtime.permission.attach(_yes, session.id):
            return (await wired.runtime.calls.run(call)).text
    finally:
        for each in previews:
            discard(each)


async def _yes(question: Confirmation) -> Answer:
    return Answer(decision=Outcome.ALLOW, by="terminal")


def register_preview(wired: Wired, session: Session, keep: Callable[[Preview], None]) -> None:
    """Register the tool `preview`, which passes its result to `keep`."""
    paths, hidden = _paths(wired, session), partial(_hidden, wired, session)
    parents = os.path.join(wired.home.path, "previews"), _ELSEWHERE
    register(wired, lambda: PreviewCommand(paths, keep, parents=parents, hidden=hidden))


def register(wired: Wired, factory: ToolFactory) -> None:
    try:
        wired.runtime.tools.register(factory)
    except ToolRegistrationError as error:
        raise CliError(str(error), hint="A loaded tool has this name.") from error


def _paths(wired: Wired, session: Session) -> SandboxPaths:
    surroundings = wired.sandbox.surroundings
    directories, files = sight.private_paths()
    return SandboxPaths(
        workspace=session.workspace,
        home=os.path.expanduser("~"),
        callgate_home=wired.home.path,
        read_roots=(*(root.path for root in session.extra_roots), *surroundings.readable),
        hidden=(*surroundings.hidden, *files),
        tools=sight.shown(surroundings.home, os.environ),
        private=(*sight.DATA, *directories),
        shown=surroundings.readable,
    )


def _hidden(wired: Wired, session: Session, command: str) -> tuple[str, ...]:
    """Return the paths that path rules hide from a command.

    Write rules need no enforcement here, because applying a preview is a separate write call.
    """
    book = wired.policies(session.workspace)
    question = Question(
        tool="preview",
        aliases=(Shell.definition.name, *Shell.definition.aliases),
        effect=SideEffects.EXECUTE,
        caller=CallerKind.CLI,
        workspace=book.directory or session.workspace,
        arguments={"command": command},
    )
    rules = binding(book, question, wired.registry.file_tools())
    return find(rules, (session.workspace, *(root.path for root in session.extra_roots))).hidden
