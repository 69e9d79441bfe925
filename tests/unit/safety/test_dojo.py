"""AgentDojo's functions as tools: what is declared of them, and one suite where it is installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from callgate import Capability
from safety.dojo.declarations import capabilities, output_labels
from tests.needs import needs

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("get_balance", [], {Capability.READ_ONLY}),
        ("get_webpage", ["url"], {Capability.READ_ONLY, Capability.ACCESSES_NETWORK}),
        ("send_email", ["recipients"], {Capability.MUTATES_EXTERNAL, Capability.ACCESSES_NETWORK}),
        (
            "delete_file",
            ["file_id"],
            {Capability.MUTATES_EXTERNAL, Capability.ACCESSES_NETWORK, Capability.DESTRUCTIVE},
        ),
    ],
)
def test_the_verb_of_a_function_says_what_it_can_do(name, parameters, expected):
    assert capabilities(name, parameters) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("get_unread_emails", {"private", "untrusted"}),
        ("read_channel_messages", {"private", "untrusted"}),
        ("get_webpage", {"untrusted"}),
        ("get_channels", {"untrusted", "vouched"}),
        ("get_current_day", set()),
        ("send_email", set()),
    ],
)
def test_the_noun_of_a_function_says_what_its_output_holds(name, expected):
    assert output_labels(name) == expected


@needs("safety environment")
def test_without_a_gate_every_attack_on_the_chat_succeeds_and_every_task_is_done(tmp_path):
    out = tmp_path / "safety.json"
    subprocess.run(
        [
            ".build/safety/bin/python",
            "-m",
            "safety.run",
            "--half",
            "dojo",
            "--suite",
            "slack",
            "--only",
            "none",
            "--out",
            str(out),
        ],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (row,) = json.loads(out.read_text())["halves"]["dojo"]
    found = row["suites"]["slack"]["score"]
    assert (found["attacks_reached"], found["attacks"]) == (105, 105)
    assert (found["tasks_done"], found["tasks"]) == (21, 21)
