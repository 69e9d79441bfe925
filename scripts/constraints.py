"""Write constraints.txt: every third-party package, pinned and hashed.

    python3.11 -m scripts.constraints FILE      (`make constraints` prepares and calls it)

pip resolves the requirements of pyproject.toml. For each version that pip chose, the configured
package index lists the files and their hashes. The output has all files that a supported system
may pick, so one list serves every platform, and it names no index. The script must run on the
oldest supported Python: a dependency may need a backport there that newer versions do not need,
never the reverse.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pip._internal.models.index import PyPI  # pip's default

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
HEAD = """\
# Every third-party package that callgate installs: its version and the hashes of its files.
# Written by `make constraints`; do not edit. pip takes hashes only from `-r`:
#     pip install --require-hashes -r constraints.txt
# `make demo` installs what stands above the line "# for development".
"""
SUPPORTED = re.compile(
    r"any|(many|musl)?linux\w*_(x86_64|aarch64)|macosx_\w+_(x86_64|arm64|universal2)"
)

Pins = dict[str, str]


def main(target: Path) -> None:
    if sys.version_info[:2] != OLDEST:
        raise SystemExit("Run this on Python {}.{}: make constraints PYTHON=...".format(*OLDEST))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    everything = resolve([".[dev]", *build], {})
    tiers = [("running", resolve(["."], everything))]
    tiers.append(("building", resolve([".", *build], everything)))
    tiers.append(("development", everything))
    index = index_url()
    with ThreadPoolExecutor(8) as pool:
        hashes = dict(
            zip(
                everything,
                pool.map(lambda pin: file_hashes(index, *pin), everything.items()),
                strict=True,
            )
        )
    target.write_text(HEAD + "".join(sections(tiers, hashes)))


def resolve(requirements: list[str], pins: Pins) -> Pins:
    """Return the packages that pip would install in an empty environment, sorted by name."""
    with tempfile.TemporaryDirectory() as directory:
        limits = Path(directory, "limits.txt")
        limits.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        report = Path(directory, "report.json")
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        dry = ["--dry-run", "--ignore-installed", "--report", str(report), "-c", str(limits)]
        subprocess.run([*pip, *dry, *requirements], check=True, cwd=ROOT)
        chosen = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    found = {canonicalize_name(data["name"]): data["version"] for data in chosen}
    return {name: found[name] for name in sorted(found) if name != "callgate"}


def index_url() -> str:
    """Return the package index of pip's configuration, without a trailing slash."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or configured or PyPI.simple_url).rstrip("/")


def file_hashes(index: str, name: str, version: str) -> list[str]:
    """Return the sha256 of every file of one version that a supported system may pick."""
    found = set()
    for filename, sha256 in project_files(f"{index}/{name}/"):
        if not wanted(filename, version):
            continue
        if sha256 is None:
            raise SystemExit(f"The index gives no sha256 for {filename}.")
        found.add(sha256)
    if not found:
        raise SystemExit(f"The index lists no file of {name} {version}.")
    return sorted(found)


def wanted(filename: str, version: str) -> bool:
    try:
        if not filename.endswith(".whl"):
            return parse_sdist_filename(filename)[1] == Version(version)
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False  # an obsolete file type that pip rejects too
    return found == Version(version) and any(
        SUPPORTED.fullmatch(tag.platform) and runs_on(tag.interpreter, tag.abi) for tag in tags
    )


def runs_on(interpreter: str, abi: str) -> bool:
    """Return whether a supported CPython accepts a wheel with these tags."""
    if abi in ("abi3", "none"):
        return interpreter.startswith(("cp3", "py3"))
    cpython = re.fullmatch(r"cp3(\d+)", interpreter)
    return cpython is not None and int(cpython[1]) >= OLDEST[1]


def project_files(page: str) -> Iterator[tuple[str, str | None]]:
    """Return file names and hashes from a page of the simple repository API, JSON or HTML."""
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
    request = urllib.request.Request(page, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as reply:
        body = reply.read()
        is_json = "json" in reply.headers.get("Content-Type", "")
    if is_json:
        for file in json.loads(body)["files"]:
            yield file["filename"], file["hashes"].get("sha256")
        return
    links = _Links()
    links.feed(body.decode())
    for link in links.found:
        parts = urllib.parse.urlsplit(link)
        filename = urllib.parse.unquote(parts.path.rsplit("/", 1)[-1])
        algorithm, _, digest = parts.fragment.partition("=")
        yield filename, digest if algorithm == "sha256" else None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.extend(value for key, value in attrs if key == "href" and value)


def sections(tiers: list[tuple[str, Pins]], hashes: dict[str, list[str]]) -> Iterator[str]:
    """Format each package once, under the first tier that needs it."""
    seen: set[str] = set()
    for purpose, pins in tiers:
        yield f"\n# for {purpose}\n"
        for name, version in pins.items():
            if name not in seen:
                lines = [f"{name}=={version}", *(f"--hash=sha256:{h}" for h in hashes[name])]
                yield " \\\n    ".join(lines) + "\n"
        seen.update(pins)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
