"""What a record becomes for others: OCSF by its published schema, CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.audit.records import encode
from callgate.features.reporting.export_formats import (
    COLUMNS,
    FORMATS,
    OCSF_VERSION,
    api_activity,
    encoding_of,
    make_row,
)
from tests import ocsf
from tests.features.reporting.export.records import record

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SCHEMA = ocsf.table(OCSF_VERSION)
RICH: dict[str, Any] = {
    "error_class": "permission_denied",
    "reason": "no_confirmer",
    "decision": "deny",
    "side_effects": "execute",
    "capabilities": ("runs-commands", "destructive"),
    "source": "builtin",
    "policy": "rule deny shell (settings.toml:3)",
    "client": "editor 1.0",
    "ms": 3.5,
    "waited_ms": 1200.25,
    "confirmation_id": "conf_1",
    "answered_by": "terminal",
    "scope": {"tab": "3"},
    "trace": TRACE,
}


@pytest.mark.parametrize("effect", [None, "none", "read", "write", "network", "execute"])
@pytest.mark.parametrize("more", [{}, RICH, {"reason": "effect_mismatch"}, {"error_class": "timeout"}])
def test_an_event_is_valid_by_the_published_schema(effect: str | None, more: dict[str, Any]) -> None:
    event = api_activity(record(1, **(more | {"side_effects": effect})), "home_1")
    assert ocsf.problems(json.loads(json.dumps(event)), SCHEMA) == []


def test_the_check_finds_what_the_schema_forbids() -> None:
    event = api_activity(record(1))
    for path, value in {
        ("severity_id",): 7,
        ("actor",): {},
        ("api",): {"service": {"name": "x"}},
        ("src_endpoint",): {"port": 3},
        ("type_uid",): 600301,
        ("made_up",): 1,
        ("time",): "now",
        ("metadata", "profiles"): [],
    }.items():
        changed = json.loads(json.dumps(event))
        target = changed
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
        assert ocsf.problems(changed, SCHEMA), path
    assert ocsf.problems({**event, "metadata": {}}, SCHEMA)


def test_an_event_says_who_did_what_and_whether_it_was_allowed() -> None:
    event = api_activity(record(1, **RICH), "home_1")
    assert event["api"]["operation"] == "read_file"
    assert (event["action"], event["disposition"], event["status"]) == ("Denied", "Blocked", "Failure")
    assert event["policy"]["name"] == RICH["policy"]
    assert event["metadata"]["uid"].startswith("audit_")
    assert event["trace"]["uid"] == TRACE.split("-")[1]
    assert event["duration"] == 1204
    assert event["unmapped"]["answered_by"] == "terminal"


@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
def test_whatever_a_caller_writes_is_one_line_that_reads_back(args: str, result: str, scope: dict[str, str]) -> None:
    line = record(1, args=args, result=result, scope=scope)
    raw = encode(line)
    for format in FORMATS:
        row = make_row(encoding_of(format), line, raw, "")
        assert b"\n" not in row.line
        assert b"\r" not in row.line
        if format == "csv":
            (cells,) = csv.reader(io.StringIO(row.line.decode()))
            assert len(cells) == len(COLUMNS)
            assert not [each for each in cells if each[:1] in "=+-@" and each]
        else:
            json.loads(row.line)


def test_a_cell_that_a_spreadsheet_would_run_begins_with_an_apostrophe() -> None:
    for formula in ("=1+1", "+1", "-1", "@SUM(A1)"):
        line = record(1, args=formula)
        (cells,) = csv.reader(io.StringIO(make_row(encoding_of("csv"), line, b"", "").line.decode()))
        assert cells[COLUMNS.index("args")] == f"'{formula}"
