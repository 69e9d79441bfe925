"""Reads the input of an agent's tool. Refuses any input that the agent could interpret otherwise.

    several names for one argument   only one of them is allowed (`SPELLINGS`)
    relative paths                   relative to the directory of the event
    patches                          every line that could name a file counts as one
    glob patterns                    the policy checks their literal directory
    URLs                             absolute, exactly one, without a user name

Pure. An ambiguous input raises `BadHookEvent`, which refuses the call.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.features.agents.hooks.events import BadHookEvent, HookEvent

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "path": (
        "file_path", "path", "filePath", "absolute_path", "target_file", "notebook_path",
        "dir_path", "target_directory", "filepath",
    ),
    "paths": ("paths",),
    "directory": ("workdir", "directory", "dir_path", "cwd", "working_directory"),
    "command": ("command", "cmd"),
    "content": ("content", "contents", "file_text"),
    "old text": ("old_string", "oldString", "old", "old_str", "search"),
    "new text": ("new_string", "newString", "new", "new_str", "replace"),
    "everywhere": ("replace_all", "replaceAll", "allow_multiple"),
    "edits": ("edits", "edit"),
    "patch": ("command", "patch", "input", "patchText"),
    "pattern": ("pattern", "glob_pattern", "regex"),
    "url": ("url", "uri"),
    "prompt": ("prompt",),
    "shell": ("shell",),
}  # fmt: skip
"""Names of each argument in third-party tools. `directory` is the working directory of a command.
A name counts only for tools that have it in the agent's table."""
SHELLS = frozenset(("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash"))
"""Programs whose `-c TEXT` is read as the text. Another path may be another program."""
_FILTERS = (
    "glob", "include", "include_pattern", "includePattern", "file_pattern", "exclude",
    "exclude_pattern", "ignore", "ignore_globs",
)  # fmt: skip
_PATH_NAME = re.compile(
    r"path|file|dir|folder|cwd|root|notebook|location|source|src|dest|target|uri|output|input",
    re.IGNORECASE,
)
"""Argument names that indicate a path, in any tool and at any depth."""
_TEXT_NAME = re.compile(
    r"content|text|body|message|prompt|description|query|pattern|new_source|old_str|new_str",
    re.IGNORECASE,
)
_LONGEST_PATH = 4096
_LONGEST_ADDRESS = 8192
_MOST_FILES = 200
_MOST_FILTERS = 200
_MOST_WORDS = 40
"""Maximum number of words in one path."""
MOST_PATHS = 1_000
"""Maximum number of paths in one call of a tool without a counterpart."""
_MARKERS = ("*** Begin Patch", "*** End Patch", "*** End of File")
_FILE_MARKER = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): (?=\S)")
_ADDRESS = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE)
_VISIBLE_ASCII = re.compile(r"[\x21-\x5b\x5d-\x7e]+")
"""Visible ASCII without the backslash, which some parsers treat as a slash."""
_WILD = re.compile(r"[*?\[\]{}()!|\\]")


def one_of(row: Mapping[str, Any], meaning: str) -> Any:
    """Return the one argument with this meaning in `SPELLINGS`; None if there is none."""
    given = [key for key in SPELLINGS[meaning] if row.get(key) is not None]
    if len(given) > 1:
        raise BadHookEvent(f"{given[0]} and {given[1]} have the same meaning: use one of them.")
    return row[given[0]] if given else None


def flag_of(row: Mapping[str, Any], meaning: str) -> bool:
    """Return the flag with this meaning; False if there is none."""
    value = one_of(row, meaning)
    if value is not None and not isinstance(value, bool):
        raise BadHookEvent(f"The argument for {meaning!r} must be true or false.")
    return bool(value)


def text_of(row: Mapping[str, Any], meaning: str) -> str | None:
    value = one_of(row, meaning)
    if value is not None and not isinstance(value, str):
        raise BadHookEvent(f"The argument for {meaning!r} must be text.")
    return value


def command_text(command: Any) -> str | None:
    """Return a command line as text; None if it is neither a text nor a list of texts.

    A list becomes its quoted words; `bash -c TEXT` becomes TEXT.
    """
    if isinstance(command, str):
        return command or None
    if not isinstance(command, list) or not all(isinstance(each, str) for each in command):
        return None
    if len(command) == 3 and command[0] in SHELLS and command[1] in ("-c", "-lc"):
        return str(command[2]) or None
    return shlex.join(command) or None


def absolute(event: HookEvent, path: str) -> str:
    """Return a path, relative to the present directory of the agent."""
    if len(path) > _LONGEST_PATH:
        raise BadHookEvent(f"A path has {len(path)} characters, more than {_LONGEST_PATH}.")
    if path.startswith("~") or path.lower().startswith("file:"):
        raise BadHookEvent(f"The path {path[:80]!r} is ambiguous: use an absolute path.")
    return path if event.cwd is None else posixpath.join(event.cwd, path)


def place_of(event: HookEvent) -> str | None:
    """Return the file or directory of a call."""
    path = text_of(event.input, "path")
    return absolute(event, path) if path else None


def directories_of(event: HookEvent, *, splits: bool) -> list[str]:
    """Return the directories of a search; empty: the directory of the event.

    `splits`: the agent splits a text at its blanks if it names no file.
    """
    listed = one_of(event.input, "paths")
    if listed is None:
        listed = text_of(event.input, "path") or []
    elif text_of(event.input, "path") is not None:
        raise BadHookEvent("path and paths have the same meaning: use one of them.")
    paths = listed if isinstance(listed, list) else [listed]
    if not all(isinstance(path, str) for path in paths):
        raise BadHookEvent("paths must be a text or a list of texts.")
    if splits and len(paths) <= MOST_PATHS:
        paths = [each for path in paths for each in _parts_of(path)]
    if len(paths) > MOST_PATHS:
        raise BadHookEvent(f"The input names {len(paths)} paths, more than {MOST_PATHS}.")
    return [absolute(event, path) for path in paths if path]


