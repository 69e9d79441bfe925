"""`callgate notify test`: sends a test notice to the targets of `[notify]`."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from msgspec import structs

from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError, load_user
from callgate.config.schema import Settings
from callgate.core.commands import Launcher
from callgate.core.ids import ulid
from callgate.core.sessions import Session
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox
from callgate.features.reporting.notices import Notice, deliver
from callgate.features.reporting.settings import NotifyTable, ReportingSettings
from callgate.instance.wiring.runtime import surroundings


def test(options: Namespace) -> int:
    if options.words:
        raise CliError(f"notify test takes no arguments: {options.words[0]!r}")
    refuse_within_a_call("callgate notify test")
    home = Home.from_environment()
    try:
        settings, _ = load_user(home)
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error
    chosen = _chosen(settings.of(ReportingSettings).notify, options.target)
    problems = asyncio.run(_deliver(home, settings, chosen))
    is_good = not any(problems.values())
    if options.json:
        targets = {
            name: {"ok": not problem, "problem": problem} for name, problem in problems.items()
        }
        print_json({"ok": is_good, "targets": targets})
        return OK if is_good else FAILED
    for name, problem in problems.items():
        print(visible(f"{name}: {problem or 'ok'}"))
    if not is_good:
        say("hint: check [notify.targets] in settings.toml.")
    return OK if is_good else FAILED


def _chosen(table: NotifyTable, name: str | None) -> NotifyTable:
    if not table.targets:
        raise CliError("[notify.targets] has no target", hint="See docs/use/notices.md.")
    if name is None:
        return table
    if name not in table.targets:
        raise CliError(f"there is no [notify.targets.{name}]")
    return structs.replace(table, targets={name: table.targets[name]})


async def _deliver(home: Home, settings: Settings, table: NotifyTable) -> dict[str, str | None]:
    link = table.link or settings.instance.public_url
    notice = Notice(
        question=f"test_{ulid()}",
        tool="callgate notify test",
        effect="none",
        session="",
        waited_s=0,
        expires_in_s=0,
        link=None if link is None else f"{link.rstrip('/')}/#/inbox",
    )
    sandbox = Sandbox(surroundings(home, settings))

    def launcher() -> Launcher:
        return sandbox.launcher(Enclosure(None), Session(workspace="/"))

    try:
        return await deliver(notice, table, launcher, attempts=1)
    finally:
        sandbox.close()
