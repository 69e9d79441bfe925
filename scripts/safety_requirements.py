"""Pin and hash the packages that `make safety` installs, in safety/requirements.txt.

    python3.11 -m scripts.safety_requirements FILE   (`make safety-requirements` calls it)

pip resolves the extra `safety` of pyproject.toml within constraints.txt. The packages of
`DATA_ONLY` provide only tasks and texts, so the list omits their dependencies (SDKs of model
providers) and is installed with `--no-deps`.
"""

from __future__ import annotations

import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.constraints import OLDEST, ROOT, file_hashes, index_url, resolve, sections
from scripts.peers import running_pins

HEAD = """\
# What `make safety` installs beside callgate: the tasks, and the gates that it is compared with.
# Written by `make safety-requirements`; do not edit. It goes on top of constraints.txt:
#     pip install --no-deps --require-hashes -r safety/requirements.txt
"""
LIFTED = ("cryptography",)
"""The governance toolkit requires a version below 50; its gateway does not import it."""
DATA_ONLY = {"agentdojo": "0.1.35", "inspect-evals": "0.26.0"}


def main(target: Path) -> None:
    if sys.version_info[:2] != OLDEST:
        raise SystemExit(
            "Run this on Python {}.{}: make safety-requirements PYTHON=...".format(*OLDEST)
        )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = running_pins((ROOT / "constraints.txt").read_text())
    limits = {name: version for name, version in ours.items() if name not in LIFTED}
    resolved = resolve(project["optional-dependencies"]["safety"], limits)
    pins = {name: version for name, version in resolved.items() if name not in ours}
    pins = dict(sorted((pins | DATA_ONLY).items()))
    index = index_url()
    with ThreadPoolExecutor(8) as pool:
        hashes = pool.map(lambda pin: file_hashes(index, *pin), pins.items())
        known = dict(zip(pins, hashes, strict=True))
    target.write_text(HEAD + "".join(sections([("the safety figure", pins)], known)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
