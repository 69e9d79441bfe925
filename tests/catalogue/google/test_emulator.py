"""Someone else's Google: the emulator that others test against, in a network of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs

PROJECT = Path(__file__).parents[3]


@pytest.mark.soak
@needs("emulate", "node", "unshare", "linux")
def test_the_emulator_of_others_lets_us_in_and_takes_our_mail(tmp_path: Path) -> None:
    apart = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    command = [
        *apart,
        sys.executable,
        "-m",
        "tests.catalogue.google.emulator.visit",
        str(PROJECT / ".tools/emulate"),
        str(tmp_path),
    ]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["email"] == "ann@example.org"
    assert [(each["subject"], each["unread"]) for each in said["list"]] == [("Welcome", True)]
    assert (said["read"]["body"], said["none"]["error"]) == ("Hello Ann.", "google_not_found")
    assert [each["id"] for each in said["search"]] == [said["send"]["id"]]
    assert (said["after"]["headers"]["Subject"], said["after"]["body"]) == ("Grüße", "Schöne Grüße.")
    assert (said["renewed"], said["revoked"]) == (True, "google_login")
