"""Texts of tools on the page, taken apart in Node: nothing of them is lost."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.features.web.browser.test_any_questions import text
from tests.features.web.browser.test_files import STATIC

DECODE = """
import { exactParts } from "%s";
const decoded = (part) => {
  if (typeof part === "string") return part;
  const found = /^U\\+([0-9A-F]+)(?: ×(\\d+))?$/.exec(part.name);
  return found ? String.fromCodePoint(parseInt(found[1], 16)).repeat(Number(found[2] ?? 1)) : "";
};
let given = "";
for await (const chunk of process.stdin) given += chunk;
const read = JSON.parse(given);
console.log(JSON.stringify(read.map((text) => exactParts(text).map(decoded).join(""))));
"""


def test_every_character_of_a_text_is_in_its_parts(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    script = tmp_path / "decode.mjs"
    script.write_text(DECODE % (STATIC / "lib/text.js").as_uri())
    chance = random.Random(7)
    texts = ["", *(text(chance) for _ in range(2_000)), " " * 100_000 + "x", "\n" * 100_000]
    ran = subprocess.run([node, script], input=json.dumps(texts), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == texts
