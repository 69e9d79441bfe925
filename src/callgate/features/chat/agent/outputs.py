"""Requests of a model: calls, and outputs that need no tool.

Outputs are chat, speech, web pages, and the end of the turn. No tool runs, so no policy applies:
outputs are allowed in every mode. They are displayed and recorded as events. This process opens
and fetches nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from callgate.core.content import JsonBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.events import CHAT, CHAT_DELTA, OPEN_URL, OUTPUT_DELTA, SPEECH
from callgate.core.ids import call_id
from callgate.core.models import Reply
from callgate.core.tools import ToolDefinition
from callgate.protocol.toolcalls.values import OUTPUTS, VOICES, FoundCall
from callgate.sessions.shows import Opened, Restarted, Said, Screen, Show, Spoken

if TYPE_CHECKING:
    from callgate.dispatch.tool_output import OutputRedactor


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    use: ToolUseBlock
    """The call, with an id of callgate: ids of a model may repeat, or equal the id of another
    call.
    """
    priority: int | float = 0
    repaired: bool = False
    """Whether the call was parsed from malformed text."""
    problem: str | None = None
    """Why the call cannot run. The model receives it as an error."""

    @property
    def is_output(self) -> bool:
        """Whether it is an output or ends the turn, and needs no tool."""
        return self.use.name in OUTPUTS and self.problem is None


def from_reply(reply: Reply) -> list[Wanted]:
    """Return the native calls of a reply, in order."""
    blocks = (block for block in reply.message.content if isinstance(block, ToolUseBlock))
    declined = "the model declined" if reply.stop == "refusal" else None
    return [_native(block, declined or reply.unreadable.get(block.id)) for block in blocks]


def _native(block: ToolUseBlock, problem: str | None) -> Wanted:
    given = block.input
    if not isinstance(given, dict):
        given, problem = {}, problem or "the arguments are not a JSON object"
    return Wanted(use=ToolUseBlock(call_id(), block.name, given, block.id), problem=problem)


def from_found(found: FoundCall) -> Wanted:
    """Return a call that the model wrote as text."""
    return Wanted(
        use=ToolUseBlock(call_id(), found.type, found.parameters, found.id),
        priority=found.priority,
        repaired=found.repaired,
    )


def in_order(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Return the calls in execution order: outputs keep their position; all others are sorted by
    priority, stably.
    """
    others = iter(sorted((each for each in wanted if not each.is_output), key=_urgency))
    return [each if each.is_output else next(others) for each in wanted]


def _urgency(wanted: Wanted) -> float:
    return -wanted.priority


def uses(wanted: Iterable[Wanted]) -> list[ToolUseBlock]:
    return [each.use for each in wanted]


MOST_PASSED_ON = 50
"""Maximum number of speech outputs and opened pages in one turn. A client may play or open them
immediately.
"""
_LONGEST_URL = 2_048

Emit = Callable[[str, Mapping[str, Any]], object]
"""Emits an event."""


def _redactor() -> OutputRedactor:
    from callgate.dispatch.tool_output import OutputRedactor  # lazy: with the first turn  # noqa: PLC0415

    return OutputRedactor()