def _parts_of(path: str) -> list[str]:
    """Return a text, and each path that it can name if it is split at some of its blanks."""
    words = list(itertools.islice(re.finditer(r"\S+", path), _MOST_WORDS + 1))
    if len(words) > _MOST_WORDS:
        raise BadHookEvent(f"A path has more than {_MOST_WORDS} words: use a list of paths.")
    ends = itertools.combinations_with_replacement(words, 2)
    return list(dict.fromkeys((path, *(path[first.start() : last.end()] for first, last in ends))))


def paths_in(input: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text in an input, at any depth, that can name a file.

    The name of its argument indicates a path, or the text begins like one.
    """
    pending: list[tuple[str, bool, Any]] = [("", False, input)]
    while pending:
        name, is_path, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(key, is_path or _names_path(key), each) for key, each in value.items()]
        elif isinstance(value, list):
            pending += [(name, is_path, each) for each in value]
        elif isinstance(value, str):
            text = value.strip()  # a tool may strip it as well
            if is_path or (_begins_like_a_path(text) and not _names_text(name)):
                yield text


def _names_path(name: str) -> bool:
    """Return whether an argument's name indicates a path.

    The last word decides: `context_path` does, `file_content` does not.
    """
    return _last_end(_PATH_NAME, name) > _last_end(_TEXT_NAME, name)


def _names_text(name: str) -> bool:
    is_path_pattern = name.lower().endswith("pattern") and _PATH_NAME.search(name) is not None
    return not _names_path(name) and _TEXT_NAME.search(name) is not None and not is_path_pattern


def _last_end(pattern: re.Pattern[str], name: str) -> int:
    return max((each.end() for each in pattern.finditer(name)), default=0)


def _begins_like_a_path(text: str) -> bool:
    if not text or len(text) > _LONGEST_PATH or "\n" in text:
        return False
    return text.startswith(("/", "~", "./")) or text[:5].lower() == "file:" or ".." in text


def patched_files(text: str) -> list[str]:
    """Return every file in a patch in Codex's format, which allows blanks around markers."""
    paths: list[str] = []
    for line in _lines_with(text, "*** "):
        if any(each.lstrip().startswith("***") for each in line.splitlines()[1:]):
            raise BadHookEvent("A marker of the patch follows an unusual line break: use \\n.")
        if line.startswith(("+", "-")):
            continue
        stripped = line.strip()
        if stripped in _MARKERS:
            continue
        if (marker := _FILE_MARKER.match(stripped)) is None:
            raise BadHookEvent(f"A line of the patch has an unknown marker: {line[:80]!r}.")
        paths.append(stripped[marker.end() :])
    if not 0 < len(paths) <= _MOST_FILES:
        raise BadHookEvent(f"A patch must name 1 to {_MOST_FILES} files, not {len(paths)}.")
    return paths


def _lines_with(text: str, mark: str) -> Iterator[str]:
    """Yield the lines of a text that contain a mark, without splitting a large text."""
    at = text.find(mark)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        yield text[start:] if end < 0 else text[start:end]
        at = -1 if end < 0 else text.find(mark, end)


def split_glob(pattern: str) -> tuple[str, str]:
    """Split a glob pattern into its literal directory and the rest."""
    _check_glob(pattern)
    segments = pattern.split("/")
    at = next((at for at, part in enumerate(segments) if _WILD.search(part)), len(segments) - 1)
    directory = "/".join(segments[:at])
    if at and not directory:
        directory = "/"
    return directory, "/".join(segments[at:]) or "*"


def check_filters(input: Mapping[str, Any]) -> None:
    """Refuse a file filter that could lead out of the searched directory."""
    for key in _FILTERS:
        value = input.get(key)
        if isinstance(value, list) and len(value) > _MOST_FILTERS:
            raise BadHookEvent(f"{key} has more than {_MOST_FILTERS} patterns.")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                _check_glob(each)
                if each.startswith("/"):
                    raise BadHookEvent(f"{key} must not be absolute: use path for the directory.")


def _check_glob(pattern: str) -> None:
    if len(pattern) > _LONGEST_PATH:
        raise BadHookEvent(f"A pattern has {len(pattern)} characters, more than {_LONGEST_PATH}.")
    pieces = re.split(r"[/{},()|\\]", pattern)
    if ".." in pieces or pattern.startswith("~") or re.search(r"[{,(|]\s*[/~]", pattern):
        raise BadHookEvent(f"The pattern {pattern[:80]!r} could lead out of its directory.")


def address_of(input: Mapping[str, Any], tool: str) -> str:
    """Return the only URL of a fetch. Some agents fetch every URL in the prompt."""
    url = text_of(input, "url")
    if len(url or "") > _LONGEST_ADDRESS:
        raise BadHookEvent(f"The URL of {tool} is longer than {_LONGEST_ADDRESS} characters.")
    named = [word for word in (text_of(input, "prompt") or "").split() if "://" in word]
    if url:
        named = [word for word in named if word.rstrip(".,;:!?)") != url]
    found = [url, *named] if url else named
    if len(found) != 1:
        raise BadHookEvent(f"A call of {tool} must name exactly one URL, not {len(found)}.")
    address = _ADDRESS.fullmatch(found[0]) if _VISIBLE_ASCII.fullmatch(found[0]) else None
    if address is None or not address[2] or "@" in address[2]:
        raise BadHookEvent(f"{found[0][:80]!r} is not a plain http or https URL.")
    return f"{address[1].lower()}://{address[2]}{address[3]}"
