"""Descriptions come from docstrings, in whichever of the three styles they are written."""

from __future__ import annotations

from typing import Annotated

import pytest

from callgate.sources.functions import tool
from callgate.sources.shapes import Docstring, parse_docstring

GOOGLE = """Find things.

    In more words: as many as needed.

    Args:
        query (str, optional): What to look for,
            over two lines.
        limit: How many

            after a blank line.
        **rest: The others: all.

    Returns:
        limit: not a parameter.
    """

NUMPY = """Find things.

    In more words: as many as needed.

    Parameters
    ----------
    query : str, optional
        What to look for,
        over two lines.
    limit, offset
        How many.

    Returns
    -------
    list
        limit : not a parameter
    """

SPHINX = """Find things.

    In more words: as many as needed.

    :param query: What to look for,
        over two lines.
    :type query: str
    :param int limit: How many.
    :returns: limit
    :raises ValueError: never
    """

DESCRIPTION = "Find things.\n\nIn more words: as many as needed."
QUERY = "What to look for, over two lines."


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (GOOGLE, {"query": QUERY, "limit": "How many after a blank line.", "rest": "The others: all."}),
        (NUMPY, {"query": QUERY, "limit": "How many.", "offset": "How many."}),
        (SPHINX, {"query": QUERY, "limit": "How many."}),
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_each_style_gives_the_description_and_the_parameters(text: str, parameters: dict[str, str]) -> None:
    assert parse_docstring(text) == Docstring(DESCRIPTION, parameters)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Docstring()),
        ("", Docstring()),
        ("One line.", Docstring("One line.")),
        ("Args: are not a section here", Docstring("Args: are not a section here")),
        ("Sum.\n\nNote:\n    Kept.\n\nArgs:\n    x: X.", Docstring("Sum.\n\nNote:\n    Kept.", {"x": "X."})),
        ("Sum.\n\nArgs:\n", Docstring("Sum.")),
        ("Parameters\nare many.", Docstring("Parameters\nare many.")),
        ("Sum.\n\nSo:\n    Args:\n        x: X.", Docstring("Sum.\n\nSo:\n    Args:\n        x: X.")),
        ("Sum.\n\nParameters\n---\n(see x)\nx\n    X.", Docstring("Sum.", {"x": "X."})),
        ("Sum.\n\nParameters\n----------", Docstring("Sum.")),
        ("Sum.\n\nArgs:\n    no colon here\n    x: X.", Docstring("Sum.", {"x": "X."})),
        ("Sum.\n\nReturns:\n    x: X.", Docstring("Sum.")),
        ("Sum.\n:param:\n:param x:", Docstring("Sum.", {"x": ""})),
    ],
)
def test_unusual_docstrings_are_read_as_far_as_they_go(text: str | None, expected: Docstring) -> None:
    assert parse_docstring(text) == expected


def test_a_parameter_is_described_by_its_annotation_before_the_docstring() -> None:
    @tool(side_effects="none")
    def probe(a: Annotated[int, "From the annotation"], b: int) -> None:
        """Do it.

        Args:
            a: From the docstring.
            b: From the docstring.
        """

    definition = probe.definition
    assert definition.description == "Do it."
    assert definition.input_schema["properties"] == {
        "a": {"type": "integer", "description": "From the annotation"},
        "b": {"type": "integer", "description": "From the docstring."},
    }
