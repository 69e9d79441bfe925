"""What every test shares: a home and an environment of its own, and what could not be tested here."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a script: whatever we start would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_KEPT = ("CI", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = (
    "PYTEST_",
    "HYPOTHESIS_",
    "PLAYWRIGHT_",
    "npm_config_",
    "PIP_",
    "SSL_CERT_",
    "NODE_EXTRA_CA_",
    "REQUESTS_CA_",
)


def make_environment_ordinary() -> None:
    """Whatever variables and umask somebody has: the tests, and what they start, see the same."""
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    os.environ |= {"LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"}
    time.tzset()
    os.umask(0o022)


make_environment_ordinary()

_common = settings(
    deadline=None,  # a busy machine is not a defect
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.register_profile("callgate", _common, max_examples=60)
settings.register_profile("soak", _common, max_examples=5000)
settings.load_profile("callgate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", metavar="FILE", help="write counts, failed tests and repeated tests to FILE")


_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


class _Turned(pytest.Dir):
    """Each process begins with other tests, and finds what the others have compiled meanwhile."""

    def collect(self) -> list[Any]:
        entries = list(super().collect())
        first = len(entries) * _worker // _workers
        return entries[first:] + entries[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return _Turned.from_parent(parent, path=path) if _workers > 1 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All processes have to list the tests in one order."""
    if _workers > 1:
        items.sort(key=lambda item: str(item.path))


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: nobody need look through them for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def database() -> Iterator[Any]:
    """A PostgreSQL of this test process, to be left as it was: each test has a schema of its own."""
    from tests import postgres

    with postgres.running() as cluster:
        yield cluster


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory. A counter finds its name, where pytest's own fixture reads all names before."""
    name = re.sub(r"\W", "_", request.node.name)[:24]  # paths of sockets are limited
    path = tmp_path_factory.getbasetemp() / f"{name}_{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def _no_real_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test, and no process that it starts, ever sees the home of whoever runs it."""
    user = tmp_path_factory.getbasetemp() / f"user{next(_numbers)}"
    user.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("CALLGATE_HOME", str(user / ".callgate"))


@pytest.fixture(autouse=True)
def _environment_as_before(_no_real_home: None) -> Iterator[None]:
    """A variable that a test leaves behind would change the tests that follow in its process."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that ran within a test has set up our log for itself."""
    logger = logging.getLogger("callgate")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture
def home(_no_real_home: None) -> Path:
    """An empty CALLGATE_HOME, as a first start leaves it. Without this fixture there is none."""
    path = Path(os.environ["CALLGATE_HOME"])
    path.mkdir(mode=0o700)
    return path


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so that the list is the last thing said
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section("not tested here")
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count:5}  {reason}")
    if report := terminalreporter.config.getoption("--report"):
        Path(report).write_text("".join(f"{line}\n" for line in _report(terminalreporter.stats)))


def _report(stats: dict[str, list[Any]]) -> Iterator[str]:
    """One line of counts, then each test that failed or ran again, for `.ci/run`."""
    named = {kind: stats.get(kind, []) for kind in ("passed", "failed", "error", "skipped", "rerun")}
    yield "counts " + ", ".join(f"{len(found)} {kind}" for kind, found in named.items())
    for kind, word in (("failed", "failed"), ("error", "failed"), ("rerun", "rerun")):
        yield from sorted({f"{word} {report.nodeid}" for report in named[kind]})
