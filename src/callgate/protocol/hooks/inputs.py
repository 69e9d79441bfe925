"""Reads the input of an agent's tool, so that nothing in it says another thing to the agent.

    several names for one argument   one of them may be given
    relative paths                   count from the directory of the event
    patches                          every line that could name a file does
    glob patterns                    their literal directory is the place that is judged
    addresses                        whole, one, and without a user name

Pure. Whatever could be read in two ways raises `BadHookEvent`, which refuses the call.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from callgate.protocol.hooks.events import BadHookEvent, HookEvent

PATHS = (
    "file_path", "path", "filePath", "absolute_path", "target_file", "notebook_path", "filepath",
    "filename", "file", "dir_path", "directory", "dir", "folder", "target_directory",
)  # fmt: skip
"""How agents call the place that a tool is about."""
DIRECTORIES = ("workdir", "directory", "dir_path", "cwd", "working_directory")
"""How they call the directory of a command."""
_FILTERS = (
    "glob", "include", "include_pattern", "includePattern", "file_pattern", "exclude",
    "exclude_pattern", "ignore", "ignore_globs",
)  # fmt: skip
_PATH_NAME = re.compile(
    r"path|file|dir|folder|cwd|root|notebook|location|source|src|dest|target|uri|output|input",
    re.IGNORECASE,
)
"""Names under which any tool is taken to give a path, in any depth of its input."""
_TEXT_NAME = re.compile(
    r"content|text|body|message|prompt|description|query|pattern|new_source|old_str|new_str",
    re.IGNORECASE,
)
_LONGEST_PATH = 4096
_LONGEST_ADDRESS = 8192
_MOST_FILES = 200
_MOST_FILTERS = 200
MOST_PATHS = 1_000
"""In the input of one call of a tool without a counterpart."""
_MARKERS = ("*** Begin Patch", "*** End Patch", "*** End of File")
_FILE_MARKER = re.compile(r"\*\*\* (?:(?:Add|Update|Delete) File|Move to): (?=\S)")
_ADDRESS = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE)
_WHOLE = re.compile(r"[\x21-\x5b\x5d-\x7e]+")
"""Visible ASCII, but no backslash, which some readers take for a slash."""
_WILD = re.compile(r"[*?\[\]{}()!|\\]")


def one_of(row: Mapping[str, Any], *keys: str) -> Any:
    """The value that is given by any of these names; None: by none."""
    given = [key for key in keys if row.get(key) is not None]
    if len(given) > 1:
        raise BadHookEvent(f"{given[0]} and {given[1]} have one meaning: give one of them.")
    return row[given[0]] if given else None


def flag_of(row: Mapping[str, Any], *keys: str) -> bool:
    """Return the flag with any of these names; False if there is none."""
    value = one_of(row, *keys)
    if value is not None and not isinstance(value, bool):
        raise BadHookEvent(f"One of {', '.join(key for key in keys if key in row)} is no flag.")
    return bool(value)


def text_of(row: Mapping[str, Any], *keys: str) -> str | None:
    value = one_of(row, *keys)
    if value is not None and not isinstance(value, str):
        raise BadHookEvent(f"{', '.join(key for key in keys if key in row)}: must be text.")
    return value


def absolute(event: HookEvent, path: str) -> str:
    """A path as the agent means it, which counts from its directory of now."""
    if len(path) > _LONGEST_PATH:
        raise BadHookEvent(f"A path has {len(path)} characters, more than {_LONGEST_PATH}.")
    if path.startswith("~") or path.lower().startswith("file:"):
        raise BadHookEvent(f"{path[:80]!r} can be read in two ways: write the path out.")
    return path if event.cwd is None else posixpath.join(event.cwd, path)


def place_of(event: HookEvent) -> str | None:
    """The file or directory that a call is about."""
    path = text_of(event.input, *PATHS)
    return absolute(event, path) if path else None


def paths_in(input: Mapping[str, Any]) -> Iterator[str]:
    """Every text in an input that can name a file: by the name of its argument, in any depth, or
    because it begins like a path."""
    pending: list[tuple[str, bool, Any]] = [("", False, input)]
    while pending:
        name, is_path, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(key, is_path or _names_path(key), each) for key, each in value.items()]
        elif isinstance(value, list):
            pending += [(name, is_path, each) for each in value]
        elif isinstance(value, str):
            text = value.strip()  # a tool may strip it, too
            if is_path or (_begins_like_a_path(text) and not _names_text(name)):
                yield text


def _names_path(name: str) -> bool:
    """Whether an argument is a path by its name. The last word decides: `context_path` is one,
    `file_content` is not."""
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
    """Every file that a patch names, in the form of Codex, which takes markers with blanks around
    them."""
    paths: list[str] = []
    for line in _lines_with(text, "*** "):
        if line.startswith(("+", "-")):
            continue
        stripped = line.strip()
        if stripped in _MARKERS:
            continue
        if (marker := _FILE_MARKER.match(stripped)) is None:
            raise BadHookEvent(f"A line of the patch is no marker that is known: {line[:80]!r}.")
        paths.append(stripped[marker.end() :])
    if not 0 < len(paths) <= _MOST_FILES:
        raise BadHookEvent(f"A patch names 1 to {_MOST_FILES} files, not {len(paths)}.")
    return paths


def _lines_with(text: str, mark: str) -> Iterator[str]:
    """The lines of a text that contain a mark. The others may be millions."""
    at = text.find(mark)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        yield text[start:] if end < 0 else text[start:end]
        at = -1 if end < 0 else text.find(mark, end)


def split_glob(pattern: str) -> tuple[str, str]:
    """The directory in which a glob pattern begins, and what is left of it."""
    _check_glob(pattern)
    parts = pattern.split("/")
    at = next((at for at, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    directory = "/".join(parts[:at])
    if at and not directory:
        directory = "/"
    return directory, "/".join(parts[at:]) or "*"


def check_filters(input: Mapping[str, Any]) -> None:
    """Refuse a filter of file names that could lead out of the place that is searched."""
    for key in _FILTERS:
        value = input.get(key)
        if isinstance(value, list) and len(value) > _MOST_FILTERS:
            raise BadHookEvent(f"{key} has more than {_MOST_FILTERS} patterns.")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                _check_glob(each)
                if each.startswith("/"):
                    raise BadHookEvent(f"{key} must not be absolute: name the directory as path.")


def _check_glob(pattern: str) -> None:
    if len(pattern) > _LONGEST_PATH:
        raise BadHookEvent(f"A pattern has {len(pattern)} characters, more than {_LONGEST_PATH}.")
    pieces = re.split(r"[/{},()|\\]", pattern)
    if ".." in pieces or pattern.startswith("~") or re.search(r"[{,(|]\s*[/~]", pattern):
        raise BadHookEvent(f"The pattern {pattern[:80]!r} could lead out of its directory.")


def address_of(input: Mapping[str, Any], tool: str) -> str:
    """The one address that is fetched. Some agents take all that stand in the prompt."""
    url = text_of(input, "url", "uri")
    if len(url or "") > _LONGEST_ADDRESS:
        raise BadHookEvent(f"The address of {tool} is longer than {_LONGEST_ADDRESS} characters.")
    named = [word for word in (text_of(input, "prompt") or "").split() if "://" in word]
    if url:
        named = [word for word in named if word.rstrip(".,;:!?)") != url]
    found = [url, *named] if url else named
    if len(found) != 1:
        raise BadHookEvent(f"A call of {tool} must name one address, not {len(found)}.")
    address = _ADDRESS.fullmatch(found[0]) if _WHOLE.fullmatch(found[0]) else None
    if address is None or not address[2] or "@" in address[2]:
        raise BadHookEvent(f"{found[0][:80]!r} is no plain address of the web.")
    return f"{address[1].lower()}://{address[2]}{address[3]}"
