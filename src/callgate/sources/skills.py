"""Skills: instructions in a directory that a user or a model requests by name.

    input                   text for the model
    text                    text
    /etc/hosts, //x, / x    unchanged: not a name of a skill
    /tool ...               unchanged: it belongs to the surface
    /NAME extra             extra, an empty line, a line with the skill's directory, its text
    /skill NAME extra       as /NAME extra
    /OTHER                  UnknownSkill, or unchanged if the settings say `pass`

A skill of the user has priority over a workspace skill with the same name. Workspace skills are not
read before the user trusts the workspace. `skill_files` finds and reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from callgate.core.sessions import Session
from callgate.core.texts import nearest
from callgate.sources.skill_files import (
    NAME,
    RESERVED,
    Broken,
    Inside,
    Shelf,
    Skill,
    SkillUnreadable,
    UserSkillDirectory,
    WorkspacePlace,
    read_text,
    shown,
)

__all__ = [
    "Broken",
    "Composed",
    "RESERVED",
    "Skill",
    "SkillUnreadable",
    "Skills",
    "Survey",
    "UnknownSkill",
]


_SLASH_COMMAND = re.compile(rf"/({NAME.pattern})(?:[ \t]+(.*))?[ \t\r]*\Z")
"""The first line of a prompt that requests a skill."""
_VARIABLE = re.compile(r"\$\{(?:CALLGATE|MEKA)_(SKILL_DIR|SESSION_ID)\}")
_TOLD_CHARS = 8_000
"""Maximum characters of the skill list in a model's prompt."""
_TOLD_EACH = 300
_MOST_SHELVES = 64
"""Workspaces whose skills are cached."""


class UnknownSkill(Exception):
    """A prompt requests a skill that does not exist. The message suggests a similar name."""

    def __init__(self, name: str, near: str | None = None) -> None:
        hint = "" if near is None else f" Is it /{near}?"
        super().__init__(f"There is no skill {name}.{hint}")
        self.name = name
        self.near = near


class Composed(NamedTuple):
    """The model's text for a user's prompt."""

    text: str
    skill: Skill | None = None
    delegate: bool = False
    """Whether a sub-agent does the work."""


class Survey(NamedTuple):
    """All skills for a workspace."""

    skills: list[Skill]
    shadowed: list[Skill]
    """Skills of the workspace with the same name as a skill of the user."""
    broken: list[Broken]
    untrusted: str | None = None
    """A directory with skills that is not read before the user trusts the workspace."""


