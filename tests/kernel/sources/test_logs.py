"""What a host or server wrote, and which line of it tells most."""

from __future__ import annotations

import pytest

from callgate.sources.logs import LifeLog

NODE = """node:internal/modules/cjs/loader:1215
  throw err;
  ^

Error: Cannot find module '/srv/x.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1212:15) {
  code: 'MODULE_NOT_FOUND'
}

Node.js v20.20.2
"""
PYTHON = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
ModuleNotFoundError: No module named 'y'
During handling of the above exception, another exception occurred:
lib.errors.StartError: no y
"""


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (NODE, "Error: Cannot find module '/srv/x.js'"),
        (PYTHON, "lib.errors.StartError: no y"),
        ("starting\rneeds a token\r\n\n", "needs a token"),
        ("", ""),
    ],
)
def test_the_last_words_are_those_that_say_why(written: str, words: str) -> None:
    log = LifeLog()
    log.add(written.encode())
    assert log.last_words == words
