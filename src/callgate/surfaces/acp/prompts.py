"""What a person sends from an editor, as a message for a model.

Text stays as it is. A link becomes a tag with its name and address, and nothing is fetched; a
resource becomes a tag around its text. What comes from the editor cannot end such a tag or add
an attribute to it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from callgate.core.content import ImageBlock, ImageSource, TextBlock
from callgate.core.messages import Message
from callgate.protocol.acp.values import (
    Audio,
    Block,
    Contents,
    Image,
    Resource,
    ResourceLink,
    Text,
)
from callgate.protocol.jsonrpc import INVALID_PARAMS, RpcError
from callgate.surfaces.acp.contents import sendable
from callgate.workspace.excerpts import image_type

MOST_IMAGE = 5 * 1024 * 1024
"""Bytes, as for the images that tools show."""
_ENDS = re.compile(r"<\s*/\s*resource", re.IGNORECASE)
"""What a model may take for the end of a tag."""


class UserPrompt(msgspec.Struct, frozen=True):
    text: str
    """All that is text, one block below the other. A command comes first, whatever the editor
    has put before it."""
    images: list[ImageBlock]
    typed: str
    """What the person wrote; without a word of theirs, the names of what they sent."""

    def message(self, text: str) -> Message:
        """With another text in place of the one that was typed."""
        return Message(role="user", content=[TextBlock(text), *self.images])


def read_prompt(blocks: Sequence[Block]) -> UserPrompt:
    """Raises `RpcError` -32602 for what cannot be taken."""
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
                raise refused("audio is not taken")
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
        # Left as it is, so that code stays code; only what would end the tag is not.
        text = _ENDS.sub(lambda tag: f"&lt;{tag[0][1:]}", contents.text)
    else:
        text = f"[{len(_bytes(contents.blob or '')):,} bytes that are no text, not shown]"
    return f"<resource uri={_quoted(contents.uri)}{mime}>\n{text}\n</resource>"


def _is_image(data: str) -> bool:
    return image_type(_bytes(data)) is not None


def _image(data: str) -> ImageBlock:
    """Of the kind that it is, whatever it was said to be: a model refuses what does not fit, with
    every later prompt of the conversation too."""
    content = _bytes(data)
    kind = image_type(content)
    if kind is None:
        raise refused("an image is a PNG, JPEG, GIF or WebP")
    if len(content) > MOST_IMAGE:
        raise refused(f"an image has at most {MOST_IMAGE:,} bytes")
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
    """An attribute; a line end in it would begin what looks like another line of the prompt."""
    flat = _escaped(value).replace('"', "&quot;").replace("\n", "&#10;").replace("\r", "&#13;")
    return f'"{flat}"'
