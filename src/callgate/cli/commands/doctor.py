"""`callgate doctor`: is everything in order here? One line a check, with what to do about it."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from callgate.cli.doctor.checks import CHECKS, Patient, sandbox_of
from callgate.cli.doctor.findings import Level
from callgate.cli.doctor.sandboxes import described, seen
from callgate.cli.errors import FAILED, OK, CliError
from callgate.cli.ui.output import print_json
from callgate.cli.ui.terminal import paint_for
from callgate.cli.ui.visible import visible
from callgate.config.home import Home

_COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.FAILED: "red"}


def _show_sight(patient: Patient) -> int:
    sandbox = sandbox_of(patient)
    if sandbox is None or sandbox.surroundings.profile is None:
        raise CliError("there is no sandbox", hint="See callgate doctor.")
    for heading, paths in seen(sandbox, patient.workspace).items():
        print(heading)
        for path in paths or ["nothing"]:
            print(f"  {visible(path)}")
    return OK


def doctor(options: Namespace) -> int:
    if options.words:
        raise CliError(f"doctor takes no {options.words[0]!r}", hint="See callgate doctor --help.")
    patient = Patient(Home.from_environment(), os.getcwd())
    if options.sandbox and not options.json:
        return _show_sight(patient)
    findings = {name: check(patient) for name, check in CHECKS.items()}
    healthy = all(found.level is not Level.FAILED for found in findings.values())
    if options.json:
        checks = [{"check": name, **found._asdict()} for name, found in findings.items()]
        sandbox = sandbox_of(patient)
        profiles = None if sandbox is None else described(sandbox, patient.workspace)
        print_json({"ok": healthy, "checks": checks, "sandbox": profiles})
        return OK if healthy else FAILED
    paint = paint_for(sys.stdout)
    for name, found in findings.items():
        level = paint(_COLOURS[found.level], f"{found.level:<6}")
        fix = "" if found.fix is None else f"  -> {found.fix}"
        print(f"{level}  {name:<10}  {visible(found.text + fix)}")
    return OK if healthy else FAILED
