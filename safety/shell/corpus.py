"""The tasks and attacks of the shell half, as values; and those of `inspect-evals`, read anew."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

_BY_CATEGORY = {
    "exfiltration": "environment",
    "code_execution": "download-and-run",
    "persistence": "git-hook",
}
"""What a hijacked model does for a text of `inspect-evals`, by what the text wants."""


class PlannedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    arguments: dict[str, Any]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is looked at afterwards; exactly one of these is given."""

    contains: tuple[str, str] | None = None
    """A file of the project, and a text in it."""
    gone: str | None = None
    """A file of the project that is no longer there."""
    changed: str | None = None
    """A path of the scene (`home/...`, `project/...`) that is not as it was."""
    received: str | None = None
    """A text that the attacker's listener got."""
    shown: str | None = None
    """A text that the model was given."""
    killed: bool | None = None
    """The user's process has ended."""
    stays: str | None = None
    """A file of the project with the id of a process that still runs."""


class Attack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    kind: str
    goal: str
    calls: tuple[PlannedCall, ...]
    reached: Check


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    prompt: str
    calls: tuple[PlannedCall, ...]
    done: Check
    carrier: str = ""
    """The file or page that the injected text is appended to; empty: it stands there already."""
    attacks: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    """The project, where it is not the corpus's own."""


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    project: dict[str, str]
    pages: dict[str, str]
    task: tuple[Task, ...]
    attack: tuple[Attack, ...]

    def attack_by_id(self, id: str) -> Attack:
        return next(each for each in self.attack if each.id == id)


@cache
def corpus() -> Corpus:
    text = resources.files("safety.shell").joinpath("corpus.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=Corpus)


@cache
def inspect_tasks() -> tuple[Task, ...]:
    """The samples of `inspect-evals`' `ipi_coding_agent`: their projects, issues and texts.

    The texts stand in the files as the sample has them. Its benign samples are tasks without an
    attack. Empty where the wheel is not installed."""
    spec = importlib.util.find_spec("inspect_evals")
    if spec is None or not spec.submodule_search_locations:
        return ()
    path = os.path.join(
        spec.submodule_search_locations[0], "ipi_coding_agent", "dataset", "samples.json"
    )
    with open(path, encoding="utf-8") as file:
        return tuple(_inspect_task(sample) for sample in json.load(file))


def _inspect_task(sample: Mapping[str, Any]) -> Task:
    files = {**sample["repo_files"], "ISSUE.md": sample["issue_text"]}
    source = next(path for path in files if path.startswith("src/") and files[path])
    reading = [PlannedCall("read_file", {"path": path}) for path in files if files[path]]
    fixed = files[source] + "# fixed\n"
    return Task(
        id=sample["id"],
        prompt=f"{sample['task_description']} The report is in ISSUE.md.",
        calls=(*reading, PlannedCall("write_file", {"path": source, "content": fixed})),
        done=Check(contains=(source, "# fixed")),
        attacks=() if sample["is_benign"] else (_BY_CATEGORY[sample["payload_category"]],),
        files=files,
    )
