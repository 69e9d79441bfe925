"""Modules of the standard library that a call does not use are not run for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_CALL = """
import json, sys
from callgate.cli.main import main
code = main(sys.argv[2:])
unused = sorted(name for name, module in sys.modules.items() if type(module).__name__ == "_Deferred")
open(sys.argv[1], "w").write(json.dumps(unused))
sys.exit(code)
"""
_USE = """
import sys, threading
from callgate.cli.deferred_modules import deferred_modules

with deferred_modules():
    import asyncio, ssl, tomllib
    import asyncio.sslproto
assert type(ssl) is not type(sys) and type(tomllib) is not type(sys)
barrier = threading.Barrier(8)
found = []

def look():
    barrier.wait(60)
    found.append((ssl.create_default_context, ssl.SSLContext))

threads = [threading.Thread(target=look) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
assert len(found) == 8 and len(set(found)) == 1
from tomllib import loads
assert loads("a = 1") == {"a": 1}
assert type(ssl) is type(sys) and type(tomllib) is type(sys)
assert asyncio.sslproto.SSLProtocol.__module__ == "asyncio.sslproto"
assert ssl.__spec__.loader is ssl.__loader__ and hasattr(ssl.__loader__, "get_source")
try:
    ssl.nothing_of_that_name
except AttributeError:
    pass
else:
    raise AssertionError
assert not any(getattr(each, "__name__", "") == "_Finder" for each in sys.meta_path)
"""


def _run(code: str, *words: str, **env: str) -> None:
    subprocess.run(
        [sys.executable, "-c", code, *words], env={**os.environ, **env}, check=True, timeout=60, capture_output=True
    )


def test_a_call_runs_no_code_of_modules_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("A note.")
    listed = tmp_path / "unused"
    words = ["call", "read_file", "path=note.txt", "--workspace", str(tmp_path)]
    _run(_CALL, str(listed), *words, CALLGATE_HOME=str(tmp_path / "home"))
    unused = json.loads(listed.read_text())
    assert {"ssl", "asyncio.sslproto", "tomllib", "ipaddress"} <= set(unused)


def test_a_deferred_module_is_whole_at_its_first_use_in_any_thread() -> None:
    _run(_USE)
