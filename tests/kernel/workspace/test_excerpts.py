"""What of a file is shown."""

from __future__ import annotations

import pytest

from callgate.core.errors import ToolExecutionError
from callgate.workspace.excerpts import MAX_TEXT, Excerpt, excerpt, image_type, lines_of, matching


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\r\nb\rc\u2028d\n\n", "\n"])
def test_a_short_file_is_shown_exactly(text: str) -> None:
    assert excerpt(text) == Excerpt(text, len(lines_of(text)), truncated=False)
    assert "".join(lines_of(text)) == text


def test_a_part_is_shown_exactly() -> None:
    text = "1\n2\n3\n4"
    assert excerpt(text, 2, 2) == Excerpt("2\n3\n", 4, truncated=False)
    assert excerpt(text, 4) == Excerpt("4", 4, truncated=False)
    assert excerpt(text, 3, 100) == Excerpt("3\n4", 4, truncated=False)


def test_a_part_beyond_the_end_is_refused() -> None:
    for text in ("1\n2\n", ""):
        with pytest.raises(ToolExecutionError) as refused:
            excerpt(text, 3)
        assert refused.value.reason == "out_of_range"


@pytest.mark.spec("S4-77")
def test_a_long_file_says_how_to_go_on() -> None:
    text = "".join(f"{n}\n" for n in range(1, 5_001))
    shown = excerpt(text)
    *lines, mark = shown.text.split("\n")
    assert (lines[0], lines[-1], shown.total, shown.truncated) == ("1", "2000", 5_000, True)
    assert mark == "[truncated: lines 1-2,000 of 5,000 shown; continue with offset=2001]"
    assert excerpt(text, 2001).text.startswith("2001\n")
    assert not excerpt(text, 4_000).truncated
    assert not excerpt(text, 1, 5_000).truncated


@pytest.mark.spec("S4-77")
def test_no_more_bytes_than_allowed_are_shown() -> None:
    line = "é" * 50_000 + "\n"
    shown = excerpt(line * 10, 1, 10)
    assert shown.text == line * 2 + "[truncated: lines 1-2 of 10 shown; continue with offset=3]"
    huge = excerpt("é" * MAX_TEXT)
    assert huge.text.startswith("é" * (MAX_TEXT // 2) + "\n[truncated: lines 1-1 of 1 shown, ")
    assert (len(huge.text.encode()) < MAX_TEXT + 200, huge.truncated) == (True, True)


def test_matching_lines_are_shown_with_their_numbers() -> None:
    text = "a\nb\r\na"
    assert matching(text, [0, 2]) == Excerpt("1:a\n3:a\n", 3, truncated=False)
    assert matching(text, [0, 2], offset=2) == Excerpt("3:a\n", 3, truncated=False)
    assert matching(text, [0, 2], limit=1) == Excerpt("1:a\n", 3, truncated=False)
    assert matching(text, []) == Excerpt("No line matches", 3, truncated=False)


@pytest.mark.spec("S4-77")
def test_many_matching_lines_say_how_to_go_on() -> None:
    shown = matching("x\n" * 3_000, range(3_000))
    assert shown.truncated
    assert shown.text.endswith("2000:x\n[truncated: 2,000 of 3,000 matching lines shown; continue with offset=2001]")


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0...", "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_an_image_is_told_by_its_first_bytes(content: bytes, media_type: str | None) -> None:
    assert image_type(content) == media_type