class Skills:
    def __init__(
        self,
        home_dir: str,
        *,
        trusts: Callable[[str], bool] = lambda workspace: False,
        unknown: Literal["error", "pass"] = "error",
    ) -> None:
        """`trusts` returns whether a workspace may provide skills. `unknown` selects the result
        for a `/NAME` without a skill."""
        self._home = Shelf(UserSkillDirectory(home_dir))
        self._trusts = trusts
        self._unknown = unknown
        self._shelves: dict[str, Shelf] = {}
        """By workspace."""

    def available(self, session: Session) -> list[Skill]:
        """Return the present skills of a session, by name."""
        return self.survey(session.workspace).skills

    def survey(self, workspace: str) -> Survey:
        """Return the skills for a workspace, with the unusable ones and their problems."""
        found = self._home.look()
        shelf, untrusted = self._shelf(workspace)
        if shelf is not None:
            found += shelf.look()
        skills: dict[str, Skill] = {}
        shadowed = []
        for each in found:
            if isinstance(each, Skill):
                first = skills.setdefault(each.name.lower(), each)  # look-alikes are shadowed, too
                if first is not each:
                    shadowed.append(each)
        broken = [each for each in found if isinstance(each, Broken)]
        return Survey(sorted(skills.values(), key=_by_name), shadowed, broken, untrusted)

    def compose(self, text: str, session: Session) -> Composed:
        """Return the model's text for a prompt. Raises `UnknownSkill` or `SkillUnreadable`."""
        command = _slash_command(text)
        if command is None:
            return Composed(text)
        name, extra = command
        if name == "tool":
            return Composed(text)
        try:
            skill, body = self._load(name, session.workspace, session.id)
        except UnknownSkill:
            if self._unknown == "pass":
                return Composed(text)
            raise
        return Composed(f"{extra}\n\n{body}" if extra else body, skill, skill.delegate)

    def read(self, name: str, workspace: str) -> tuple[Skill, str]:
        """Return a skill and the present text of its file. Raises as `compose` does."""
        skill = self._find(name, workspace)
        shelf = self._home if skill.origin == "user" else self._shelf(workspace)[0]
        if shelf is None:
            raise SkillUnreadable(name, "it is gone, or its workspace is no longer trusted")
        return skill, shelf.read(name).body

    def load(self, name: str, workspace: str, session_id: str) -> str:
        """Return the text of a skill with its variables replaced. Raises as `compose` does."""
        return self._load(name, workspace, session_id)[1]

    def file(self, name: str, path: str, workspace: str) -> str:
        """Return a text file in the directory of a user's skill. Raises as `compose` does."""
        skill = self._find(name, workspace)
        if skill.origin == "workspace":  # path rules apply there
            raise SkillUnreadable(name, "it is in the workspace: read its files with read_file")
        return read_text(Inside(skill), path, name)

    def listing(self, session: Session) -> str:
        """Return the list of usable skills for a model's prompt; empty if there are none."""
        lines: list[str] = []
        skills = self.available(session)
        room = _TOLD_CHARS
        for skill in skills:
            line = f"- {skill.name}: {_cut(skill.description, _TOLD_EACH)}"
            room -= len(line) + 1
            if room < 0:
                lines.append(f"({len(skills) - len(lines)} more are not listed here.)")
                break
            lines.append(line)
        if not lines:
            return ""
        return "\n".join(
            [
                "There are skills: instructions for certain work, which the user has installed."
                " Before you do such work, read them with use_skill and follow them.",
                *lines,
            ]
        )

    def _find(self, name: str, workspace: str) -> Skill:
        survey = self.survey(workspace)
        for skill in survey.skills:
            if skill.name == name:
                return skill
        for each in survey.broken:  # it exists: UnknownSkill would be misleading
            if each.name == name:
                raise SkillUnreadable(name, each.why)
        known = {skill.name.lower(): skill.name for skill in survey.skills}
        near = nearest(name.lower(), known)
        raise UnknownSkill(shown(name), known[near] if near else None)

    def _load(self, name: str, workspace: str, session_id: str) -> tuple[Skill, str]:
        skill, body = self.read(name, workspace)
        values = {"SKILL_DIR": skill.directory, "SESSION_ID": session_id}
        filled = _VARIABLE.sub(lambda variable: values[variable[1]], body)
        return skill, f"The skill {name}, from the directory {shown(skill.directory)}:\n\n{filled}"

    def _shelf(self, workspace: str) -> tuple[Shelf | None, str | None]:
        """Return the skills of the workspace, or their path if the workspace is not trusted."""
        path = os.path.join(workspace, ".callgate", "skills")
        if not os.path.lexists(path):
            return None, None
        if not self._trusts(workspace):
            return None, path
        if workspace not in self._shelves:
            while len(self._shelves) >= _MOST_SHELVES:
                del self._shelves[next(iter(self._shelves))]
            self._shelves[workspace] = Shelf(WorkspacePlace(workspace))
        return self._shelves[workspace], None


def _slash_command(text: str) -> tuple[str, str] | None:
    """Return the skill in a prompt, and the rest of the prompt; None for any other prompt."""
    first, _, following = text.partition("\n")
    match = _SLASH_COMMAND.match(first)
    if match is None:
        return None
    name, extra = match[1], match[2] or ""
    if name == "skill" and extra:
        name, *more = re.split(r"[ \t]+", extra, maxsplit=1)
        extra = "".join(more)
    return name, f"{extra}\n{following}".strip()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _by_name(skill: Skill) -> str:
    return skill.name
