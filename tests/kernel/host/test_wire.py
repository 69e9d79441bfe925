"""A real host answers the protocol's vectors as they say, and survives every one of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.host.driving import SAMPLES, Driven

VECTORS = Path(__file__).parents[3] / "protocols" / "host_v1" / "vectors" / "requests.json"
CASES = json.loads(VECTORS.read_text())["cases"]


def chunk(written: dict[str, Any]) -> bytes:
    if "text" in written:
        return written["text"].encode()  # type: ignore[no-any-return]
    if "base64" in written:
        return base64.b64decode(written["base64"])
    text, times = written["repeat"]
    return text.encode() * times  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def host() -> Iterator[Driven]:
    with Driven(str(SAMPLES)) as driven:
        yield driven
        assert driven.end() == 0


WHOLE = [case for case in CASES if chunk(case["chunks"][-1]).endswith(b"\n")]
"""Of a line that has not ended nothing can be seen from outside."""


@pytest.mark.spec("S1-05", "S1-06", "S1-07", "S1-08", "S1-12", "S1-13", "S1-14", "S1-27", "S1-52")
@pytest.mark.spec("S1-53")
@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in WHOLE])
def test_a_host_process_answers_the_vectors(host: Driven, case: dict[str, Any]) -> None:
    for each in case["chunks"]:
        host.write(chunk(each))
    host.write(b'{"v":1,"id":"the end","method":"no such method"}\n')
    unanswered = {"the end", *(each["frame"]["id"] for each in case["expect"] if "frame" in each)}
    faults = []
    while unanswered:
        frame = host.next()
        if frame["id"] in unanswered:
            unanswered.remove(frame["id"])
        else:
            faults.append({"id": frame["id"], "type": frame["error"]["type"]})
    expected = [each["fault"] for each in case["expect"] if "fault" in each]
    assert faults == [{"id": each["id"], "type": each["type"]} for each in expected]


@pytest.mark.spec("S1-13")
def test_a_method_that_it_does_not_have_is_not_found(host: Driven) -> None:
    assert host.ask("get_tags", config={}, models=[])["error"]["type"] == "MethodNotFound"


@pytest.mark.spec("S1-08")
def test_an_id_in_flight_is_refused_under_no_id(host: Driven) -> None:
    host.init()
    host.run("a", "until_read", path="x")
    asked = host.next()
    host.run("a", "add", x=1, y=2)
    complaint = host.next()
    assert (complaint["id"], complaint["error"]["type"]) == (None, "ProtocolError")
    host.give(asked["id"], "one")
    assert host.next()["result"]["value"]["result"] == "one"
