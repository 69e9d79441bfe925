"""PDFs are read in a process of their own: whatever is in them ends in time."""

from __future__ import annotations

import zlib

import pytest

from callgate.core.errors import ToolCancelled, ToolExecutionError
from callgate_catalogue import pdfs

pytest.importorskip("pypdf", reason="needs pypdf: not installed")


def pdf(shown: bytes, pages: int = 1) -> bytes:
    """A PDF each page of which shows the same."""
    stream = zlib.compress(b"BT /F1 12 Tf " + shown + b" ET")
    kids = b" ".join(b"%d 0 R" % (number + 5) for number in range(pages))
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1 3 0 R>>>>>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, pages),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(stream), stream),
        *[page] * pages,
    ]
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    end = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))
    return out + head + table + end


BOMB = pdf(b"(zebra) Tj " * 400_000, pages=400)
"""Small, and work for many minutes."""


def test_pages_come_in_their_order() -> None:
    assert pdfs.read(pdf(b"(zebra) Tj", pages=2)) == "[page 1]\nzebra\n\n[page 2]\nzebra"


def test_pages_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdfs, "MOST_PAGES", 1)
    assert pdfs.read(pdf(b"(zebra) Tj", pages=2)) == "[page 1]\nzebra\n\n[more pages are left out]"


def test_a_pdf_that_would_take_hours_is_given_up() -> None:
    with pytest.raises(ToolExecutionError) as caught:
        pdfs.read(BOMB, seconds=0.5)
    assert caught.value.reason == "not_text"


def test_whoever_has_enough_does_not_wait_for_a_page() -> None:
    answers = iter([False, False])
    with pytest.raises(ToolCancelled):
        pdfs.read(BOMB, lambda: next(answers, True))


def test_a_pdf_without_text_is_told_from_one_that_cannot_be_read() -> None:
    said = []
    for content in (pdf(b""), b"%PDF-1.4 broken"):
        with pytest.raises(ToolExecutionError) as caught:
            pdfs.read(content)
        said.append(caught.value.message)
    assert len(set(said)) == 2
