"""The progress of a fetch, from the lines that the package manager prints."""

from __future__ import annotations

import pytest

from callgate.features.mcp.client.fetches import FetchOutput
from callgate.sources.logs import LifeLog


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("npm http fetch GET 200 https://npm.example/content-type 40ms (cache miss)", "responses: 1"),
        ("npm http cache content-type@https://npm.example/content-type-1.0.5.tgz 0ms (cache hit)", "responses: 1"),
        ("npm warn deprecated inflight@1.0.6", "npm warn deprecated inflight@1.0.6"),
        ("", "no response yet"),
    ],
)
async def test_received_files_are_counted_and_other_lines_are_shown(line: str, progress: str) -> None:
    output = FetchOutput("npm", LifeLog(), str)
    output.feed(f"{line}\n".encode())
    assert output.progress == progress
