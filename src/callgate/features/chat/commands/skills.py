"""`callgate skills`: list and show skills, and create a sample."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from callgate.cli.errors import OK, CliError
from callgate.cli.logs import set_up
from callgate.cli.nested_calls import refuse_within_a_call
from callgate.cli.ui.output import print_json, print_text
from callgate.cli.ui.tables import Cell, Column, print_field, print_rows
from callgate.cli.ui.terminal import say
from callgate.cli.ui.visible import visible
from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.trust import admits_skills
from callgate.core.errors import ToolErrorClass
from callgate.sources.skill_files import FILE, check_name
from callgate.sources.skills import Skill, Skills, SkillUnreadable, Survey, UnknownSkill

_SAMPLE = """\
---
description: Describe in one line the purpose of @NAME@ and when to use it.
---
Describe the work here, step by step, as for a colleague.

Other files of this skill are in ${CALLGATE_SKILL_DIR}.
"""
_HEADINGS = (Column("name"), Column("from", least=9), Column("about"))


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of skills to `CliError`."""
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
            f"skills list takes no arguments: {options.words[0]!r}",
            hint="See callgate skills list --help.",
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
        raise CliError("a name is missing: callgate skills show NAME")
    (name,), workspace = options.words, _workspace(options)
    skills = _skills(options)
    with explained():
        skill, text = skills.read(name.removeprefix("/"), workspace)
    if options.json:
        print_json({**_one(skill), "text": text})
        return OK
    print_rows((Column("name"), Column("about")), [(Cell(skill.name, "bold"), skill.description)])
    print_field("  from       ", f"{os.path.join(skill.directory, FILE)} ({skill.origin})")
    if skill.delegate:
        print_field("  delegate   ", "runs in a sub-agent")
    print()
    print_text(text)
    return OK


def new(options: Namespace) -> int:
    if len(options.words) != 1:
        raise CliError("skills new takes one name", hint="See callgate skills new --help.")
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
    """Print a line for each skill, then the skills that are hidden by another of the same name."""
    rows = [(Cell(each.name, "bold"), each.origin, each.description) for each in survey.skills]
    rows += [
        (
            Cell(each.name, "dim"),
            each.origin,
            f"(hidden by your skill of that name) {each.description}",
        )
        for each in survey.shadowed
    ]
    print_rows(_HEADINGS, rows)


def say_the_rest(survey: Survey) -> None:
    """Print the skills that cannot be used, and the next step."""
    for broken in survey.broken:
        say(f"callgate: skipped {broken.directory}: {broken.why}")
    if survey.untrusted is not None:
        shelf = visible(survey.untrusted)
        say(f"callgate: {shelf} is ignored: the present files of the workspace are not trusted")
        say("hint: review the files, then run callgate trust DIR.")
    elif not (survey.skills or survey.broken):
        say("callgate: there are no skills yet; callgate skills new NAME creates one")


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
    """Return the directory for a new skill. In a workspace, a symbolic link is refused."""
    if not in_workspace:
        home.make()
        return os.path.join(home.path, "skills")
    here = os.path.realpath(os.getcwd())
    parent = os.path.join(here, ".callgate", "skills")
    if os.path.realpath(parent) != parent:
        raise CliError(f"{parent} is a symbolic link, or is behind one")
    return parent


def _write(parent: str, name: str) -> str:
    """Write a sample skill to a new directory."""
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
            f"{error.filename} already exists",
            hint="Choose another name, or edit the file.",
            reason="exists",
        ) from None
    except OSError as error:
        raise CliError(
            f"cannot write: {error}", error_class=ToolErrorClass.EXECUTION_ERROR
        ) from error
    return path
