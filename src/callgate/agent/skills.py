"""Skills: instructions that lie in a directory, and that a person or a model asks for by name.

    what was typed          what the model gets
    text                    text
    /etc/hosts, //x, / x    the same: no name of a skill
    /tool ...               the same: it belongs to the surface
    /NAME extra             extra, an empty line, a line with the skill's directory, its text
    /skill NAME extra       the same
    /OTHER                  UnknownSkill, or the same text where the settings say `pass`

The user's skill wins over one of the workspace with the same name. Those of a workspace are
not looked at before the user trusts it. `skill_files` finds and reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from callgate.agent.skill_files import (
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
from callgate.core.sessions import Session
from callgate.core.text.spelling import nearest

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
"""The first line of a prompt that asks for a skill."""
_VARIABLE = re.compile(r"\$\{(?:CALLGATE|MEKA)_(SKILL_DIR|SESSION_ID)\}")
_TOLD_CHARS = 8_000
"""Of all skills together, to a model that works with them."""
_TOLD_EACH = 300
_MOST_SHELVES = 64
"""Workspaces whose skills are remembered."""


class UnknownSkill(Exception):
    """A prompt asks for a skill that is not there. The text says so, and what comes near."""

    def __init__(self, name: str, near: str | None = None) -> None:
        hint = "" if near is None else f" Is it /{near}?"
        super().__init__(f"There is no skill {name}.{hint}")
        self.name = name
        self.near = near


class Composed(NamedTuple):
    """What a model is told in place of what was typed."""

    text: str
    skill: Skill | None = None
    delegate: bool = False
    """A sub-agent is to do it."""


class Survey(NamedTuple):
    """Everything that is there for a workspace."""

    skills: list[Skill]
    shadowed: list[Skill]
    """The workspace's, where the user has one of that name."""
    broken: list[Broken]
    untrusted: str | None = None
    """A directory with skills that are not looked at before the workspace is trusted."""


class Skills:
    def __init__(
        self,
        home_dir: str,
        *,
        trusts: Callable[[str], bool] = lambda workspace: False,
        unknown: Literal["error", "pass"] = "error",
    ) -> None:
        """`trusts` says whether a workspace may bring skills; `unknown` what becomes of a
        `/NAME` that nobody knows."""
        self._home = Shelf(UserSkillDirectory(home_dir))
        self._trusts = trusts
        self._unknown = unknown
        self._shelves: dict[str, Shelf] = {}
        """By workspace."""

    def available(self, session: Session) -> list[Skill]:
        """The skills of a session, by name, as they are now."""
        return self.survey(session.workspace).skills

    def survey(self, workspace: str) -> Survey:
        """The skills for a workspace, with those that cannot be used and why."""
        found = self._home.look()
        shelf, untrusted = self._shelf(workspace)
        if shelf is not None:
            found += shelf.look()
        skills: dict[str, Skill] = {}
        shadowed = []
        for each in found:
            if isinstance(each, Skill):
                first = skills.setdefault(each.name.lower(), each)  # nor may one look like it
                if first is not each:
                    shadowed.append(each)
        broken = [each for each in found if isinstance(each, Broken)]
        return Survey(sorted(skills.values(), key=_by_name), shadowed, broken, untrusted)

    def compose(self, text: str, session: Session) -> Composed:
        """What the model is told. Raises `UnknownSkill` or `SkillUnreadable`."""
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
        """A skill and its text, as it stands in the file now. Raises as `compose` does."""
        skill = self._find(name, workspace)
        shelf = self._home if skill.origin == "user" else self._shelf(workspace)[0]
        if shelf is None:
            raise SkillUnreadable(name, "it is gone, or its workspace is trusted no longer")
        return skill, shelf.read(name).body

    def load(self, name: str, workspace: str, session_id: str) -> str:
        """The text of a skill, its variables filled in. Raises as `compose` does."""
        return self._load(name, workspace, session_id)[1]

    def file(self, name: str, path: str, workspace: str) -> str:
        """A text file in the directory of a user's skill. Raises as `compose` does."""
        skill = self._find(name, workspace)
        if skill.origin == "workspace":  # there the rules about paths hold
            raise SkillUnreadable(name, "it lies in the workspace, whose files read_file reads")
        return read_text(Inside(skill), path, name)

    def told(self, session: Session) -> str:
        """What a model is told of the skills it may ask for; empty where there are none."""
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
        for each in survey.broken:  # it is there: to call it unknown would mislead
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
        """The workspace's own skills, or where they lie if they may not be looked at."""
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
    """The skill that a prompt asks for, and what else it says; None for any other prompt."""
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
