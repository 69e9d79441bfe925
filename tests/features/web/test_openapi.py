"""The description of the routes is true: what it promises is kept for whatever is sent."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from callgate.features.web.application import OPERATIONS
from tests.features.web.test_lifecycle import base, served

__all__ = ["base"]  # a fixture
_VOIDS = "/v1/token/rotate"
"""Would end the test's own access."""
_TOML = "/v1/policy/test"
"""Takes a text with a grammar of its own, which JSON Schema cannot say."""
_SHARED = "/access/v1/evaluations"
"""What an evaluation leaves out stands beside them all, or is missing."""
_ITSELF = "/openapi.json"
"""Not tried by schemathesis."""


def check(base: Path, examples: int) -> None:
    with served(base, "--http", "127.0.0.1:0") as instance:
        headers = instance.headers
        schema = schemathesis.openapi.from_url(f"{instance.url}/openapi.json", headers=headers)
        tried: set[tuple[str, str]] = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path == _VOIDS:
                continue
            without = [ignored_auth]  # test_access tries every route without a token
            if operation.path in (_TOML, _SHARED):
                without.append(positive_data_acceptance)

            @given(case=operation.as_strategy())
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def try_one(case: schemathesis.Case) -> None:
                case.call_and_validate(headers=headers, excluded_checks=without)  # noqa: B023

            try_one()
            tried.add((operation.method.upper(), operation.path))
        routes = {(each.method, path) for each in OPERATIONS for path in each.paths}
        assert {path for _, path in routes - tried} == {_VOIDS, _ITSELF}
        assert instance.stop() == (0, b"callgate: stopping\n")


def test_whatever_is_sent_gets_an_answer_that_the_description_knows(base: Path) -> None:
    check(base, 4)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_whatever_is_sent_gets_an_answer_that_the_description_knows_for_long(base: Path) -> None:
    check(base, 150)


def test_the_description_names_every_route_and_says_which_needs_no_token(base: Path) -> None:
    with served(base, "--http", "127.0.0.1:0") as instance:
        said = httpx2.get(f"{instance.url}/openapi.json", headers=instance.headers).json()
    named = {(method.upper(), path) for path, some in said["paths"].items() for method in some}
    assert named == {(each.method, path) for each in OPERATIONS for path in each.paths}
    unlocked = [path for path, some in said["paths"].items() for each in some.values() if each.get("security") == []]
    assert sorted(unlocked) == [
        "/.well-known/authzen-configuration",
        "/healthz",
        "/login",
        "/readyz",
        "/v1/proof",
    ]
    ids = [each["operationId"] for some in said["paths"].values() for each in some.values()]
    assert len(ids) == len(set(ids))