class Outputs:
    """Outputs of one turn."""

    def __init__(self, screen: Screen, tell: Emit) -> None:
        self._screen = screen
        self._tell = tell
        self._output = _redactor()
        self._room = MOST_PASSED_ON
        self._passed: Counter[Show] = Counter()
        """Speech and pages of this reply."""
        self._again: Counter[Show] = Counter()
        """Speech and pages of discarded attempts at this reply; they are not repeated."""
        self.text = ""
        """The last chat text."""

    def show(self, wanted: Wanted, *, shown: int = 0) -> ToolResultBlock:
        """Show an output, without its first `shown` characters, which the user has seen."""
        given = wanted.use.input
        try:
            diagnostics = _SHOWN[wanted.use.name](self, given, shown)
        except ValueError as error:
            return ToolResultBlock(wanted.use.id, [TextBlock(str(error))], is_error=True)
        result = {"shown": True} | ({"diagnostics": diagnostics} if diagnostics else {})
        return ToolResultBlock(wanted.use.id, [JsonBlock(result)])

    def piece(self, text: str) -> None:
        """Show a part of the model's text while it arrives."""
        self._screen(Said(text))
        for each in self._output.of(OUTPUT_DELTA, {"stream": "text", "text": text}):
            self._tell(CHAT_DELTA, {"text": each["text"]})

    def chat(self, text: str, *, shown: int = 0) -> None:
        """Show the model's complete text, without its first `shown` characters, which the user has
        seen.
        """
        self._screen(Said(text[shown:], ends=True))
        self._output = _redactor()
        self.text = text
        self._tell(CHAT, {"content": text})

    def void(self, why: str) -> None:
        """Discard the part of the reply that was shown."""
        self._output = _redactor()
        self._again |= self._passed
        self._passed.clear()
        self._screen(Restarted(why))

    def settle(self) -> None:
        """Mark the reply as complete; outputs of the next reply are new."""
        self._passed.clear()
        self._again.clear()

    def _send_chat(self, given: Mapping[str, Any], shown: int) -> list[str]:
        self.chat(_text(given, "content"), shown=shown)
        return []

    def _say(self, given: Mapping[str, Any], shown: int) -> list[str]:
        diagnostics = []
        voice = given.get("voiceId", given.get("voice"))
        if voice is not None and not (isinstance(voice, str) and voice in VOICES):
            diagnostics.append("unknown voice: the default voice is used")
            voice = None
        style, locale = given.get("style"), given.get("locale")
        spoken = Spoken(
            utterance=_text(given, "utterance"),
            voice=voice,
            style=style if isinstance(style, str) else None,
            locale=locale if isinstance(locale, str) else None,
        )
        self._pass_on(
            spoken,
            SPEECH,
            {
                "utterance": spoken.utterance,
                "voice": voice,
                "style": spoken.style,
                "locale": spoken.locale,
            },
        )
        return diagnostics

    def _open_url(self, given: Mapping[str, Any], shown: int) -> list[str]:
        url = _text(given, "url")
        ensure_web_page(url)
        self._pass_on(Opened(url), OPEN_URL, {"url": url})
        return []

    def _end_turn(self, given: Mapping[str, Any], shown: int) -> list[str]:
        return []

    def _pass_on(self, show: Show, event_type: str, payload: Mapping[str, Any]) -> None:
        self._passed[show] += 1
        if self._passed[show] <= self._again[show]:
            return
        if self._room <= 0:
            raise ValueError(f"Not shown: a turn may speak or open pages {MOST_PASSED_ON} times.")
        self._room -= 1
        self._screen(show)
        self._tell(event_type, {key: value for key, value in payload.items() if value is not None})


_SHOWN = {
    "send_chat": Outputs._send_chat,
    "say": Outputs._say,
    "open_url": Outputs._open_url,
    "end_turn": Outputs._end_turn,
}


def ensure_web_page(url: str) -> None:
    """Raise `ValueError` unless `url` is the address of a web page."""
    if len(url) > _LONGEST_URL or any(not "!" <= char <= "~" for char in url) or "\\" in url:
        raise ValueError("The URL is invalid: use percent-encoding and at most 2,048 characters.")
    address = urlsplit(url)  # raises ValueError for an invalid host or port
    if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:
        raise ValueError("Only http and https URLs with a host can be opened.")
    if address.username is not None or address.password is not None:
        raise ValueError("URLs with a user name are not opened.")


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a non-empty string.")
    return value


def _definition(name: str, description: str, **properties: str) -> ToolDefinition:
    first = next(iter(properties))
    return ToolDefinition(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": {
                key: {"type": "string", "description": description}
                for key, description in properties.items()
            },
            "required": [first],
        },
        side_effects=SideEffects.NONE,
        requires_workspace=False,
    )


_SAY = _definition(
    "say",
    "Speak to the user. Returns immediately, while the speech plays.",
    utterance="What to say.",
    voiceId=f"One of {', '.join(sorted(VOICES))}.",
    style="Manner of speaking, in a few words.",
)
_OPEN_URL = _definition(
    "open_url", "Show the user a page on the web.", url="Starts with http:// or https://."
)


def native_outputs(*, speech: bool) -> tuple[ToolDefinition, ...]:
    """Return the output tools for a model with native tool calls. Its text is its chat, and a
    reply without calls ends its turn. `speech`: the user can hear speech.
    """
    return (_SAY, _OPEN_URL) if speech else (_OPEN_URL,)
