"""`callgate skills`: which there are, what one says, and a new one to begin with."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from callgate.agent.skill_files import FILE, check_name
from callgate.agent.skills import Skill, Skills, SkillUnreadable, Survey, UnknownSkill
from callgate.cli.errors import OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.terminal import columns, is_terminal, paint_for, say
from callgate.cli.ui.visible import clip, visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.trust import admits_skills
from callgate.core.errors import ToolErrorClass

_SAMPLE = """\
---
description: Say here in one line what @NAME@ is for, and when to use it.
---
Say here what is to be done, step by step, as you would say it to a colleague.

Files beside this one are in ${CALLGATE_SKILL_DIR}.
"""


@contextmanager
def explained() -> Iterator[None]:
    """Turn what is wrong with a skill into words at the command line."""
    try:
        yield
    except UnknownSkill as error:
        near = "" if error.near is None else f"; {error.near}?"
        raise CliError(
            f"there is no skill {error.name!r}{near}",
            hint="callgate skills list lists them.",
            error_class=ToolErrorClass.NOT_FOUND,
            reason="unknown_skill",
        ) from None
    except SkillUnreadable as error:
        raise CliError(
            f"the skill {error.name} cannot be used: {error.why}",
            error_class=ToolErrorClass.EXECUTION_ERROR,
            reason="skill_unreadable",
        ) from None
    except SettingsError as error:
        raise CliError(str(error), reason="settings_invalid") from error


def list(options: Namespace) -> int:
    if options.words:
        raise CliError(
            f"skills list takes no {options.words[0]!r}", hint="See callgate skills list --help."
        )
    with explained():
        survey = _skills(options).survey(_workspace(options))
    if options.json:
        print_json(_described(survey))
    elif options.names:
        for skill in survey.skills:
            print(skill.name)
    else:
        print_table(survey)
        say_the_rest(survey)
    return OK


def show(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("which skill? callgate skills show NAME")
    (name,), workspace = options.words, _workspace(options)
    skills = _skills(options)
    with explained():
        skill, text = skills.read(name.removeprefix("/"), workspace)
    if options.json:
        print_json({**_one(skill), "text": text})
        return OK
    paint = paint_for(sys.stdout)
    print(f"{paint('bold', skill.name)}  {skill.description}")
    print(f"  from       {visible(os.path.join(skill.directory, FILE))} ({skill.origin})")
    if skill.delegate:
        print("  delegate   a sub-agent does it")
    print()
    print_text(text)
    return OK


def new(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("it needs one name", hint="See callgate skills new --help.")
    refuse_within_a_call("callgate skills new")
    (name,) = options.words
    with explained():
        try:
            check_name(name)
        except SkillUnreadable as error:
            raise CliError(f"{name!r} cannot be the name of a skill: {error.why}") from None
        home = Home.from_environment()
        directory = _parent(home, options.workspace)
        path = _write(directory, name)
        untrusted = options.workspace and not admits_skills(home, os.getcwd())
    if options.json:
        print_json({"wrote": path, "name": name})
        return OK
    say(f"wrote {path}")
    say("Try next:")
    say(f"  edit {path}")
    if untrusted:
        say("  callgate trust .")
    say(f"  callgate skills show {name}")
    say(f'  callgate run "/{name} ..."')
    return OK


def print_table(survey: Survey) -> None:
    """A line for each skill; those that another hides stand below."""
    paint = paint_for(sys.stdout)
    rows = [(skill, "") for skill in survey.skills]
    rows += [(skill, "(hidden by yours of that name) ") for skill in survey.shadowed]
    width = max((len(skill.name) for skill, _ in rows), default=0)
    room = columns() - width - 15 if is_terminal(sys.stdout) else None
    for skill, note in rows:
        text = note + skill.description
        shown = visible(text) if room is None else clip(text, max(room, 20))
        name = paint("dim" if note else "bold", f"{skill.name:<{width}}")
        print(f"{name}  {skill.origin:<9}  {shown}")


def say_the_rest(survey: Survey) -> None:
    """What is there beside the skills that can be used, and what to do about it."""
    for broken in survey.broken:
        say(f"callgate: skipped {broken.directory}: {broken.why}")
    if survey.untrusted is not None:
        shelf = visible(survey.untrusted)
        say(f"callgate: {shelf} is not read: the workspace is not trusted as it is now")
        say("hint: callgate trust DIR, once you have looked at what they say.")
    elif not (survey.skills or survey.broken):
        say("callgate: there are no skills yet; callgate skills new NAME begins one")


def _skills(options: Namespace) -> Skills:
    set_up(options.debug)
    home = Home.from_environment()
    return Skills(home.path, trusts=partial(admits_skills, home))


def _workspace(options: Namespace) -> str:
    workspace: str = os.path.abspath(os.path.expanduser(options.workspace))
    if not os.path.isdir(workspace):
        raise CliError(f"--workspace: {workspace} is not a directory")
    return workspace


def _described(survey: Survey) -> dict[str, Any]:
    return {
        "skills": [_one(skill) for skill in survey.skills],
        "shadowed": [_one(skill) for skill in survey.shadowed],
        "broken": [
            {"name": each.name, "directory": each.directory, "origin": each.origin, "why": each.why}
            for each in survey.broken
        ],
        "untrusted": survey.untrusted,
    }


def _one(skill: Skill) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": skill.description,
        "directory": skill.directory,
        "origin": skill.origin,
        "delegate": skill.delegate,
    }


def _parent(home: Home, in_workspace: bool) -> str:
    """Where a new skill goes. A link that leads out of the workspace is not followed there."""
    if not in_workspace:
        home.make()
        return os.path.join(home.path, "skills")
    here = os.path.realpath(os.getcwd())
    parent = os.path.join(here, ".callgate", "skills")
    if os.path.realpath(parent) != parent:
        raise CliError(f"{parent} is a link, or lies behind one")
    return parent


def _write(parent: str, name: str) -> str:
    """Into a directory that is not there yet."""
    directory = os.path.join(parent, name)
    path = os.path.join(directory, FILE)
    try:
        os.makedirs(parent, exist_ok=True)
        os.mkdir(directory)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_SAMPLE.replace("@NAME@", name))
    except FileExistsError as error:
        raise CliError(
            f"{error.filename} is there already",
            hint="Choose another name, or edit it.",
            reason="exists",
        ) from None
    except OSError as error:
        raise CliError(
            f"cannot write: {error}", error_class=ToolErrorClass.EXECUTION_ERROR
        ) from error
    return path
