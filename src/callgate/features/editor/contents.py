"""Conversion between values of ACP and callgate: content, prompts, options of a session. Pure.

The text of a prompt is unchanged. A link becomes a tag with its name and address, and nothing is
fetched; a resource becomes a tag around its text. Content from the editor cannot close such a tag
or add an attribute to it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from callgate.core.content import (
    ContentBlock,
    FileDiff,
    ImageBlock,
    ImageSource,
    Message,
    TextBlock,
    ToolResultBlock,
)
from callgate.core.sessions import Mode
from callgate.core.texts import escape, is_seen
from callgate.features.chat.live_sessions import MODES
from callgate.protocol.acp.updates import (
    Audio,
    Block,
    Choice,
    ConfigOption,
    Contents,
    Diff,
    Image,
    Location,
    Modes,
    Resource,
    ResourceLink,
    SelectOption,
    Shown,
    Text,
    ToolContent,
    ToolKind,
)
from callgate.protocol.acp.updates import Mode as ModeChoice
from callgate.protocol.jsonrpc import INVALID_PARAMS, RpcError
from callgate.protocol.provider_shapes import as_text
from callgate.redaction.data import in_words
from callgate.runtime import Registered
from callgate.workspace.excerpts import image_type

LONGEST_TEXT = 512 * 1024
"""Maximum number of characters of one text for an editor; the model and the store have
all of it.
"""
_LONGEST_TITLE = 200
_MOST_LOCATIONS = 50


def text(value: str) -> Text:
    """Return a text block. Unpaired surrogates, which JSON cannot carry, are replaced."""
    if len(value) > LONGEST_TEXT:
        value = f"{value[:LONGEST_TEXT]}\n[{len(value) - LONGEST_TEXT:,} more characters]"
    return Text(text=sendable(value))


def sendable(value: str) -> str:
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


def iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")


def as_block(block: ContentBlock) -> Block:
    if isinstance(block, ImageBlock):
        if block.source.kind == "base64":
            return Image(data=block.source.data, mime_type=block.media_type)
        return text(f"[image: {block.source.data}]")
    return text(as_text(block))


def result_content(result: ToolResultBlock) -> list[ToolContent]:
    """Return the content of a finished call's card. Diffs replace the first text block, unless the
    call failed.
    """
    changes: list[ToolContent] = [*map(change, result.diffs)]
    blocks = result.content[1:] if changes and not result.is_error else result.content
    return [*changes, *(Shown(content=as_block(block)) for block in blocks)]


def change(diff: FileDiff) -> Diff:
    old = None if diff.old is None else sendable(diff.old)
    return Diff(path=sendable(diff.path), old_text=old, new_text=sendable(diff.new))


def kind_of(tool: Registered | None) -> ToolKind:
    return "other" if tool is None else tool.definition.kind


def title_of(name: str, arguments: Any) -> str:
    """Return the title of a call: the tool and a summary, without secrets and invisible
    characters.
    """
    described = in_words(arguments) if isinstance(arguments, Mapping) else ""
    line = "".join(
        char if is_seen(char) else escape(char) for char in f"{name} {described}".strip()
    )
    if len(line) > _LONGEST_TITLE:  # both ends of a command matter
        half = _LONGEST_TITLE // 2
        line = f"{line[:half]} [... {len(line) - 2 * half:,} more characters ...] {line[-half:]}"
    return line


def session_title(title: str | None) -> str | None:
    """Return a session's title without control and invisible characters; None if it is empty."""
    return "".join(filter(is_seen, title or "")).strip() or None


def locations_of(tool: Registered | None, arguments: Any, workspace: str) -> list[Location]:
    """Return the absolute paths of the files in the arguments."""
    if tool is None or not isinstance(arguments, Mapping):
        return []
    line = arguments.get("offset")
    named = [
        path
        for parameter in tool.path_params
        for path in _texts(arguments.get(parameter))
        if path and "\0" not in path
    ]
    first = line if type(line) is int and line > 0 and tool.definition.kind == "read" else None
    return [
        Location(path=sendable(os.path.normpath(os.path.join(workspace, path))), line=first)
        for path in named[:_MOST_LOCATIONS]
    ]


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence):
        return [each for each in value if isinstance(each, str)]
    return []


MOST_IMAGE = 5 * 1024 * 1024
"""Maximum number of bytes of an image, as for the images of tools."""
_ENDS = re.compile(r"<\s*/\s*resource", re.IGNORECASE)
"""Text that a model may interpret as the end of a tag."""


class UserPrompt(msgspec.Struct, frozen=True):
    text: str
    """All text blocks, joined. A command comes first, even if the editor put blocks before it."""
    images: list[ImageBlock]
    typed: str
    """The user's own text; if there is none, the names of the attached resources."""

    def message(self, text: str) -> Message:
        """Return the message, with another text in place of the typed one."""
        return Message(role="user", content=[TextBlock(text), *self.images])


