"""A session as a page: everything is told, and no text in it becomes more than text."""

from __future__ import annotations

import functools
import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from callgate.core.budgets import PruneEvents
from callgate.core.events import (
    CALLED,
    COMPLETED,
    CONFIRMATION_REQUESTED,
    CONFIRMATION_RESOLVED,
    EVENTS_LOST,
    FAILED,
    INPUT_INVALID,
    OUTPUT_DELTA,
    TURN_CANCELLED,
    TURN_COMPLETED,
    TURN_STARTED,
    Event,
)
from callgate.core.ids import ulid
from callgate.core.ops import Append, AppendMessages, NewSession
from callgate.core.stored import StoredMessage, StoredSession
from callgate.core.texts import code, fenced, folded
from callgate.sessions import transcripts
from callgate.sessions.ordering import in_order, read_in_order, turns
from callgate.sessions.transcripts import transcript, write_transcript
from tests.kernel.cli.counting import CountingStore
from tests.kernel.contract.stores import event as note
from tests.memory_store import MemoryStore

SESSION = StoredSession(id="sess_1", workspace="/w", title="a title", created_at=0.0, updated_at=60.0)


def message(role: str, *blocks: Any, turn: str | None = "t1") -> StoredMessage:
    content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
    return StoredMessage(id=ulid(), turn_id=turn, body={"role": role, "content": content})


def event(type: str, use: str | None = None, turn: str | None = "t1", **payload: Any) -> Event:
    if use is not None:
        payload |= {"call_id": f"tu_{use}", "tool_use_id": use}
    return replace(note("sess_1", type, turn=turn, **payload), timestamp=1_000.0)


def use(id: str, name: str = "shell", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, *content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [*content], **more}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


CONVERSATION = (
    [
        message("user", "please test"),
        message("assistant", "I will.", use("u1", command="make test")),
        message("user", result("u1", text("2 passed"))),
        message("assistant", "All is well."),
        message("user", "thanks", turn="t2"),
        message("assistant", "Any time.", turn="t2"),
    ],
    [
        event(TURN_STARTED),
        event(CONFIRMATION_REQUESTED, "u1", tool_name="shell", why="It executes."),
        event(CONFIRMATION_RESOLVED, "u1", decision="allow", scope="once", by="terminal"),
        event(CALLED, "u1", tool_name="shell"),
        event(COMPLETED, "u1", success=True, latency_ms=1234.5),
        event(TURN_COMPLETED),
        event(TURN_STARTED, turn="t2"),
        event(TURN_COMPLETED, turn="t2"),
    ],
)


def test_messages_stand_before_what_they_caused() -> None:
    messages, events = CONVERSATION
    row = [("m" if isinstance(item, StoredMessage) else "e", number) for number, item in in_order(messages, events)]
    assert row == [
        ("e", 1),
        ("m", 1),
        ("m", 2),
        ("e", 2),
        ("e", 3),
        ("e", 4),
        ("e", 5),
        ("m", 3),
        ("m", 4),
        ("e", 6),
        ("e", 7),
        ("m", 5),
        ("m", 6),
        ("e", 8),
    ]


def test_a_row_holds_everything_once_whatever_is_missing() -> None:
    messages, events = CONVERSATION
    for some, others in ((messages, []), ([], events), (messages[3:], events[:2]), ([], [])):
        row = [item for _, item in in_order(some, others)]
        assert [item for item in row if isinstance(item, StoredMessage)] == some
        assert [item for item in row if isinstance(item, Event)] == others


async def test_a_session_is_read_from_a_store_in_the_same_order() -> None:
    messages, events = CONVERSATION
    for some, others in (CONVERSATION, (messages, []), ([], events), (messages[3:], events[:2]), ([], [])):
        store = MemoryStore()
        session = others[0].session_id if others else "sess_1"
        await store.commit(NewSession(session=session, workspace="/w", at=1.0))
        if some:
            await store.commit(AppendMessages(session=session, messages=tuple(some), at=1.0))
        if others:
            await store.commit(Append(session=session, events=tuple(others)))
        counting = CountingStore(_SmallPages(store))
        assert [each async for each in read_in_order(counting, session)] == in_order(some, others)
        assert counting.largest <= 2


async def _stored(messages: list[StoredMessage], events: list[Event]) -> MemoryStore:
    store = MemoryStore()
    await store.commit(NewSession(session="sess_1", workspace="/w", at=1.0))
    await store.commit(
        AppendMessages(session="sess_1", messages=tuple(messages), at=1.0),
        Append(session="sess_1", events=tuple(events)),
    )
    return store


