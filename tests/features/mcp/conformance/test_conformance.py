"""MCP's own conformance suite against our server and our client, in both generations."""

from __future__ import annotations

import pytest

from tests.features.mcp.conformance.run import Count, client_count, missing, read, server_count

needs_suite = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@needs_suite
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("revision", "of"), [("2025-11-25", 30), ("2026-07-28", 37)])
async def test_our_server_meets_every_requirement(revision: str, of: int) -> None:
    count = await server_count(revision)
    assert (count.passed, count.of, count.failures) == (of, of, ())


@needs_suite
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("revision", "of"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_our_client_meets_every_requirement(revision: str, of: int) -> None:
    count = await client_count(revision)
    assert (count.passed, count.of, count.failures) == (of, of, ())


def test_only_what_a_revision_requires_is_counted() -> None:
    said = (
        "✓ early: 1 passed, 0 failed\n=== SUITE SUMMARY ===\n"
        "✓ ping: 2 passed, 0 failed\n✗ auth/dpop: 1 passed, 3 failed\n"
        "✗ tools-list: 1 passed, 1 failed\n✗ auth/cimd: 9 passed, 0 failed, 1 warnings\n\n"
        "Not scored for 2025-11-25: 1 scenario(s) run\n  ✗ auth/dpop (extension)\n"
    )
    assert read(said) == Count(1, 3, ("tools-list", "auth/cimd"), ("auth/dpop",))