def read_prompt(blocks: Sequence[Block]) -> UserPrompt:
    """Convert the blocks of a prompt. Raises `RpcError` -32602 if a block is not supported."""
    texts: list[str] = []
    typed: list[str] = []
    names: list[str] = []
    images: list[ImageBlock] = []
    for block in blocks:
        match block:
            case Text(text=text):
                is_command = text.startswith("/") and not typed
                texts.insert(0 if is_command else len(texts), text)
                typed.append(text)
            case ResourceLink(name=name):
                texts.append(_link(block))
                names.append(name)
            case Resource(resource=contents):
                if contents.blob is not None and _is_image(contents.blob):
                    images.append(_image(contents.blob))
                else:
                    texts.append(_resource(contents))
                    names.append(contents.uri)
            case Image(data=data):
                images.append(_image(data))
            case Audio():
                raise refused("audio is not supported")
    text = "\n".join(texts)
    if not text.strip() and not images:
        raise refused("the prompt is empty")
    written = "\n".join(typed)
    return UserPrompt(sendable(text), images, written if written.strip() else ", ".join(names))


def _link(link: ResourceLink) -> str:
    mime = "" if link.mime_type is None else f" mime={_quoted(link.mime_type)}"
    description = _escaped(link.description or "")
    name, uri = _quoted(link.name), _quoted(link.uri)
    return f"<resource_link name={name} uri={uri}{mime}>{description}</resource_link>"


def _resource(contents: Contents) -> str:
    mime = "" if contents.mime_type is None else f" mime={_quoted(contents.mime_type)}"
    if contents.text is not None:
        # The text stays unchanged, except for end tags.
        text = _ENDS.sub(lambda tag: f"&lt;{tag[0][1:]}", contents.text)
    else:
        text = f"[{len(_bytes(contents.blob or '')):,} bytes of binary data, not shown]"
    return f"<resource uri={_quoted(contents.uri)}{mime}>\n{text}\n</resource>"


def _is_image(data: str) -> bool:
    return image_type(_bytes(data)) is not None


def _image(data: str) -> ImageBlock:
    """Return an image with the type of its data, not the declared type. A model rejects a wrong
    type, and then every later prompt of the conversation.
    """
    content = _bytes(data)
    kind = image_type(content)
    if kind is None:
        raise refused("an image must be a PNG, JPEG, GIF or WebP")
    if len(content) > MOST_IMAGE:
        raise refused(f"an image must have at most {MOST_IMAGE:,} bytes")
    return ImageBlock(source=ImageSource(data=data), media_type=kind)


def _bytes(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise refused("the data is not base64") from None


def refused(why: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {why}")


def _escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(value: str) -> str:
    """Return a quoted attribute. Line ends are escaped, because they could fake a line of the
    prompt.
    """
    flat = _escaped(value).replace('"', "&quot;").replace("\n", "&#10;").replace("\r", "&#13;")
    return f'"{flat}"'


MODE, MODEL = "mode", "model"
"""Ids of the options."""

_MODES = {
    Mode.NONE: ("None", "No tools available."),
    Mode.READ: ("Read", "File reads and searches, and commands in a sandbox that cannot write."),
    Mode.ASK: ("Ask", "Every write or shell command requires approval."),
    Mode.GUARDED: (
        "Guarded",
        "Allows work in the workspace and destinations that you named; the rest needs approval.",
    ),
    Mode.WRITE: (
        "Write",
        "All tools allowed without per-call approval, except where a rule requires it.",
    ),
}


def nearest(enabled: Sequence[Mode], wanted: Mode) -> Mode:
    """Return the mode if it is enabled, else the widest enabled mode below it, else the narrowest
    enabled mode. `enabled` is sorted, the narrowest first.
    """
    below = [mode for mode in enabled if MODES.index(mode) <= MODES.index(wanted)]
    return below[-1] if below else enabled[0]


def modes(enabled: Sequence[Mode], current: Mode) -> Modes:
    return Modes(
        current_mode_id=current,
        available_modes=[
            ModeChoice(id=mode, name=_MODES[mode][0], description=_MODES[mode][1])
            for mode in enabled
        ],
    )


def config_options(
    enabled: Sequence[Mode], mode: Mode, models: Sequence[str], model: str | None
) -> list[ConfigOption]:
    """Return all options, because the protocol requires the complete list each time."""
    choices = [
        Choice(value=each, name=_MODES[each][0], description=_MODES[each][1]) for each in enabled
    ]
    options: list[ConfigOption] = [
        SelectOption(
            id=MODE,
            name="Mode",
            description="The calls that run without approval.",
            category="mode",
            current_value=mode,
            options=choices,
        )
    ]
    if model is not None:
        names = [model, *(each for each in models if each != model)]
        options.append(
            SelectOption(
                id=MODEL,
                name="Model",
                category="model",
                current_value=model,
                options=[Choice(value=each, name=each) for each in sorted(names)],
            )
        )
    return options