def _around(inner: tuple[list[StoredMessage], list[Event]]) -> tuple[list[StoredMessage], list[Event]]:
    """A call outside of turns that begins before everything else and ends after it."""
    messages, events = inner
    outer = [event(CALLED, "long", turn=None, tool_name="watch"), event(COMPLETED, "long", turn=None)]
    return messages, [outer[0], *events, event(OUTPUT_DELTA, "long", turn=None, text="out"), outer[1]]


def _interleaved() -> tuple[list[StoredMessage], list[Event]]:
    """Calls inside and outside of a turn that overlap, and one that never ends."""
    events = [event(TURN_STARTED), event(CALLED, "never", turn=None)]
    for number in range(20):
        for type in (CALLED, OUTPUT_DELTA):
            events.append(event(type, f"in{number}", text=f"text {number}"))
            events.append(event(type, f"out{number}", turn=None, text=f"text {number}"))
    for number in reversed(range(20)):
        events.append(event(COMPLETED, f"out{number}", turn=None))
        events.append(event(FAILED, f"in{number}", error_class="timeout", message="late"))
    return [message("user", "go")], [*events, event(TURN_COMPLETED)]


@pytest.mark.parametrize("most_waiting", [0, 100, 1_000_000])
@pytest.mark.parametrize("of", ["conversation", "a long call", "many at once"])
async def test_a_page_is_written_part_by_part_and_reads_the_same(
    of: str, most_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, events = {
        "conversation": CONVERSATION,
        "a long call": _around(CONVERSATION),
        "many at once": _interleaved(),
    }[of]
    whole = transcript(SESSION, messages, events)
    monkeypatch.setattr(transcripts, "_MOST_WAITING", most_waiting)
    store, parts = CountingStore(_SmallPages(await _stored(messages, events))), list[str]()
    await write_transcript(store, SESSION, parts.append)
    assert "".join(parts) == whole
    assert all(part.endswith("\n") for part in parts)
    assert len(parts) > 3
    assert store.largest <= 2


async def test_a_session_that_changes_while_it_is_written_is_written_to_its_end() -> None:
    messages, events = CONVERSATION
    store, parts = await _stored(messages, events), list[str]()
    changing = _Changing(store)
    await write_transcript(changing, SESSION, parts.append)
    assert "please test" in "".join(parts)


class _Changing:
    """A store in which, between the two passes, old events are pruned and new ones come."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._begun = 0

    async def read_messages(self, session: str, after: int, limit: int = 1_000) -> Any:
        return await self._store.read_messages(session, after, limit)

    async def read_events(self, session: str, after: int, limit: int = 1_000) -> Any:
        self._begun += after == 0
        if self._begun == 2 and after == 0:
            await self._store.commit(PruneEvents(before=2_000.0, most=5))
            later = [event(CALLED, "new", turn="t9"), event(COMPLETED, "u1"), event(COMPLETED, "new", turn="t9")]
            await self._store.commit(Append(session=session, events=tuple(later)))
        return await self._store.read_events(session, after, limit)


class _ManyCalls:
    """Events of many calls, none of which is kept in memory."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    async def read_messages(self, session: str, after: int) -> list[StoredMessage]:
        return []

    async def read_events(self, session: str, after: int) -> list[Event]:
        return [
            replace(event((CALLED, COMPLETED)[number % 2], f"{number // 2:026}", tool_name="x"), id="1")
            for number in range(after, min(after + 500, 2 * self._calls))
        ]


async def test_of_each_call_little_is_kept_while_a_page_is_written() -> None:
    calls, size = 20_000, 0

    def count(text: str) -> None:
        nonlocal size
        size += len(text)

    tracemalloc.start()
    try:
        await write_transcript(_ManyCalls(calls), SESSION, count)  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > calls * 60
    assert peak < calls * 20 + 3_000_000


class _SmallPages:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def read_events(self, session: str, after: int = 0) -> Any:
        return await self._store.read_events(session, after, 2)

    async def read_messages(self, session: str, after: int = 0) -> Any:
        return await self._store.read_messages(session, after, 2)


def test_turns_are_told_with_what_was_said_first() -> None:
    assert turns(*CONVERSATION) == {"t1": "please test", "t2": "thanks"}
    assert turns([], CONVERSATION[1]) == {"t1": "", "t2": ""}


def test_a_conversation_reads_from_top_to_bottom() -> None:
    page = transcript(SESSION, *CONVERSATION)
    assert page.startswith(
        "# `a title`\n\n- session: `sess_1`\n- workspace: `/w`\n- mode: ask\n"
        "- made: 1970-01-01 00:00:00 UTC\n- last used: 1970-01-01 00:01:00 UTC\n\n"
        "## Turn 1, 1970-01-01 00:16:40 UTC\n\n"
    )
    assert page[page.index("**User**") : page.index("\n\n## Turn 2")] == "\n\n".join(
        [
            "**User**:\n\n```text\nplease test\n```",
            "**Assistant**:\n\n```text\nI will.\n```",
            '**Assistant** calls `shell`:\n\n```json\n{\n  "command": "make test"\n}\n```',
            "- asked: `It executes.`\n- answered: `allow` by `terminal`, scope `once`\n- completed after 1,234 ms",
            "Result of `shell`:\n\nText:\n\n```text\n2 passed\n```",
            "**Assistant**:\n\n```text\nAll is well.\n```",
        ]
    )


def test_direct_calls_are_told_from_their_events() -> None:
    events = [
        event(
            CONFIRMATION_REQUESTED, "a", None, tool_name="write_file", input_summary='{"path": "x"}', why="It writes."
        ),
        event(CONFIRMATION_RESOLVED, "a", None, decision="deny", scope="session", by="--yes"),
        event(FAILED, "a", None, tool_name="write_file", error_class="user_denied", message="No."),
        event(CALLED, "b", None, tool_name="shell"),
        event(OUTPUT_DELTA, "b", None, text="one\n"),
        event(OUTPUT_DELTA, "b", None, text="two\n"),
        event(COMPLETED, "b", None, success=False, files_modified=["x"], command_executed="make"),
        event(INPUT_INVALID, "c", None, tool_name="shell", validation_errors=["a: wrong", "b: too"]),
        event(CALLED, "d", None, tool_name="slow"),
    ]
    page = transcript(SESSION, [], events)
    assert page[page.index("**Call**") :] == "\n\n".join(
        [
            '**Call** of `write_file` (`tu_a`):\n\n```text\n{"path": "x"}\n```',
            "- asked: `It writes.`\n- answered: `deny` by `--yes`, scope `session`\n- failed: `user_denied` `No.`",
            "**Call** of `shell` (`tu_b`):\n\n- reported failure\n- changed: `x`\n- ran: `make`",
            "Output:\n\n```text\none\ntwo\n```",
            "**Call** of `shell` (`tu_c`):\n\n- refused, wrong arguments: `a: wrong; b: too`",
            "**Call** of `slow` (`tu_d`):\n\n- has not ended\n",
        ]
    )


def test_what_is_long_is_folded() -> None:
    long = "\n".join(map(str, range(100)))
    page = transcript(SESSION, [message("user", result("u", text(long)))], [])
    summary = "<details><summary>Text: 100 lines, 289 characters</summary>\n\n```text\n0\n"
    assert summary in page and page.endswith("\n99\n```\n\n</details>\n")


def test_blocks_that_are_no_text_are_named() -> None:
    image = {"type": "image", "media_type": "image/png", "source": {"kind": "base64", "data": "iVBORw=="}}
    linked = {"type": "image", "media_type": "image/png", "source": {"kind": "url", "data": "https://x/y.png"}}
    page = transcript(
        SESSION,
        [
            message("user", image, linked, {"type": "json", "value": [1]}, {"type": "new", "x": 1}, 5),
            message("assistant", {"type": "thinking", "thinking": "hm"}),
            StoredMessage(id="m", body={"role": "user", "content": "plain"}),
            StoredMessage(id="n", body={}),
        ],
        [event(EVENTS_LOST, missed=7), event(TURN_CANCELLED)],
    )
    for part in (
        "**User**: `[image/png, 4 bytes]`",
        "**User**: `[image/png, https://x/y.png]`",
        "**User**: Value:\n\n```json\n[\n  1\n]\n```",
        '**User**: Block:\n\n```json\n{\n  "type": "new"',
        "**Assistant** thinks:\n\n```text\nhm\n```",
        "*Events that are lost: `7`.*",
        "*The turn was cancelled.*",
        "## Outside of turns\n\n**User**:\n\n```text\nplain\n```",
    ):
        assert part in page


def test_what_cannot_be_seen_is_made_visible() -> None:
    hidden = "a\x1b[2J\u202eb\r\x00\u200b\u2028\ufe0f\U000e0041\ud800\tc\n"
    assert fenced(hidden) == "```text\na\\x1b[2J\\u202eb\\r\\x00\\u200b\\u2028\\ufe0f\\U000e0041\\ud800\tc\n```"
    assert code(hidden) == "`a\\x1b[2J\\u202eb\\r\\x00\\u200b\\u2028\\ufe0f\\U000e0041\\ud800\\tc\\n`"


def everywhere(hostile: str) -> tuple[StoredSession, list[StoredMessage], list[Event]]:
    """A session in which one text stands wherever a text can come from outside."""
    session = StoredSession(
        id=hostile or "x",
        workspace=hostile,
        title=hostile or "x",
        parent=hostile,
        forked_from=hostile,
        created_at=1e30,
        updated_at=0.0,
    )
    messages = [
        message("user", hostile, result("u", text(hostile), hostile, {"type": hostile}), {"type": hostile}),
        message(hostile, hostile, {"type": "thinking", "thinking": hostile}),
        message("assistant", use("u1", hostile, **{hostile: hostile})),
        message("user", result("u1", text(hostile), is_error=True)),
        message("user", {"type": "image", "media_type": hostile, "source": {"kind": hostile, "data": hostile}}),
    ]
    said: dict[str, Any] = dict.fromkeys(
        (
            "tool_name",
            "why",
            "decision",
            "scope",
            "by",
            "error_class",
            "message",
            "command_executed",
            "input_summary",
            "text",
        ),
        hostile or "x",
    )
    said |= {"files_modified": [hostile], "validation_errors": [hostile], "latency_ms": hostile}
    kinds = (CONFIRMATION_REQUESTED, CONFIRMATION_RESOLVED, CALLED, OUTPUT_DELTA, COMPLETED, FAILED, INPUT_INVALID)
    events = [event(kind, id, turn, **said) for id, turn in (("u1", "t1"), ("u2", None)) for kind in kinds]
    return session, messages, [*events, event(EVENTS_LOST, missed=hostile)]


def skeleton(page: str) -> list[Any]:
    """What a Markdown reader makes of a page, without the texts of code."""
    markdown_it = pytest.importorskip("markdown_it")
    tokens = markdown_it.MarkdownIt("commonmark", {"html": True}).parse(page)
    return [
        (
            token.type,
            token.tag,
            token.content if token.type == "html_block" else None,
            [(each.type, each.content if each.type != "code_inline" else None) for each in token.children or ()],
        )
        for token in tokens
    ]


@functools.cache
def plain() -> list[Any]:
    return skeleton(transcript(*everywhere("plain")))


HOSTILE = (
    "```\n# heading\n```",
    "````text\n<script>alert(1)</script>\n`````",
    "`",
    "``",
    " ` ",
    "`a",
    "a``b`",
    "\n\n# heading\n\n",
    "</details>\n\n<script>",
    "![x](https://x/y.png)",
    "~~~\nx",
    "\r\n# x\r",
    "\x0b# x\x0c# y",
    "\u2028# x\x85# y",
    "    indented",
    "- item\n1. item\n> quote",
    "|a|b|\n|-|-|",
    "\\`",
    "a\\",
    "&lt;b&gt;",
    "<!--",
    "-->",
    "[a]: https://x",
    "***",
    "---",
    "===",
    "\x00",
    "\ud800",
    "   ```",
    "\t```",
    "x\n```\ny",
    "`" * 400,
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_breaks_out_of_its_place(hostile: str) -> None:
    assert skeleton(transcript(*everywhere(hostile))) == plain()


@given(st.text(st.sampled_from("`~#<>\n\r\t \\&![]()-=*_|a1.\x00\x1b\x85\u2028\u202e"), max_size=30))
@example("`\n`")
def test_no_made_up_text_breaks_out_either(hostile: str) -> None:
    assume(hostile.strip(" "))  # an empty span is a word of ours
    assert skeleton(transcript(*everywhere(hostile))) == plain()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_folded_text_breaks_out_no_more_than_a_short_one(hostile: str) -> None:
    texts = [f"{hostile}\n" * 30, "plain\n" * 30]
    shown = [skeleton(folded("Text", each).partition("</summary>")[2]) for each in texts]
    assert shown[0] == shown[1]
