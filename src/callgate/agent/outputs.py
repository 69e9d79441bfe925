"""What a model shows without a tool: chat, speech, a page. And the end of its turn.

No tool runs, so no policy is asked: these are allowed in every mode. What they say is shown
and becomes an event; nothing is opened or fetched by us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from callgate.agent.shows import Opened, Restarted, Said, Screen, Show, Spoken
from callgate.agent.wanted import Wanted
from callgate.core.content import JsonBlock, TextBlock, ToolResultBlock
from callgate.core.effects import SideEffects
from callgate.core.events import CHAT, CHAT_DELTA, OPEN_URL, OUTPUT_DELTA, SPEECH
from callgate.core.tools import ToolDefinition
from callgate.protocol.toolcalls.values import VOICES

if TYPE_CHECKING:
    from callgate.dispatch.tool_output import OutputRedactor

MOST_PASSED_ON = 50
"""What is to be heard and pages to be opened, in one turn: a client may do it at once."""
_LONGEST_URL = 2_048

Emit = Callable[[str, Mapping[str, Any]], object]
"""Makes an event."""


def _redactor() -> OutputRedactor:
    from callgate.dispatch.tool_output import (  # lazy: with the first turn  # noqa: PLC0415
        OutputRedactor,
    )

    return OutputRedactor()


class Outputs:
    """Of one turn."""

    def __init__(self, screen: Screen, tell: Emit) -> None:
        self._screen = screen
        self._tell = tell
        self._output = _redactor()
        self._room = MOST_PASSED_ON
        self._passed: Counter[Show] = Counter()
        """What is heard or opened because of this reply."""
        self._again: Counter[Show] = Counter()
        """The same of attempts at it that are void: it does not come twice."""
        self.text = ""
        """What was said last."""

    def show(self, wanted: Wanted, *, shown: int = 0) -> ToolResultBlock:
        """Show it, but for the characters that were shown as they came."""
        given = wanted.use.input
        try:
            diagnostics = _SHOWN[wanted.use.name](self, given, shown)
        except ValueError as error:
            return ToolResultBlock(wanted.use.id, [TextBlock(str(error))], is_error=True)
        result = {"shown": True} | ({"diagnostics": diagnostics} if diagnostics else {})
        return ToolResultBlock(wanted.use.id, [JsonBlock(result)])

    def piece(self, text: str) -> None:
        """Show a piece of what the model is saying."""
        self._screen(Said(text))
        for each in self._output.of(OUTPUT_DELTA, {"stream": "text", "text": text}):
            self._tell(CHAT_DELTA, {"text": each["text"]})

    def chat(self, text: str, *, shown: int = 0) -> None:
        """Show what the model said to the user, but for what was shown as it came."""
        self._screen(Said(text[shown:], ends=True))
        self._output = _redactor()
        self.text = text
        self._tell(CHAT, {"content": text})

    def void(self, why: str) -> None:
        """What was shown of the reply so far does not count."""
        self._output = _redactor()
        self._again |= self._passed
        self._passed.clear()
        self._screen(Restarted(why))

    def settle(self) -> None:
        """The reply is over: whatever the next one shows is new."""
        self._passed.clear()
        self._again.clear()

    def _send_chat(self, given: Mapping[str, Any], shown: int) -> list[str]:
        self.chat(_text(given, "content"), shown=shown)
        return []

    def _say(self, given: Mapping[str, Any], shown: int) -> list[str]:
        diagnostics = []
        voice = given.get("voiceId", given.get("voice"))
        if voice is not None and not (isinstance(voice, str) and voice in VOICES):
            diagnostics.append("unknown voice: the default one speaks")
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
    """Raises `ValueError` for anything else than a page on the web."""
    if len(url) > _LONGEST_URL or any(not "!" <= char <= "~" for char in url) or "\\" in url:
        raise ValueError("The url is not one: use percent-encoding, at most 2,048 characters.")
    address = urlsplit(url)  # a ValueError of its own for a broken host or port
    if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:
        raise ValueError("Only http and https URLs with a host can be opened.")
    if address.username is not None or address.password is not None:
        raise ValueError("A URL with a user name in it is not opened.")


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a text that is not empty.")
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
    "Speak to the user. Goes on at once, while it is heard.",
    utterance="What to say.",
    voiceId=f"One of {', '.join(sorted(VOICES))}.",
    style="How to say it, in a few words.",
)
_OPEN_URL = _definition(
    "open_url", "Show the user a page on the web.", url="Begins with http:// or https://."
)


def native_outputs(*, speech: bool) -> tuple[ToolDefinition, ...]:
    """What a model with tool calling of its own is offered; its text is its chat, and it ends
    its turn by calling nothing. `speech`: the user can hear it."""
    return (_SAY, _OPEN_URL) if speech else (_OPEN_URL,)
