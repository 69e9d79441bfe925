"""`callgate demo`: one turn of a scripted agent, narrated from its events and results.

    instance -> turn: a refusal, a question, a command -> undo -> audit log -> next commands

Exit codes: 0, also if the edit was denied; 1 if the sandbox did not hide the planted key or the
instance failed; 128 and the number of the signal after Ctrl-C, SIGTERM or SIGHUP.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from callgate.cli.commands.demo_narration import (
    INDENT,
    INTRODUCTION,
    DemoCommand,
    Edit,
    Narration,
    command_words,
    edit_of,
    no_undo_words,
    print_heading,
    print_lines,
    print_link,
    print_next,
    print_paragraph,
    undo_words,
)
from callgate.cli.commands.demo_stage import (
    GREETING,
    KEY_PATH,
    PROGRAM,
    PROMPT,
    Approver,
    Stage,
    instance_ended,
    served_stage,
)
from callgate.cli.commands.events import OfOne, follow
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.instance_http import find_instance
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.terminal import is_terminal, say
from callgate.cli.ui.tty import MARK, BegunBefore, Tty, open_tty
from callgate.config.home import Home
from callgate.config.stores import configured_store, open_store
from callgate.core.events import TURN_CANCELLED, TURN_COMPLETED
from callgate.core.stores import Store
from callgate.core.tasks import start_task

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPED = "\nStopped. The instance has ended, and the temporary files are removed."
_LAST = "The dashboard of the demo stays open until you press Enter:"


class Options(NamedTuple):
    yes: bool = False
    """Allow the edit without asking."""
    answer_within_s: float = 300.0
    more_settings: str = ""
    """TOML that follows the demo's settings."""


def demo(options: Namespace) -> int:
    if options.words:
        raise CliError("demo takes no arguments")
    refuse_within_a_call("callgate demo")
    return run(Options(yes=options.yes))


def run(options: Options) -> int:
    """Play the demo; return its exit code."""
    at_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout) and not options.yes
    return asyncio.run(_until_signal(_play(open_tty() if at_terminal else None, options)))


async def _until_signal(playing: Coroutine[None, None, int]) -> int:
    """Run to the end, or to a signal; a second signal does not interrupt the cleanup."""
    task = start_task(playing)
    received: list[int] = []

    def stop(number: int) -> None:
        if not received:
            received.append(number)
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        say(_STOPPED)
        return 128 + received[0]


async def _play(tty: Tty | None, options: Options) -> int:
    print_paragraph(INTRODUCTION)
    async with served_stage(options.answer_within_s, options.more_settings) as (stage, ended):
        telling = start_task(_tell(stage, tty, options))
        try:
            await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                raise instance_ended(stage)
            return telling.result()
        finally:
            telling.cancel()
            await asyncio.wait({telling})


async def _tell(stage: Stage, tty: Tty | None, options: Options) -> int:
    async with _opened_store(stage) as store:
        print_heading(f'You ask the agent: "{PROMPT}"')
        print_lines(f"It works in ~/project. A fake private key lies next to it, in ~/{KEY_PATH}.")
        approver = Approver(store, tty, yes=options.yes)
        edit, command = await _turn(stage, store, approver, options.answer_within_s)
    print_lines(command_words(command), "bold")
    await _undo(stage, edit)
    await _audit(stage)
    print_next()
    if tty is not None:
        await _stay_open(stage, tty)
    return FAILED if command.leaked else OK


@asynccontextmanager
async def _opened_store(stage: Stage) -> AsyncIterator[Store]:
    home = Home.at(str(stage.callgate_home))
    store = await open_store(home, configured_store(home))
    try:
        yield store
    finally:
        await store.close()


async def _turn(
    stage: Stage, store: Store, approver: Approver, answer_within_s: float
) -> tuple[Edit, DemoCommand]:
    link = (await _post(stage, "/v1/login", {}))["url"]
    session = (await _post(stage, "/v1/sessions", {"title": PROMPT}))["id"]
    await _post(stage, f"/v1/sessions/{session}/turns", {"prompt": PROMPT})
    narration = Narration(store, session, approver, link, answer_within_s)
    async with aclosing(follow(store, OfOne(store, session, 0))) as pages:
        async for page in pages:
            for _, event in page:
                await narration.show(event)
            if any(each.event.type in (TURN_COMPLETED, TURN_CANCELLED) for each in page):
                break
    output = await narration.print_command()
    command = DemoCommand(narration.ends.get("shell"), output, stage.planted_key())
    return edit_of(narration.ends.get("patch_file")), command


async def _undo(stage: Stage, edit: Edit) -> None:
    print_heading("Undo")
    if edit is not Edit.DONE:
        print_lines(no_undo_words(edit))
        return
    await _run(stage, "undo", "--last", "--yes")
    print_lines(undo_words(PROGRAM, restored=stage.program.read_text() == GREETING), "bold")


async def _audit(stage: Stage) -> None:
    print_heading("The audit log")
    await _run(stage, "audit", "tail")
    await _run(stage, "audit", "verify")


async def _post(stage: Stage, path: str, body: dict[str, str]) -> Any:
    instance = find_instance(str(stage.callgate_home))
    return await asyncio.to_thread(instance.request, "POST", path, body)


async def _run(stage: Stage, *words: str) -> None:
    print_lines(" ".join(["callgate", *words]), "bold", "$ ")
    print_lines(await stage.run(*words))


async def _stay_open(stage: Stage, tty: Tty) -> None:
    """Keep the dashboard until the person presses Enter or closes the input."""
    print_heading(_LAST)
    print_link((await _post(stage, "/v1/login", {}))["url"])
    async with tty.asking():
        try:
            await tty.ask(f"{INDENT}[Enter]{MARK}")
        except BegunBefore:
            pass
